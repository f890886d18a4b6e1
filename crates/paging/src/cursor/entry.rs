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

use super::{Changed, EntryChange, Error, LockedEntry, LockedTable, PageEntry, Result};
use crate::format::{Decoded, Format, Geometry, alone, is_grouped};
use crate::lock::{Locked, lock};
use crate::pending::PendingFlush;
use crate::sync::fence;
use crate::tables::PageTables;
use crate::walk::{Found, FoundTable, Mapping, Walk};
use core::sync::atomic::Ordering;
use grace::Concurrent;
use machine::{Flush, Frame, Machine, VirtAddr, VirtRange};

/// A decision of any caller.
type AnyDecision<'a> = dyn FnMut(Option<Mapping>) -> (EntryChange, ()) + 'a;

/// Calls `change` with `decide` behind a pointer. So the compiler makes one copy of the code below,
/// not one for each caller. If `change` succeeds, it has called `decide`; returns what `decide`
/// returned with the change.
fn compiled_once<T>(
    decide: impl FnOnce(Option<Mapping>) -> (EntryChange, T),
    change: impl FnOnce(&mut AnyDecision<'_>) -> core::result::Result<(), Error>,
) -> core::result::Result<T, Error> {
    let (mut decide, mut kept) = (Some(decide), None);
    change(&mut |found| match decide.take() {
        Some(decide) => {
            let (change, with) = decide(found);
            kept = Some(with);
            (change, ())
        }
        None => (EntryChange::Keep, ()),
    })?;
    kept.ok_or(Error::Empty)
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Locks the lowest table for `at`, and changes the entry of the page of level 0 that contains
    /// `at` as `decide` says. If there is no such table, makes it first. `decide` gets the page
    /// that the entry maps, if any. It is called at most once, with the table's lock held. Returns
    /// what `decide` returned with the change.
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
        let at = at.align_down(F::PAGE);
        let _published = self.publish_page(at, F::PAGE);
        self.with_flush(|pending| self.decide_small(guard, at, None, decide, pending))
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
        // SAFETY: the caller's promise is passed on.
        unsafe { self.with_found_at(guard, found, found.page, decide) }
    }

    /// As [`with_found`](Self::with_found), at another address than that of the look. Nothing is
    /// walked again if one lowest table decides about both.
    ///
    /// # Errors
    /// As for [`with_entry`](Self::with_entry).
    ///
    /// # Safety
    /// As for [`with_found`](Self::with_found), for the page at `at`.
    pub unsafe fn with_found_at<'p, 'g, T>(
        &'p self,
        guard: &'g G::Guard,
        found: &Found<'g>,
        at: VirtAddr,
        decide: impl FnOnce(Option<Mapping>) -> (EntryChange, T),
    ) -> Result<'p, Changed<'p, T, M, F, G>, M, F, G> {
        let at = at.align_down(F::PAGE);
        let _published = self.publish_page(at, F::PAGE);
        let one_table = at.align_down(F::LARGE) == found.page.align_down(F::LARGE);
        let seen = found.table.filter(|_| found.root == self.root() && one_table);
        self.with_flush(|pending| self.decide_small(guard, at, seen, decide, pending))
    }

    /// As [`with_entry`](Self::with_entry), for a page of [`Geometry::LARGE`] at `at` (2 MiB, with
    /// a granule of 4 KiB): locks the table of level 1, and changes its entry. `decide` gets the
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
        let at = at.align_down(F::LARGE);
        let _published = self.publish_page(at, F::LARGE);
        self.with_flush(|pending| {
            compiled_once(decide, |decide| self.decide_large(guard, at, decide, pending))
        })
    }

    #[cold]
    fn decide_large<'p>(
        &'p self,
        guard: &G::Guard,
        at: VirtAddr,
        decide: &mut AnyDecision<'_>,
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> core::result::Result<(), Error> {
        self.check(VirtRange::new(at, F::LARGE.bytes()).ok_or(Error::Empty)?)?;
        let walk = self.walk(guard);
        let locked = self.table_to_decide(&walk, at, 1, pending)?;
        self.locked_table(walk, at, 1, locked, pending).decide(decide)
    }

    /// A decision about a small page, whose table an earlier walk may have found.
    fn decide_small<'p, T>(
        &'p self,
        guard: &G::Guard,
        at: VirtAddr,
        seen: Option<FoundTable>,
        decide: impl FnOnce(Option<Mapping>) -> (EntryChange, T),
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> core::result::Result<T, Error> {
        if cfg!(feature = "small") {
            compiled_once(decide, |decide| self.decide_at(guard, at, seen, decide, pending))
        } else {
            self.decide_at(guard, at, seen, decide, pending)
        }
    }

    /// As [`decide_small`](Self::decide_small). The table that was seen counts if it is still on
    /// the way.
    #[cfg_attr(not(feature = "small"), inline(always))]
    fn decide_at<'p, T>(
        &'p self,
        guard: &G::Guard,
        at: VirtAddr,
        seen: Option<FoundTable>,
        decide: impl FnOnce(Option<Mapping>) -> (EntryChange, T),
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> core::result::Result<T, Error> {
        let walk = self.walk(guard);
        // Not the kernel's tables, which all spaces lead to.
        let seen = seen.filter(|_| self.space().is_none() || !F::is_upper(at));
        let locked = if let Some(seen) = seen
            && let Some(locked) = lock::<M, F>(self.machine(), seen.table, at)?
            && self.may_still_change(&walk, at, seen, &locked)
        {
            locked
        } else {
            self.check(VirtRange::new(at, F::PAGE.bytes()).ok_or(Error::Empty)?)?;
            self.table_to_decide(&walk, at, 0, pending)?
        };
        self.locked_table(walk, at, 0, locked, pending).decide(decide)
    }

    /// As [`table_for`](Self::table_for), for a decision.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn table_to_decide<'g, 'p: 'g>(
        &'p self,
        walk: &Walk<'g, M, F>,
        at: VirtAddr,
        level: u8,
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> core::result::Result<Locked<'g, F>, Error> {
        self.table_for(walk, at, level, pending).inspect_err(|_| {
            // Some of the tables on the way may be new.
            self.prune_during_fork(walk, at, pending);
        })
    }

    /// An entry of a table was changed so that old translations must go. Another CPU may have
    /// forked from these tables since the lock was taken. Then CPUs of the child may have cached
    /// the old entry, so all CPUs flush. Called without the lock, before the frame that was there
    /// is given back.
    ///
    /// Cost: a fence; in tables that fork, a walk.
    pub(super) fn flush_during_fork(
        &self,
        walk: &Walk<'_, M, F>,
        at: VirtAddr,
        level: u8,
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
    pub(super) fn prune_during_fork(
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
}

impl<M: Machine, F: Format, G: Concurrent> LockedTable<'_, '_, M, F, G> {
    /// Changes the entry for its address as `decide` says.
    #[cfg_attr(not(feature = "small"), inline(always))]
    fn decide<T>(
        mut self,
        decide: impl FnOnce(Option<Mapping>) -> (EntryChange, T),
    ) -> core::result::Result<T, Error> {
        let (page, level) = (self.at, self.level);
        let size = F::size_at(level).ok_or(Error::Malformed(page))?;
        let index = F::index(page, level);
        let entry = self.walk.entry(self.table, index).ok_or(Error::Malformed(page))?;
        let value = entry.load();
        let (value, grouped) = (alone::<F>(value, level, index), is_grouped::<F>(value, level));
        let found = match F::decode(value, level) {
            Decoded::Absent => None,
            Decoded::Page(frame, attrs) => Some(Mapping { page, size, frame, attrs }),
            Decoded::Table(_) if level != 0 => return Err(Error::Occupied(page)),
            Decoded::Table(_) | Decoded::Malformed => return Err(Error::Malformed(page)),
        };
        // The lock is held, whichever way led to it: the stores of a sweep's caller are visible.
        let (change, kept) = decide(found);
        let replaced = matches!(change, EntryChange::Replace(..)) && found.is_some();
        let entry = PageEntry { at: page, level, entry, value };
        let result = LockedEntry { table: &mut self, entry, grouped }.apply(found, change);
        // Unlocked before `kept` may be dropped.
        self.end_decision(replaced);
        result.map(|()| kept)
    }

    /// Unlocks the table after a decision, which may have replaced a page.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn end_decision(mut self, replaced: bool) {
        let (empty, walk) = (self.unlock(), self.walk);
        if replaced {
            self.tables.flush_during_fork(&walk, self.at, self.level, self.table);
        }
        if empty {
            self.tables.prune_during_fork(&walk, self.at, self.pending);
        }
    }
}
