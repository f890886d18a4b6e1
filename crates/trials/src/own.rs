//! Safe wrappers of the calls that change page tables, with one safety argument for all trials.

use grace::Concurrent;
use machine::{Frame, Machine, PageSize, VirtAddr, VirtRange};
use paging::{Attrs, Failed, Flags, Format, Mapping, PageTables, PendingFlush};

type Done<'p, T, M, F, G> = Result<T, Failed<'p, M, F, G>>;

/// The calls of [`PageTables`] that change translations.
///
/// They are safe in trials. The addresses are parts of the range in [`Ground`](crate::Ground). Each
/// part belongs to one CPU, or the CPUs coordinate. The frames come from the frame source, and are
/// given back after the flush. The trials test these conditions.
pub(crate) trait Own<M: Machine, F: Format, G: Concurrent> {
    fn map_own(&self, range: VirtRange, first: Frame, attrs: Attrs) -> Done<'_, (), M, F, G>;
    fn map_frames_own(
        &self,
        start: VirtAddr,
        frames: &[Frame],
        attrs: Attrs,
    ) -> Done<'_, (), M, F, G>;
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
}

impl<M: Machine, F: Format, G: Concurrent> Own<M, F, G> for PageTables<M, F, G> {
    fn map_own(&self, range: VirtRange, first: Frame, attrs: Attrs) -> Done<'_, (), M, F, G> {
        // SAFETY: see `Own`.
        unsafe { self.map(range, first, attrs) }
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
}
