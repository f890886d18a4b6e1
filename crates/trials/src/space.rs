//! A space for areas: made in a part of the addresses, checked at the end, dropped.

use crate::crew::{Told, seen};
use crate::ground::Ground;
use crate::own::Own;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use grace::Concurrent;
use machine::{Machine, PageSize, VirtRange};
use paging::Format;
use vmap::{Options, Vmap};

pub(crate) type Areas<M, F, G> = Vmap<M, F, G>;

/// Makes a space of so many MiB for each CPU of the machine, but no larger than a part.
pub(crate) fn make<M: Machine, F: Format, G: Concurrent>(
    ground: &Ground<'_, M, F, G>,
    part: u64,
    mib: u64,
    options: Options,
) -> Result<Areas<M, F, G>, String> {
    let part = ground.part(part)?;
    let bytes = (mib << 20) * ground.host.machine.count() as u64;
    let range = VirtRange::new(part.start(), bytes.min(part.len())).unwrap_or(part);
    let (tables, tlb_grace) = (Arc::clone(ground.tables), Arc::clone(ground.tlb_grace));
    ground.on_first(move || {
        // SAFETY: the part is this trial's. The mappings of earlier trials there were flushed when
        // their space was dropped, on all CPUs that took part. The other CPUs flush in `idle_exit`.
        unsafe { Vmap::try_new(tables, tlb_grace, range, options) }
            .of("could not make a space for areas")
    })
}

/// Checks that all areas are freed, and drops the space and its tables.
pub(crate) fn end<M: Machine, F: Format, G: Concurrent>(
    ground: &Ground<'_, M, F, G>,
    vmap: Areas<M, F, G>,
) -> Result<(), String> {
    // Twice, because a purge frees areas lazily, too.
    let purged = (0..2).try_for_each(|_| {
        ground.at_once(|_| {
            vmap.purge();
            vmap.idle();
            Ok(())
        })
    });
    let ended = ground.on_first(move || {
        let (left, space) = (vmap.get_vmalloc_info(), vmap.space());
        drop(vmap);
        // The part begins at a multiple of 1 GiB, and has the addresses from the end of the space
        // to the next multiple.
        let whole = space.len().next_multiple_of(PageSize::Size1G.bytes());
        let whole = VirtRange::new(space.start(), whole).unwrap_or(space);
        ground.tables.prune_own(whole).of("could not prune")?.flush();
        match (left.used, left.waiting, left.areas) {
            (0, 0, 0) => Ok(()),
            _ => seen(format!("all areas are freed and purged, but there is {left:?} left")),
        }
    });
    purged.and(ended)
}
