//! An entry of a locked table, and its changes.

use super::{CheckedBlock, EntryChange, Error, LockedTable, SweepChange};
use crate::format::{Attrs, Decoded, Flags, Format, Geometry, alone, like};
use crate::tables::PageTables;
use crate::tlb_gather::{GatherState, TlbGather};
use crate::walk::Mapping;
use core::mem;
use grace::Concurrent;
use machine::{Entry, Frame, Machine, VirtAddr, VirtRange};

/// The entry of a page, as it was read with the lock of its table held. From then on only hardware
/// changes it.
///
/// Its methods take it by value: a pointer into a [`LockedEntry`] would force that, and its table,
/// into memory on the path of a fault.
pub(super) struct PageEntry<'m, M> {
    pub(super) at: VirtAddr,
    pub(super) level: u8,
    pub(super) entry: Entry<'m, M>,
    /// Its value, as if the page were in no group.
    pub(super) value: u64,
}

impl<M> Clone for PageEntry<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for PageEntry<'_, M> {}

/// An entry of a locked table, and its changes.
pub(super) struct LockedEntry<'t, 'c, 'p, M: Machine, F: Format, G: Concurrent> {
    pub(super) table: &'t mut LockedTable<'c, 'p, M, F, G>,
    pub(super) entry: PageEntry<'c, M>,
    /// Whether the page is in a group.
    pub(super) grouped: bool,
}

impl<M: Machine, F: Format, G: Concurrent> LockedEntry<'_, '_, '_, M, F, G> {
    /// Makes the page single, if it is in a group. Done before each change of a page that stays.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn part(&mut self) {
        if mem::take(&mut self.grouped) {
            let PageEntry { at, entry, .. } = self.entry;
            self.table.tables.part_group(at, &entry, self.table.users);
        }
    }

    /// Makes the entry absent. Returns its value, with the bits that hardware has set since it was
    /// read.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn swap_out(&mut self) -> u64 {
        let was = self.entry.entry.swap(0);
        self.table.count_down();
        was
    }

    /// The flush of the translation is pending.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn drop_cached(&mut self) {
        self.entry.drop_cached::<F>(&mut self.table.pending.gather);
    }

    /// Makes the entry absent. A fault may store another page there once the lock is given up, so
    /// the page is flushed before that where the architecture demands it.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn clear(&mut self) {
        self.swap_out();
        self.table.pending.gather.state.set(GatherState::BROKE, F::BREAK_BEFORE_MAKE);
        // Also for a `PROT_NONE` page, which is not cached: its table may become empty, and
        // hardware may have cached the way to it.
        self.drop_cached();
    }

    /// Makes the entry absent, for a caller that maps nothing there before the flush. Returns the
    /// page as it was at the end.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn take(&mut self) -> Option<Mapping> {
        let was = self.swap_out();
        let PageEntry { at: page, level, entry, .. } = self.entry;
        let size = F::size_at(level)?;
        let was = F::decode(alone::<F>(was, level, entry.index()), level);
        let Decoded::Page(frame, attrs) = was else { return None };
        // A `PROT_NONE` page is not cached. But its table may become empty, and hardware may have
        // cached the way to it.
        if let Some(range) = VirtRange::new(page, size.bytes()) {
            let cached = attrs.flags.intersects(Flags::RWX);
            self.table.pending.gather.add(range, if cached { size } else { F::PAGE });
        }
        Some(Mapping { page, size, frame, attrs })
    }

    /// Gives the page these attributes, if it may have them.
    #[cfg_attr(not(feature = "small"), inline(always))]
    fn set(&mut self, attrs: Attrs) -> Result<(), Error> {
        self.table.tables.check_kind(self.entry.at, attrs.flags)?;
        self.set_checked(attrs)
    }

    /// Gives the page these attributes, which it may have. Its accessed and dirty bits stay.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn set_checked(&mut self, attrs: Attrs) -> Result<(), Error> {
        self.part();
        self.entry.set(self.table.tables, attrs, &mut self.table.pending.gather)
    }

    /// Maps a frame in the place of the page that was found, or where nothing is.
    #[cfg_attr(not(feature = "small"), inline(always))]
    fn put(&mut self, found: Option<Mapping>, frame: Frame, attrs: Attrs) -> Result<(), Error> {
        let (tables, PageEntry { at, level, entry, .. }) = (self.table.tables, self.entry);
        tables.check_kind(at, attrs.flags)?;
        let size = F::size_at(level).ok_or(Error::Malformed(at))?;
        let value = F::page(size, frame, attrs)?;
        tables.check_frames(&mut CheckedBlock::default(), at, frame, size.frames())?;
        match found {
            // A swap: hardware may set bits of the old entry meanwhile.
            Some(found) => {
                self.part();
                if PageTables::<M, F, G>::must_break(found.attrs, attrs, found.frame == frame) {
                    self.entry.break_first(tables);
                }
                entry.swap(value);
                // Nothing is cached of a swap entry.
                if tables.paging().slot_of(found.frame).is_none() {
                    self.drop_cached();
                }
            }
            None => {
                tables.break_way(at, level);
                entry.store(value);
                self.table.count_up();
            }
        }
        Ok(())
    }

    /// Changes the entry, at which a decision has found this page, as its closure says.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn apply(
        &mut self,
        found: Option<Mapping>,
        change: EntryChange,
    ) -> Result<(), Error> {
        if change != EntryChange::Keep {
            self.part();
        }
        match (change, found) {
            (EntryChange::Keep, _) | (EntryChange::Clear, None) => {}
            (EntryChange::Clear, Some(_)) => self.clear(),
            (EntryChange::Set(frame, attrs), Some(found)) if frame == found.frame => {
                self.set(attrs)?;
            }
            (EntryChange::Set(..), Some(found)) => return Err(Error::Occupied(found.page)),
            (EntryChange::Replace(..), None) => {}
            (EntryChange::Set(frame, attrs), None) | (EntryChange::Replace(frame, attrs), _) => {
                self.put(found, frame, attrs)?;
            }
        }
        Ok(())
    }

    /// Changes this page, which a sweep has found, as its closure says.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn change(&mut self, found: Mapping, change: SweepChange) -> Result<(), Error> {
        match change {
            SweepChange::Keep | SweepChange::Stop => {}
            SweepChange::Clear => self.clear(),
            SweepChange::Set(attrs) => self.set(attrs)?,
            SweepChange::Age => {
                self.part();
                self.entry.unmark::<F>(Flags::ACCESSED)?;
            }
            SweepChange::Clean => {
                self.part();
                let dirty = found.attrs.flags.contains(Flags::DIRTY);
                // CPUs that have cached the bit do not set it again before the flush.
                if dirty && self.entry.unmark::<F>(Flags::DIRTY)? {
                    self.drop_cached();
                }
            }
            SweepChange::Replace(frame, attrs) => self.put(Some(found), frame, attrs)?,
        }
        Ok(())
    }
}

