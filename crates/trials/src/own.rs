//! Safe wrappers of the calls that change page tables, with one safety argument for all trials.

use grace::Concurrent;
use machine::{Frame, Machine, PageSize, VirtAddr, VirtRange};
use paging::{Attrs, Failed, Flags, Format, Mapping, PageTables, PendingFlush};

macro_rules! own {
    ($($own:ident is $call:ident($($argument:ident: $type:ty),*) -> $done:ty;)*) => {
        /// The calls of [`PageTables`] that change translations.
        ///
        /// They are safe in trials. The addresses are parts of the range in
        /// [`Environment`](crate::Environment). Each part belongs to one CPU, or the CPUs
        /// coordinate. The frames come from the frame source, and are given back after the flush.
        /// The trials test these conditions.
        pub(crate) trait Own<M: Machine, F: Format, G: Concurrent> {
            $(fn $own(&self, $($argument: $type),*) -> Result<$done, Failed<'_, M, F, G>>;)*
        }

        impl<M: Machine, F: Format, G: Concurrent> Own<M, F, G> for PageTables<M, F, G> {
            $(fn $own(&self, $($argument: $type),*) -> Result<$done, Failed<'_, M, F, G>> {
                // SAFETY: see `Own`.
                unsafe { self.$call($($argument),*) }
            })*
        }
    };
}

own! {
    map_own is map(range: VirtRange, first: Frame, attrs: Attrs) -> ();
    map_frames_own is map_frames(start: VirtAddr, frames: &[Frame], attrs: Attrs) -> ();
    unmap_own is unmap(range: VirtRange, gone: impl FnMut(Mapping)) -> PendingFlush<'_, M, F, G>;
    protect_own is protect(range: VirtRange, rights: Flags) -> PendingFlush<'_, M, F, G>;
    split_own is split(at: VirtAddr, size: PageSize) -> PendingFlush<'_, M, F, G>;
    prune_own is prune(range: VirtRange) -> PendingFlush<'_, M, F, G>;
}
