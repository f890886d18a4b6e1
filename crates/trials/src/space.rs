//! A space for areas: made in a part of the addresses, checked at the end, dropped.

use crate::environment::Environment;
use crate::worker::{Context, Outcome, fail};
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use grace::Concurrent;
use machine::{Frame, Machine, PageSize, VirtAddr, VirtRange};
use paging::{Attrs, Format};
use vmap::{Options, Vmap};

pub(crate) type Areas<M, F, G> = Vmap<M, F, G>;

/// The call that makes an area.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum AreaKind {
    Ram,
    Vmap,
    Vmalloc,
}

impl AreaKind {
    /// Maps frames as an area. `vmalloc` has frames of its own.
    pub(crate) fn map<M: Machine, F: Format, G: Concurrent>(
        self,
        vmap: &Areas<M, F, G>,
        frames: &[Frame],
    ) -> Outcome<VirtAddr> {
        match self {
            AreaKind::Ram => vmap.vm_map_ram(frames, Attrs::KERNEL_RW).of("vm_map_ram"),
            _ => vmap.vmap(frames, Attrs::KERNEL_RW).of("vmap"),
        }
    }

    /// Frees an area of the trial, which no CPU uses any more.
    pub(crate) fn free<M: Machine, F: Format, G: Concurrent>(
        self,
        vmap: &Areas<M, F, G>,
        at: VirtAddr,
        pages: usize,
    ) -> Outcome {
        match self {
            // SAFETY: no CPU uses the area any more.
            AreaKind::Ram => unsafe { vmap.vm_unmap_ram(at, pages) }.of("vm_unmap_ram"),
            // SAFETY: no CPU uses the area any more.
            AreaKind::Vmap => unsafe { vmap.vunmap(at) }.of("vunmap"),
            // SAFETY: no CPU uses the area any more.
            AreaKind::Vmalloc => unsafe { vmap.vfree(at) }.of("vfree"),
        }
    }
}

/// Makes a space of so many MiB for each CPU of the machine, but no larger than a part.
pub(crate) fn make<M: Machine, F: Format, G: Concurrent>(
    env: &Environment<'_, M, F, G>,
    part: u64,
    mib: u64,
    options: Options,
) -> Result<Areas<M, F, G>, String> {
    let part = env.part(part)?;
    let bytes = (mib << 20) * env.host.machine.count() as u64;
    let range = VirtRange::new(part.start(), bytes.min(part.len())).unwrap_or(part);
    let (tables, tlb_grace) = (Arc::clone(env.tables), Arc::clone(env.tlb_grace));
    env.on_first(move || {
        // SAFETY: the part is this trial's. The mappings of earlier trials there were flushed when
        // their space was dropped, on all CPUs that took part. The other CPUs flush in `idle_exit`.
        unsafe { Vmap::try_new(tables, tlb_grace, range, options) }
            .of("could not make a space for areas")
    })
}

/// Checks that all areas are freed, and drops the space and its tables.
pub(crate) fn end<M: Machine, F: Format, G: Concurrent>(
    env: &Environment<'_, M, F, G>,
    vmap: Areas<M, F, G>,
) -> Result<(), String> {
    // Twice, because a purge frees areas lazily, too.
    let purged = (0..2).try_for_each(|_| {
        env.at_once(|_| {
            vmap.purge();
            vmap.idle();
            Ok(())
        })
    });
    let ended = env.on_first(move || {
        let (left, space) = (vmap.get_vmalloc_info(), vmap.space());
        drop(vmap);
        // The part begins at a multiple of 1 GiB, and has the addresses from the end of the space
        // to the next multiple.
        let whole = space.len().next_multiple_of(PageSize::Size1G.bytes());
        let whole = VirtRange::new(space.start(), whole).unwrap_or(space);
        env.prune(whole)?;
        match (left.used, left.waiting, left.areas) {
            (0, 0, 0) => Ok(()),
            _ => fail(format!("all areas are freed and purged, but there is {left:?} left")),
        }
    });
    purged.and(ended)
}
