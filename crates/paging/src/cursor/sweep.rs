//! Going through the pages of a range with the lock of every table that a page could appear in.
//!
//! `unmap` and `protect` need no lock where there is no page. A sweep takes it nevertheless, so
//! that it is ordered with each [`with_entry`](PageTables::with_entry) in the range: see `entry`.

use super::{EntryChange, Error, Slot, Users, covers};
use crate::format::{Attrs, Decoded, Flags, Format};
use crate::lock::lock;
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use crate::walk::{Mapping, Walk, beyond};
use grace::Concurrent;
use machine::{Frame, Machine, VirtAddr, VirtRange};

/// The change of a page; returned by the closure of [`PageTables::sweep`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SweepChange {
    /// The page stays as it is.
    Keep,
    /// The page is unmapped.
    Clear,
    /// The page gets these attributes. It keeps its frame, and its accessed and dirty bits beside
    /// those of the attributes.
    Set(Attrs),
    /// The page loses its accessed bit. No flush is pending: a CPU that has cached the translation
    /// does not set the bit again until it loads the entry anew.
    Age,
    /// The page loses its dirty bit, if the sweep has reported it. A bit that hardware sets later
    /// stays.
    Clean,
    /// The page's entry maps this frame with these attributes instead, as with
    /// [`EntryChange::Replace`].
    Replace(Frame, Attrs),
    /// The page stays, and the sweep ends before it.
    Stop,
}

/// How deep a sweep goes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// To the pages.
    Pages,
    /// To the lowest tables, whose locks it takes.
    Tables,
}

