//! Changing one entry by a decision that is made under its table's lock.
//!
//! A page-fault handler looks at its own records of the address, prepares a frame, and then has to
//! know that the records still say the same when the entry changes. So it looks a second time in
//! `decide`, with the lock of the lowest table held. A call that changes the records stores them
//! first, and then goes through the range by [`sweep`](PageTables::sweep), which takes the same
//! lock. One of the two sections comes first. Either `decide` sees the new records, or the sweep
//! sees the entry.
//!
//! # A table that the sweep does not find
//! Then the sweep has found an absent entry of an upper table, and has read it again under that
//! table's lock. A table is linked there later, under the same lock: its linker has seen the new
//! records, and so has any CPU that was led through the new entry, which is stored with Release and
//! loaded with Acquire. Both look after they have walked. So `decide` always sees the records of a
//! sweep that ended before the entry's table was linked.

use super::{Error, Failed, Lent, Result, Slot, Users};
use crate::format::{Attrs, Decoded, Flags, Format, FormatError, alone, is_grouped};
use crate::gather::{State, TlbGather};
use crate::lock::{Locked, lock};
use crate::pending::PendingFlush;
use crate::sync::fence;
use crate::tables::PageTables;
use crate::walk::{Found, Mapping, Walk};
use core::sync::atomic::Ordering;
use grace::Concurrent;
use machine::{Flush, Frame, Machine, PageSize, VirtAddr, VirtRange};

/// The change of an entry; returned by the closure of [`PageTables::with_entry`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum EntryChange {
    /// The entry stays as it is.
    Keep,
    /// An absent entry maps this frame with these attributes. A present entry gets the attributes:
    /// its frame must be this one, and its accessed and dirty bits stay beside those of the
    /// attributes.
    Set(Frame, Attrs),
    /// A present entry maps this frame with these attributes instead of its own. CPUs may use the
    /// old frame until the flush is done, so the new one has the same contents and no right to
    /// write until then. An absent entry stays. Where a swap entry is replaced, no flush follows:
    /// the one for the page that was there before is done.
    Replace(Frame, Attrs),
    /// The entry becomes absent.
    Clear,
}

