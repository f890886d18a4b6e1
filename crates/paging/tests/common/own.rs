//! Changes of page tables, as the tests make them, with one safety argument for all.

#![allow(dead_code, reason = "each test uses some of it")]

use super::*;
use core::result::Result;
use grace::Concurrent;

type Done<'p, T, M, F, G> = Result<T, Failed<'p, M, F, G>>;

type Changed<'p, T, M, F, G> = (T, PendingFlush<'p, M, F, G>);

/// The calls of [`PageTables`] that change translations.
///
/// They are safe in tests. The tests map memory of the machine in software, which is reached by
/// translations only. The machine checks each access (I5), and reports what a test does wrong.
pub(crate) trait Own<M: Machine, F: Format, G: Concurrent> {
    fn map_own(&self, range: VirtRange, first: Frame, attrs: Attrs) -> Done<'_, (), M, F, G>;
    fn map_with_own(
        &self,
        range: VirtRange,
        attrs: Attrs,
        supply: impl Supply,
    ) -> Done<'_, (), M, F, G>;
    fn map_frames_own(
        &self,
        start: VirtAddr,
        frames: &[Frame],
        attrs: Attrs,
    ) -> Done<'_, (), M, F, G>;
    fn map_over_own(
        &self,
        range: VirtRange,
        first: Frame,
        attrs: Attrs,
        gone: impl FnMut(Mapping),
    ) -> Done<'_, PendingFlush<'_, M, F, G>, M, F, G>;
    fn unmap_own(
        &self,
        range: VirtRange,
        gone: impl FnMut(Mapping),
    ) -> Done<'_, PendingFlush<'_, M, F, G>, M, F, G>;
    fn protect_own(
        &self,
        range: VirtRange,
        rights: Flags,
    ) -> Done<'_, PendingFlush<'_, M, F, G>, M, F, G>;
    fn split_own(
        &self,
        at: VirtAddr,
        size: PageSize,
    ) -> Done<'_, PendingFlush<'_, M, F, G>, M, F, G>;
    fn prune_own(&self, range: VirtRange) -> Done<'_, PendingFlush<'_, M, F, G>, M, F, G>;
    fn with_entry_own<T>(
        &self,
        guard: &G::Guard,
        at: VirtAddr,
        decide: impl FnOnce(Option<Mapping>) -> (EntryChange, T),
    ) -> Done<'_, Changed<'_, T, M, F, G>, M, F, G>;
    fn sweep_own<'p>(
        &'p self,
        range: VirtRange,
        pending: &mut PendingFlush<'p, M, F, G>,
        change: impl FnMut(Mapping) -> SweepChange,
    ) -> Result<Option<VirtAddr>, Error>;
}

impl<M: Machine, F: Format, G: Concurrent> Own<M, F, G> for PageTables<M, F, G> {
    fn map_own(&self, range: VirtRange, first: Frame, attrs: Attrs) -> Done<'_, (), M, F, G> {
        // SAFETY: see `Own`.
        unsafe { self.map(range, first, attrs) }
    }

    fn map_with_own(
        &self,
        range: VirtRange,
        attrs: Attrs,
        supply: impl Supply,
    ) -> Done<'_, (), M, F, G> {
        // SAFETY: see `Own`.
        unsafe { self.map_with(range, attrs, supply) }
    }

    fn map_frames_own(
        &self,
        start: VirtAddr,
        frames: &[Frame],
        attrs: Attrs,
    ) -> Done<'_, (), M, F, G> {
        // SAFETY: see `Own`.
        unsafe { self.map_frames(start, frames, attrs) }
    }

    fn map_over_own(
        &self,
        range: VirtRange,
        first: Frame,
        attrs: Attrs,
        gone: impl FnMut(Mapping),
    ) -> Done<'_, PendingFlush<'_, M, F, G>, M, F, G> {
        // SAFETY: see `Own`.
        unsafe { self.map_over(range, first, attrs, gone) }
    }

    fn unmap_own(
        &self,
        range: VirtRange,
        gone: impl FnMut(Mapping),
    ) -> Done<'_, PendingFlush<'_, M, F, G>, M, F, G> {
        // SAFETY: see `Own`.
        unsafe { self.unmap(range, gone) }
    }

    fn protect_own(
        &self,
        range: VirtRange,
        rights: Flags,
    ) -> Done<'_, PendingFlush<'_, M, F, G>, M, F, G> {
        // SAFETY: see `Own`.
        unsafe { self.protect(range, rights) }
    }

    fn split_own(
        &self,
        at: VirtAddr,
        size: PageSize,
    ) -> Done<'_, PendingFlush<'_, M, F, G>, M, F, G> {
        // SAFETY: see `Own`.
        unsafe { self.split(at, size) }
    }

    fn prune_own(&self, range: VirtRange) -> Done<'_, PendingFlush<'_, M, F, G>, M, F, G> {
        // SAFETY: see `Own`.
        unsafe { self.prune(range) }
    }

    fn with_entry_own<T>(
        &self,
        guard: &G::Guard,
        at: VirtAddr,
        decide: impl FnOnce(Option<Mapping>) -> (EntryChange, T),
    ) -> Done<'_, Changed<'_, T, M, F, G>, M, F, G> {
        // SAFETY: see `Own`.
        unsafe { self.with_entry(guard, at, decide) }
    }

    fn sweep_own<'p>(
        &'p self,
        range: VirtRange,
        pending: &mut PendingFlush<'p, M, F, G>,
        change: impl FnMut(Mapping) -> SweepChange,
    ) -> Result<Option<VirtAddr>, Error> {
        // SAFETY: see `Own`.
        unsafe { self.sweep(range, pending, change) }
    }
}
