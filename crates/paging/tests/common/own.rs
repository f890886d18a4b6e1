//! Changes of page tables, as the tests make them, with one safety argument for all.

#![allow(dead_code, reason = "each test uses some of it")]

use super::*;
use core::result::Result;
use grace::Concurrent;

type Done<'p, T, M, F, G> = Result<T, Failed<'p, M, F, G>>;
type Flush<'p, M, F, G> = PendingFlush<'p, M, F, G>;
type Changed<'p, T, M, F, G> = (T, Flush<'p, M, F, G>);

/// The calls of [`PageTables`] that change translations.
///
/// They are safe in tests. The tests map memory of the machine in software, which is reached by
/// translations only, and need no other mapping; no two active spaces have one tag. The machine
/// checks each access (I5), and reports what a test does wrong.
pub(crate) trait Own<M: Machine, F: Format, G: Concurrent> {
    fn as_tables(&self) -> &PageTables<M, F, G>;

    fn activate_own(&self) {
        // SAFETY: see `Own`.
        unsafe { self.as_tables().activate() }
    }

    fn map_own(&self, range: VirtRange, first: Frame, attrs: Attrs) -> Done<'_, (), M, F, G> {
        // SAFETY: see `Own`.
        unsafe { self.as_tables().map(range, first, attrs) }
    }

    fn map_with_own(
        &self,
        range: VirtRange,
        attrs: Attrs,
        supply: impl Supply,
    ) -> Done<'_, (), M, F, G> {
        // SAFETY: see `Own`.
        unsafe { self.as_tables().map_with(range, attrs, supply) }
    }

    fn map_frames_own(
        &self,
        start: VirtAddr,
        frames: &[Frame],
        attrs: Attrs,
    ) -> Done<'_, (), M, F, G> {
        // SAFETY: see `Own`.
        unsafe { self.as_tables().map_frames(start, frames, attrs) }
    }

    fn map_over_own(
        &self,
        range: VirtRange,
        first: Frame,
        attrs: Attrs,
        gone: impl FnMut(Mapping),
    ) -> Done<'_, Flush<'_, M, F, G>, M, F, G> {
        // SAFETY: see `Own`.
        unsafe { self.as_tables().map_over(range, first, attrs, gone) }
    }

    fn unmap_own(
        &self,
        range: VirtRange,
        gone: impl FnMut(Mapping),
    ) -> Done<'_, Flush<'_, M, F, G>, M, F, G> {
        // SAFETY: see `Own`.
        unsafe { self.as_tables().unmap(range, gone) }
    }

    /// Unmaps a range, and flushes. Returns the pages that were there.
    fn cleared(&self, range: VirtRange) -> Vec<Mapping> {
        let mut gone = Vec::new();
        self.unmap_own(range, |page| gone.push(page)).unwrap().flush();
        gone
    }

    fn protect_own(
        &self,
        range: VirtRange,
        rights: Flags,
    ) -> Done<'_, Flush<'_, M, F, G>, M, F, G> {
        // SAFETY: see `Own`.
        unsafe { self.as_tables().protect(range, rights) }
    }

    fn split_own(&self, at: VirtAddr, size: PageSize) -> Done<'_, Flush<'_, M, F, G>, M, F, G> {
        // SAFETY: see `Own`.
        unsafe { self.as_tables().split(at, size) }
    }

    fn prune_own(&self, range: VirtRange) -> Done<'_, Flush<'_, M, F, G>, M, F, G> {
        // SAFETY: see `Own`.
        unsafe { self.as_tables().prune(range) }
    }

    fn with_entry_own<T>(
        &self,
        guard: &G::Guard,
        at: VirtAddr,
        decide: impl FnOnce(Option<Mapping>) -> (EntryChange, T),
    ) -> Done<'_, Changed<'_, T, M, F, G>, M, F, G> {
        // SAFETY: see `Own`.
        unsafe { self.as_tables().with_entry(guard, at, decide) }
    }

    fn sweep_own<'p>(
        &'p self,
        range: VirtRange,
        pending: &mut Flush<'p, M, F, G>,
        change: impl FnMut(Mapping) -> SweepChange,
    ) -> Result<Option<VirtAddr>, Error> {
        // SAFETY: see `Own`.
        unsafe { self.as_tables().sweep(range, pending, change) }
    }

    /// Sweeps a range, and flushes.
    fn swept(&self, range: VirtRange, change: impl FnMut(Mapping) -> SweepChange) {
        let mut pending = self.as_tables().no_flush();
        self.sweep_own(range, &mut pending, change).unwrap();
        pending.flush();
    }

    /// Forks, and flushes.
    fn fork_own(&self, tag: impl Into<Tag>, pinned: bool) -> PageTables<M, F, G> {
        // SAFETY: see `Own`. The entries of memory hold references, and no other call is under way.
        let (child, pending) = unsafe { self.as_tables().fork(tag, pinned) }.unwrap();
        pending.flush();
        child
    }

    /// Moves pages, and flushes.
    fn relocate_own<'p>(&'p self, plan: Relocation<'p, M, F, G>) -> Result<(), Error> {
        let mut pending = self.as_tables().no_flush();
        // SAFETY: see `Own`.
        let moved = unsafe { self.as_tables().relocate(plan, &mut pending) };
        pending.flush();
        moved
    }

    /// Joins the pieces of a large page, and flushes.
    fn rejoin_own(&self, at: VirtAddr) -> Result<bool, Error> {
        let mut pending = self.as_tables().no_flush();
        // SAFETY: see `Own`.
        let joined = unsafe { self.as_tables().rejoin(at, &mut pending) };
        pending.flush();
        joined
    }
}

impl<M: Machine, F: Format, G: Concurrent> Own<M, F, G> for PageTables<M, F, G> {
    fn as_tables(&self) -> &PageTables<M, F, G> {
        self
    }
}