/// What `decide` returned, and the flush of the change.
pub(super) type Changed<'p, T, M, F, G> = (T, PendingFlush<'p, M, F, G>);

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Locks the lowest table for `at`, and changes the entry of the page of level 0 that contains
    /// `at` as `decide` says. If there is no such table, makes it first. `decide` gets the page
    /// that the entry maps, if any. It is called at most once, with the table's lock held. Returns
    /// what `decide` returned beside the change.
    ///
    /// With [`sweep`](Self::sweep) it decides races: `decide` sees everything that a CPU stored
    /// before a sweep of `at` that was first to take the lock, also if that sweep found no table.
    /// A sweep that is second finds the changed entry.
    ///
    /// A flush is pending if the page lost a right, or got another frame, key or memory type, if it
    /// became absent, if an empty user table was unlinked (by `Clear` of the last page, or by
    /// `Keep` in a new table), or if the way was made this space's own. A page that has gained
    /// rights may still fault once, spuriously.
    ///
    /// An accessed or dirty bit that hardware sets between `decide` and a `Clear` is not reported.
    /// [`unmap`](Self::unmap) reports all.
    ///
    /// Cost: one walk; two if the tables have forked. If the table exists: one locked instruction,
    /// that of the lock; one more, a compare-exchange or a swap, if a present entry changes. No
    /// allocation. The first change below a table that a fork shares copies it, or takes it over.
    ///
    /// # Context
    /// Not in an interrupt. `decide`, and the drop of what it has captured, take no lock of a
    /// table, take no other lock that is held around a call on these tables, allocate nothing, wait
    /// for no CPU, and do not call back into these tables: that would deadlock.
    ///
    /// # Errors
    /// - [`Error::NotCanonical`], [`Error::Kernel`]: not an address of these tables.
    /// - [`Error::Occupied`]: a large page contains `at`; or `Set` names another frame than the
    ///   present entry.
    /// - [`Error::Global`], [`Error::NotUser`], [`Error::Frame`], [`Error::Format`]: not a valid
    ///   page.
    /// - [`Error::Malformed`]; [`Error::TopLevelFixed`].
    /// - [`Error::Fork`]: the page is in a shared table, and a fork is under way.
    /// - [`Error::Frames`]: no memory for a table. It does not reclaim, since the caller holds a
    ///   guard. The caller drops the guard, calls [`reclaim`](Self::reclaim), and begins again.
    ///
    /// The tables translate as before then; `decide` was called or not. If `decide` panics, the
    /// entry stays, too.
    ///
    /// # Safety
    /// For the change that `decide` returns:
    /// - *Addresses*: the page is the caller's to change, and nothing relies on rights or a mapping
    ///   that it removes.
    /// - *Frames*: the frame is the caller's to lend with these rights. It is not given back before
    ///   the page is unmapped and the flush for that is done.
    /// - *Flush*: no flush is pending for an earlier mapping of the page by another frame. After
    ///   `Clear`, the frame is not given back, and the page is not mapped again, before the
    ///   returned flush is done. A forgotten value is not a flush.
    pub unsafe fn with_entry<'p, T>(
        &'p self,
        guard: &G::Guard,
        at: VirtAddr,
        decide: impl FnOnce(Option<Mapping>) -> (EntryChange, T),
    ) -> Result<'p, Changed<'p, T, M, F, G>, M, F, G> {
        self.decide_entry(guard, (at.align_down(F::PAGE), None), decide)
    }

    /// As [`with_entry`](Self::with_entry), at the address of an earlier look under this guard. If
    /// the table is still on the way there, nothing is walked again.
    ///
    /// # Errors
    /// As for [`with_entry`](Self::with_entry).
    ///
    /// # Safety
    /// As for [`with_entry`](Self::with_entry). The look was at tables of the same machine.
    pub unsafe fn with_found<'p, 'g, T>(
        &'p self,
        guard: &'g G::Guard,
        found: &Found<'g>,
        decide: impl FnOnce(Option<Mapping>) -> (EntryChange, T),
    ) -> Result<'p, Changed<'p, T, M, F, G>, M, F, G> {
        let table = found.table.filter(|_| found.root == self.root());
        self.decide_entry(guard, (found.page, table), decide)
    }

    /// As [`with_entry`](Self::with_entry), for a page of [`Format::LARGE`] at `at` (2 MiB, with a
    /// granule of 4 KiB): locks the table of level 1, and changes its entry. `decide` gets the
    /// large page, or `None` if there is nothing.
    ///
    /// The same argument decides races with a sweep: it takes the lock of this table where it finds
    /// a large page, or no lower table.
    ///
    /// Where the architecture demands break-before-make, a new page costs a flush besides: a lower
    /// table may have been there, to which CPUs have cached the way.
    ///
    /// # Errors
    /// As for [`with_entry`](Self::with_entry); [`Error::Occupied`]: there is a table for smaller
    /// pages, and `decide` was not called.
    ///
    /// # Safety
    /// As for [`with_entry`](Self::with_entry), for all of the large page.
    pub unsafe fn with_large<'p, T>(
        &'p self,
        guard: &G::Guard,
        at: VirtAddr,
        decide: impl FnOnce(Option<Mapping>) -> (EntryChange, T),
    ) -> Result<'p, Changed<'p, T, M, F, G>, M, F, G> {
        let mut pending = self.no_flush();
        let at = at.align_down(F::LARGE);
        match self.decide_large(guard, at, decide, &mut pending) {
            Ok(kept) => Ok((kept, pending)),
            Err(error) => Err(Failed { error, pending }),
        }
    }

    #[cold]
    fn decide_large<'p, T>(
        &'p self,
        guard: &G::Guard,
        at: VirtAddr,
        decide: impl FnOnce(Option<Mapping>) -> (EntryChange, T),
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> core::result::Result<T, Error> {
        self.check(VirtRange::new(at, F::LARGE.bytes()).ok_or(Error::Empty)?)?;
        let walk = self.walk(guard);
        let locked = self.table_for(&walk, at, 1, pending);
        let (table, locked) = locked.inspect_err(|_| self.prune_beside_fork(&walk, at, pending))?;
        self.decide_in(&walk, (at, F::LARGE), table, locked, decide, pending)
    }

    #[inline(always)]
    fn decide_entry<'p, T>(
        &'p self,
        guard: &G::Guard,
        place: (VirtAddr, Option<Frame>),
        decide: impl FnOnce(Option<Mapping>) -> (EntryChange, T),
    ) -> Result<'p, Changed<'p, T, M, F, G>, M, F, G> {
        let mut pending = self.no_flush();
        match self.decide_locked(guard, place, decide, &mut pending) {
            Ok(kept) => Ok((kept, pending)),
            Err(error) => Err(Failed { error, pending }),
        }
    }

    /// Locks the lowest table for a page, which an earlier walk may have found.
    #[inline(always)]
    fn lock_lowest<'g, 'p: 'g>(
        &'p self,
        walk: &Walk<'g, M, F>,
        (at, seen): (VirtAddr, Option<Frame>),
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> core::result::Result<(Frame, Locked<'g, F>), Error> {
        // Not the kernel's tables, which all spaces lead to.
        let seen = seen.filter(|_| self.space().is_none() || !F::is_upper(at));
        if let Some(table) = seen
            && let Some(locked) = lock::<M, F>(self.machine(), table, at)?
            && self.may_change(walk, at, 0, table, &locked)
        {
            return Ok((table, locked));
        }
        let page = VirtRange::new(at, F::PAGE.bytes()).ok_or(Error::Empty)?;
        self.check(page)?;
        self.table_for(walk, at, 0, pending).inspect_err(|_| {
            // Some of the tables on the way may be new.
            self.prune_beside_fork(walk, at, pending);
        })
    }

    fn decide_locked<'p, T>(
        &'p self,
        guard: &G::Guard,
        (at, seen): (VirtAddr, Option<Frame>),
        decide: impl FnOnce(Option<Mapping>) -> (EntryChange, T),
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> core::result::Result<T, Error> {
        let walk = self.walk(guard);
        let (table, locked) = self.lock_lowest(&walk, (at, seen), pending)?;
        self.decide_in(&walk, (at, F::PAGE), table, locked, decide, pending)
    }

    /// The decision about a page of this size, with the lock of its table.
    #[inline(always)]
    fn decide_in<'p, T>(
        &'p self,
        walk: &Walk<'_, M, F>,
        (at, size): (VirtAddr, PageSize),
        table: Frame,
        mut locked: Locked<'_, F>,
        decide: impl FnOnce(Option<Mapping>) -> (EntryChange, T),
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> core::result::Result<T, Error> {
        let level = F::level_of(size).ok_or(Error::Format(FormatError::Size(size)))?;
        let entry = walk.entry(table, F::index(at, level)).ok_or(Error::Malformed(at))?;
        let (value, index) = (entry.load(), entry.index());
        let (value, grouped) = (alone::<F>(value, level, index), is_grouped::<F>(value, level));
        let found = match F::decode(value, level) {
            Decoded::Absent => None,
            Decoded::Page(frame, attrs) => Some(Mapping { page: at, size, frame, attrs }),
            Decoded::Table(_) if level != 0 => return Err(Error::Occupied(at)),
            Decoded::Table(_) | Decoded::Malformed => return Err(Error::Malformed(at)),
        };
        // The lock is held, whichever way led to it: what a sweep's caller stored is visible.
        let (change, kept) = decide(found);
        if grouped && change != EntryChange::Keep {
            self.part_group(at, &entry, Users::Own);
        }
        let replaces = found.is_some() && matches!(change, EntryChange::Replace(..));
        let slot = Slot { at, level, entry, value, grouped: false };
        let result = self.apply(slot, found, change, &mut locked.count, &mut pending.gather);
        pending.flush_broken();
        let empty = locked.count == 0;
        // Unlocked before `kept` may be dropped.
        drop(locked);
        if replaces {
            self.flush_beside_fork(walk, (at, level), table);
        }
        if empty {
            self.prune_beside_fork(walk, at, pending);
        }
        result.map(|()| kept)
    }

    /// An entry of a table was changed so that old translations must go. Another CPU may have
    /// forked from these tables since the lock was taken. Then CPUs of the child may have cached
    /// the old entry, so all CPUs flush. Called without the lock, before the frame that was there
    /// is given back.
    ///
    /// Cost: a fence; in tables that fork, a walk.
    pub(super) fn flush_beside_fork(
        &self,
        walk: &Walk<'_, M, F>,
        (at, level): (VirtAddr, u8),
        table: Frame,
    ) {
        if self.space().is_none() {
            return;
        }
        // SeqCst: pairs with the fence in `fork_to`. Either this CPU sees that the way is shared,
        // or the child's CPUs see the new entry.
        fence(Ordering::SeqCst);
        if !self.leads_to(walk, at, level, table) {
            self.machine().flush_on(&self.machine().online(), Flush::All);
        }
    }

    /// Unlinks the empty tables on the way to `at`. Another CPU may fork from these tables at this
    /// moment. If the fork came first, CPUs of the child may have cached the way to these tables,
    /// so all CPUs flush.
    pub(super) fn prune_beside_fork(
        &self,
        walk: &Walk<'_, M, F>,
        at: VirtAddr,
        pending: &mut PendingFlush<'_, M, F, G>,
    ) {
        // A fork that copies upper tables walks them without their locks: there the tables stay,
        // for the next page, or until the space ends.
        if self.space().is_none() || !F::SHARED_IS_READ_ONLY {
            return;
        }
        let Some(spot) = walk.find(at, 0) else { return };
        if self.prune_at(walk, at, spot.level, &mut pending.gather) {
            // SeqCst: pairs with the fence in `fork_to`. Either this CPU sees the flag, or the fork
            // sees the unlinked entries.
            fence(Ordering::SeqCst);
            if self.forks() {
                self.machine().flush_on(&self.machine().online(), Flush::All);
            }
        }
    }

    /// Changes the entry of a page.
    #[inline(always)]
    pub(super) fn apply(
        &self,
        slot: Slot<'_, M>,
        found: Option<Mapping>,
        change: EntryChange,
        count: &mut u32,
        gather: &mut TlbGather,
    ) -> core::result::Result<(), Error> {
        match (change, found) {
            (EntryChange::Keep, _) | (EntryChange::Clear, None) => Ok(()),
            (EntryChange::Clear, Some(_)) => {
                slot.clear::<F>(count, gather);
                Ok(())
            }
            (EntryChange::Set(frame, attrs), Some(found)) if frame == found.frame => {
                self.check_kind(slot.at, attrs.flags)?;
                slot.set(self, attrs, gather)
            }
            (EntryChange::Set(..), Some(_)) => Err(Error::Occupied(slot.at)),
            (EntryChange::Replace(..), None) => Ok(()),
            (EntryChange::Set(frame, attrs), None) | (EntryChange::Replace(frame, attrs), _) => {
                self.check_kind(slot.at, attrs.flags)?;
                let size = F::size_at(slot.level).ok_or(Error::Malformed(slot.at))?;
                let value = F::page(size, frame, attrs)?;
                self.check_frames(&mut Lent::default(), slot.at, frame, size.frames())?;
                match found {
                    // A swap: hardware may set bits of the old entry meanwhile.
                    Some(found) => {
                        let same_frame = found.frame == frame;
                        if Self::must_break(found.attrs, attrs, same_frame) {
                            slot.break_first(self);
                        }
                        slot.entry.swap(value);
                        // Nothing is cached of a swap entry.
                        if self.paging().slot_of(found.frame).is_none() {
                            slot.drop_cached::<F>(gather);
                        }
                    }
                    None => {
                        self.break_way(slot.at, slot.level);
                        slot.entry.store(value);
                        *count += 1;
                    }
                }
                Ok(())
            }
        }
    }
}

