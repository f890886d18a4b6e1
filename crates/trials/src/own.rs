//! Changes of page tables, as the trials make them: with one argument why that is safe.

use grace::Concurrent;
use machine::{Frame, Machine, PageSize, VirtAddr, VirtRange};
use paging::{Attrs, Failed, Flags, Format, Mapping, PageTables, PendingFlush};

type Done<'p, T, M, F, G> = Result<T, Failed<'p, M, F, G>>;

/// The calls of [`PageTables`] that change translations.
///
/// All of it is safe in trials: the addresses are parts of what [`Ground`](crate::Ground) was given
/// for them, each part is one CPU's or is agreed upon, the frames are from the frame source, and
/// are given back after the flush. That is what is tried.
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