impl<M: Machine> PageEntry<'_, M> {
    /// Its translation must be flushed.
    #[cfg_attr(not(feature = "small"), inline(always))]
    fn drop_cached<F: Format>(self, gather: &mut TlbGather) {
        let size = F::size_at(self.level).unwrap_or_default();
        if let Some(page) = VirtRange::new(self.at, size.bytes()) {
            gather.add(page, size);
        }
    }

    /// Breaks the entry of a valid page, whatever marks hardware sets meanwhile.
    #[cold]
    pub(super) fn break_first<F: Format, G: Concurrent>(self, tables: &PageTables<M, F, G>) {
        let mut value = self.value;
        while let Err(now) = tables.break_page(self.at, self.level, &self.entry, value) {
            // With the lock held, it stays a page.
            value = now;
        }
    }

    /// Clears the accessed or the dirty bit of a page. Returns whether it was set.
    fn unmark<F: Format>(self, mark: Flags) -> Result<bool, Error> {
        let mut was_set = false;
        self.update::<F>(|attrs| {
            was_set = attrs.flags.contains(mark);
            was_set.then(|| Attrs { flags: attrs.flags - mark, ..attrs })
        })?;
        Ok(was_set)
    }

    /// Gives a page the attributes that `change` makes of its own, unless there are none. A page of
    /// a group stays in it. Hardware may set marks meanwhile; none is lost. Returns the value of
    /// the entry.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn update<F: Format>(
        self,
        mut change: impl FnMut(Attrs) -> Option<Attrs>,
    ) -> Result<u64, Error> {
        let PageEntry { at, level, entry, mut value } = self;
        let size = F::size_at(level).ok_or(Error::Malformed(at))?;
        let index = entry.index();
        while let Decoded::Page(frame, old) = F::decode(alone::<F>(value, level, index), level)
            && let Some(attrs) = change(old)
            && attrs != old
        {
            let new = like::<F>(value, F::page(size, frame, attrs)?, level);
            if new == value {
                break;
            }
            match entry.compare_exchange(value, new) {
                Ok(()) => return Ok(new),
                Err(now) => value = now,
            }
        }
        Ok(value)
    }

    /// Gives a page these attributes. Its accessed and dirty bits stay, also those that hardware
    /// sets meanwhile.
    fn set<F: Format, G: Concurrent>(
        self,
        tables: &PageTables<M, F, G>,
        attrs: Attrs,
        gather: &mut TlbGather,
    ) -> Result<(), Error> {
        let Decoded::Page(frame, old) = F::decode(self.value, self.level) else {
            return Err(Error::Malformed(self.at));
        };
        let marks = Flags::ACCESSED | Flags::DIRTY;
        let with_marks = |old: Attrs| Attrs { flags: attrs.flags | old.flags & marks, ..attrs };
        let breaks = PageTables::<M, F, G>::must_break(old, attrs, true);
        if breaks {
            // Fails before the page is broken.
            F::page(F::size_at(self.level).unwrap_or_default(), frame, with_marks(old))?;
            self.break_first(tables);
        }
        let value = self.update::<F>(|old| Some(with_marks(old)))?;
        if !breaks && value != self.value && is_flush_needed(old, with_marks(old)) {
            self.drop_cached::<F>(gather);
        }
        Ok(())
    }
}

/// Whether a cached translation with the old attributes would harm. A `PROT_NONE` page is not
/// cached.
fn is_flush_needed(old: Attrs, new: Attrs) -> bool {
    let lost = old.flags.difference(new.flags);
    let differs = !lost.is_empty() || old.cache != new.cache || old.key != new.key;
    // A page that gains this flag is another one to hardware.
    let differs = differs || (new.flags - old.flags).contains(Flags::DECRYPTED);
    differs && old.flags.intersects(Flags::RWX)
}