impl<M: Machine> Slot<'_, M> {
    /// The page of this size that the entry maps.
    fn page(&self, size: PageSize) -> Option<VirtRange> {
        VirtRange::new(self.at.align_down(size), size.bytes())
    }

    /// Makes the entry of a page absent.
    pub(super) fn clear<F: Format>(&self, count: &mut u32, gather: &mut TlbGather) {
        // A swap: hardware may set bits of the entry meanwhile.
        self.entry.swap(0);
        *count -= 1;
        gather.state.set(State::BROKE, F::BREAK_BEFORE_MAKE);
        // Also for a `PROT_NONE` page, which is not cached: its table may become empty, and
        // hardware may have cached the way to it.
        self.drop_cached::<F>(gather);
    }

    /// Its translation must be flushed.
    fn drop_cached<F: Format>(&self, gather: &mut TlbGather) {
        let size = F::size_at(self.level).unwrap_or_default();
        if let Some(page) = self.page(size) {
            gather.add(page, size);
        }
    }

    /// Breaks the entry of a valid page, whatever marks hardware sets meanwhile.
    #[cold]
    fn break_first<F: Format, G: Concurrent>(&self, tables: &PageTables<M, F, G>) {
        let mut value = self.value;
        while let Err(now) = tables.break_page(self.at, self.level, &self.entry, value) {
            // With the lock held, it stays a page.
            value = now;
        }
    }

    /// Clears the accessed or the dirty bit of a page. Returns whether it was set.
    pub(super) fn unmark<F: Format>(&self, mark: Flags) -> core::result::Result<bool, Error> {
        let Some(size) = F::size_at(self.level) else { return Err(Error::Malformed(self.at)) };
        let mut value = self.value;
        while let Decoded::Page(frame, attrs) = F::decode(value, self.level) {
            let is_set = attrs.flags.contains(mark);
            let new = Attrs { flags: attrs.flags - mark, ..attrs };
            // Hardware may set the bits meanwhile; the other one is not lost.
            match is_set.then(|| Ok(self.entry.compare_exchange(value, F::page(size, frame, new)?)))
            {
                None => return Ok(false),
                Some(Ok(Ok(()))) => return Ok(true),
                Some(Ok(Err(now))) => value = now,
                Some(Err(error)) => return Err(Error::Format(error)),
            }
        }
        Ok(false)
    }

    /// Clears the dirty bit of a page. CPUs that have cached it do not set it again before the
    /// flush.
    pub(super) fn clean<F: Format>(
        &self,
        gather: &mut TlbGather,
    ) -> core::result::Result<(), Error> {
        if self.unmark::<F>(Flags::DIRTY)? {
            self.drop_cached::<F>(gather);
        }
        Ok(())
    }

    /// Gives a page these attributes. Its accessed and dirty bits stay, also those that hardware
    /// sets meanwhile.
    pub(super) fn set<F: Format, G: Concurrent>(
        &self,
        tables: &PageTables<M, F, G>,
        attrs: Attrs,
        gather: &mut TlbGather,
    ) -> core::result::Result<(), Error> {
        let Some(size) = F::size_at(self.level) else { return Err(Error::Malformed(self.at)) };
        let mut value = self.value;
        loop {
            let Decoded::Page(frame, old) = F::decode(value, self.level) else {
                return Err(Error::Malformed(self.at));
            };
            let marks = old.flags & (Flags::ACCESSED | Flags::DIRTY);
            let new = Attrs { flags: attrs.flags | marks, ..attrs };
            let encoded = F::page(size, frame, new)?;
            if encoded == value {
                return Ok(());
            }
            if PageTables::<M, F, G>::must_break(old, new, true) {
                // Hardware sets no bit of a broken entry.
                match tables.break_page(self.at, self.level, &self.entry, value) {
                    Ok(()) => {
                        self.entry.store(encoded);
                        return Ok(());
                    }
                    Err(now) => {
                        value = now;
                        continue;
                    }
                }
            }
            match self.entry.compare_exchange(value, encoded) {
                Ok(()) => {
                    if is_flush_needed(old, new)
                        && let Some(page) = self.page(size)
                    {
                        gather.add(page, size);
                    }
                    return Ok(());
                }
                Err(now) => value = now,
            }
        }
    }
}

/// Whether a cached translation with the old attributes would harm. A `PROT_NONE` page is not
/// cached.
fn is_flush_needed(old: Attrs, new: Attrs) -> bool {
    let lost = old.flags.difference(new.flags);
    let differs = !lost.is_empty() || old.cache != new.cache || old.key != new.key;
    differs && old.flags.intersects(Flags::RWX)
}
