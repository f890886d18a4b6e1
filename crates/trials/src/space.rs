//! A space for areas, for trials: made in a part of the addresses, looked through at the end, given
//! back.

use crate::crew::{Told, seen};
use crate::ground::Ground;
use crate::own::Own;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use grace::Concurrent;
use machine::{Machine, PageSize, VirtRange};
use paging::X86_64L4;
use vmap::{Options, Vmap};

pub(crate) type Areas<M, G> = Vmap<M, X86_64L4, G>;

/// Makes a space of so many MiB, which is no more than a part has, for each CPU of the machine.
pub(crate) fn make<M: Machine, G: Concurrent>(
    ground: &Ground<'_, M, G>,
    part: u64,
    mib: u64,
    options: Options,
) -> Result<Areas<M, G>, String> {
    let part = ground.part(part)?;
    let bytes = (mib << 20) * ground.host.machine.count() as u64;
    let range = VirtRange::new(part.start(), bytes.min(part.len())).unwrap_or(part);
    let (tables, flushes) = (Arc::clone(ground.tables), Arc::clone(ground.flushes));
    ground.on_first(move || {
        // SAFETY: the part is this trial's. What earlier ones have mapped there was flushed when
        // their space was dropped, on all CPUs that took part; the others flush when they are back.
        unsafe { Vmap::try_new(tables, flushes, range, options) }.of("to make a space for areas")
    })
}

/// All areas are freed: looks whether nothing is left, and gives the tables back.
pub(crate) fn end<M: Machine, G: Concurrent>(
    ground: &Ground<'_, M, G>,
    vmap: Areas<M, G>,
) -> Result<(), String> {
    // What the last of them gives up waits once more.
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
        // The part begins at a border of 1 GiB, and what is behind the space up to the next is in
        // it.
        let whole = space.len().next_multiple_of(PageSize::Size1G.bytes());
        let whole = VirtRange::new(space.start(), whole).unwrap_or(space);
        ground.tables.prune_own(whole).of("to prune")?.flush();
        match (left.used, left.waiting, left.areas) {
            (0, 0, 0) => Ok(()),
            _ => seen(format!("all areas are freed and purged, and this is left: {left:?}")),
        }
    });
    purged.and(ended)
}