/// Says of a locked table whether it is this space's own: see [`PageTables::sweep_tables`].
pub(super) type Owns<'a, M, F> = &'a dyn Fn(&Walk<'_, M, F>, VirtAddr, u8, Frame) -> Option<bool>;

/// The reason why a sweep ends early.
enum Ended {
    Stopped(VirtAddr),
    Failed(Error),
}

impl From<Error> for Ended {
    fn from(error: Error) -> Ended {
        Ended::Failed(error)
    }
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Goes through the pages of a range in ascending order, with the lock of each lowest table of
    /// the range held in turn, also of a table without pages. `change` is called for each page and
    /// returns its change.
    ///
    /// Where a table is absent, the sweep locks the upper table that would lead to it, and reads
    /// the entry again. So it is ordered with each [`with_entry`](Self::with_entry) in the range:
    /// the `decide` of one that comes later sees everything that this CPU stored before the sweep.
    ///
    /// Returns the address of the page at which `change` returned [`SweepChange::Stop`], or `None`
    /// at the end of the range. To go on, the caller does the flush, and sweeps from that address.
    ///
    /// The flush of the changes is added to `pending`: for pages that are cleared, for pages that
    /// lost a right or got another key or memory type, and for user tables that became empty.
    /// Kernel tables stay: see [`prune`](Self::prune). Where the architecture demands
    /// break-before-make, cleared pages are also flushed before the lock of their table is given
    /// up, so that a fault may store new pages at once.
    ///
    /// An accessed or dirty bit that hardware sets between `change` and a clearing is not reported.
    /// [`unmap`](Self::unmap) reports all.
    ///
    /// Cost: a walk and one locked instruction for each lowest table; the same for each upper table
    /// with absent entries in the range, and a load for each of these entries, which stand for 2
    /// MiB, 1 GiB or 512 GiB with a granule of 4 KiB; for each page a load, and one locked
    /// instruction if it changes. No allocation.
    ///
    /// # Context
    /// Not in an interrupt. `change` takes no lock of a table, takes no other lock that is held
    /// around a call on these tables, allocates nothing, waits for no CPU, and does not call back
    /// into these tables: that would deadlock. Nor does it give a frame back, which is for after
    /// the flush.
    ///
    /// # Errors
    /// - [`Error::Empty`], [`Error::Misaligned`], [`Error::NotCanonical`], [`Error::Kernel`]: not a
    ///   range of these tables.
    /// - [`Error::Cut`]: the range cuts a page in two.
    /// - [`Error::NotTheTables`]: `pending` is of other tables.
    ///
    /// Nothing has changed then. These stop the call half-way, before the page that is at fault;
    /// the flush for the pages before it is pending:
    /// - [`Error::Global`], [`Error::NotUser`], [`Error::Format`]: the page cannot have the
    ///   attributes that `change` returned.
    /// - [`Error::Frames`]: no memory to make a table this space's own, that a fork shares. After
    ///   [`unshare`](Self::unshare), or [`unshare_ends`](Self::unshare_ends) and
    ///   [`leave_shared`](Self::leave_shared), there is none.
    /// - [`Error::Malformed`]: the tables are corrupt.
    ///
    /// If `change` panics, the changes before that stay, and their flush is pending.
    ///
    /// # Safety
    /// - *Addresses*: the pages that change are the caller's to change, and nothing relies on a
    ///   mapping or on rights that are removed.
    /// - *Frames*: they are the caller's to lend with the new rights.
    /// - *Flush*: until `pending` is flushed, the removed rights are in effect, the frames of
    ///   cleared pages are not given back, and these pages are not mapped again. A forgotten value
    ///   is not a flush.
    pub unsafe fn sweep<'p>(
        &'p self,
        range: VirtRange,
        pending: &mut PendingFlush<'p, M, F, G>,
        mut change: impl FnMut(Mapping) -> SweepChange,
    ) -> core::result::Result<Option<VirtAddr>, Error> {
        if !pending.is_of(self) {
            return Err(Error::NotTheTables);
        }
        self.check(range)?;
        self.check_ends(&self.walk(&G::pin()), range)?;
        self.sweep_tables(range, pending, None, Depth::Pages, |page, _| change(page))
    }

    /// Unlinks the tables of programs in a range that are empty, as [`sweep`](Self::sweep) does
    /// unless [`PendingFlush::keep_tables`] says otherwise. No page changes. Tables that a fork
    /// shares are made this space's own first, which may need memory. Otherwise no entry of a
    /// lowest table is read.
    ///
    /// # Context
    /// Not in an interrupt, and with no lock of a table held.
    ///
    /// # Errors
    /// As for [`sweep`](Self::sweep), but for [`Error::Cut`]; [`Error::Frames`].
    pub fn unlink_empty<'p>(
        &'p self,
        range: VirtRange,
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> core::result::Result<(), Error> {
        if !pending.is_of(self) {
            return Err(Error::NotTheTables);
        }
        self.check(range)?;
        self.sweep_tables(range, pending, None, Depth::Tables, |_, _| SweepChange::Keep).map(drop)
    }

    /// The loop of a sweep. `owns` is called with the lock of each table held, with an address, the
    /// level and the table. It says whether the table is this space's own, or `None` if the way
    /// leads elsewhere by now, so that the sweep walks again. A table that is not stays, also if it
    /// becomes empty. Without `owns`, the tables are made this space's own.
    pub(super) fn sweep_tables<'p>(
        &'p self,
        range: VirtRange,
        pending: &mut PendingFlush<'p, M, F, G>,
        owns: Option<Owns<'_, M, F>>,
        depth: Depth,
        mut change: impl FnMut(Mapping, bool) -> SweepChange,
    ) -> core::result::Result<Option<VirtAddr>, Error> {
        let mut next = Some(range.start());
        while let Some(at) = next.filter(|at| range.contains(*at)) {
            // One guard for each table, so that a long range holds up no grace period.
            let guard = G::pin();
            let walk = self.walk(&guard);
            let spot = walk.find(at, 0).ok_or(Error::Malformed(at))?;
            if spot.found == Decoded::Malformed {
                return Err(Error::Malformed(at));
            }
            let (table, level) = (spot.entry.table(), spot.level);
            if owns.is_none() && !spot.own && self.forks() {
                drop(guard);
                self.with_memory(|| self.own_at(at, |_| true))?;
                continue;
            }
            // Also if the entry is absent: a page or a table may appear there until the lock is
            // held, and none that a CPU decided on by what was stored before this sweep does later.
            let Some(locked) = lock::<M, F>(self.machine(), table, at)? else { continue };
            let own = owns.map_or(Some(true), |owns| owns(&walk, at, level, table));
            let Some(own) = own else { continue };
            let users = if own { Users::Own } else { Users::Sharers };
            let mut changing = self.changing(&walk, (at, level), locked, users, pending);
            let (end, result) = match depth {
                Depth::Tables if level == 0 => (beyond::<F>(at, 1), Ok(())),
                _ => changing.each(range, table, &mut |pending, count, slot| {
                    if depth == Depth::Tables {
                        return Ok(());
                    }
                    let change = &mut |page| change(page, own);
                    self.sweep_page(range, pending, count, (slot, users), change)
                }),
            };
            if !own {
                // Unlocked here, so that it is not unlinked.
                drop(changing.take_lock());
            }
            drop(changing);
            match result {
                Ok(()) => next = end,
                Err(Ended::Stopped(at)) => return Ok(Some(at)),
                Err(Ended::Failed(error)) => return Err(error),
            }
        }
        Ok(None)
    }

    fn sweep_page(
        &self,
        range: VirtRange,
        pending: &mut PendingFlush<'_, M, F, G>,
        count: &mut u32,
        (slot, users): (Slot<'_, M>, Users),
        change: &mut impl FnMut(Mapping) -> SweepChange,
    ) -> core::result::Result<(), Ended> {
        let (Some(size), Decoded::Page(frame, attrs)) =
            (F::size_at(slot.level), F::decode(slot.value, slot.level))
        else {
            return Err(Error::Malformed(slot.at).into());
        };
        let page = slot.at.align_down(size);
        if !covers(range, page, size) {
            return Err(Error::Cut(page, size).into());
        }
        let old = attrs;
        let change = change(Mapping { page, size, frame, attrs });
        let stays = matches!(change, SweepChange::Keep | SweepChange::Stop);
        if slot.grouped && !stays && change != SweepChange::Clear {
            self.part_group(page, &slot.entry, users);
        }
        match change {
            SweepChange::Keep => {}
            SweepChange::Clear => slot.clear::<F>(count, &mut pending.gather),
            SweepChange::Set(attrs) => {
                self.check_kind(page, attrs.flags)?;
                slot.set(self, attrs, &mut pending.gather)?;
            }
            SweepChange::Age => drop(slot.unmark::<F>(Flags::ACCESSED)?),
            SweepChange::Clean if old.flags.contains(Flags::DIRTY) => {
                slot.clean::<F>(&mut pending.gather)?;
            }
            SweepChange::Clean => {}
            SweepChange::Replace(new, attrs) => {
                let found = Some(Mapping { page, size, frame, attrs: old });
                let change = EntryChange::Replace(new, attrs);
                self.apply(slot, found, change, count, &mut pending.gather)?;
            }
            SweepChange::Stop => return Err(Ended::Stopped(page)),
        }
        Ok(())
    }
}
