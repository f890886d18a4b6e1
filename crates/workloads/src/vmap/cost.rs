//! The instructions, locked instructions and cache lines of one operation.

use super::{Areas, Implementations, NAME, Rig, for_each_areas, with_rig};
use crate::error::Error;
use crate::lab::{Lab, Scale};
use grace::Concurrent;
use machine::Machine;
use report::{Report, Row};

/// Pages of a map.
const SIZES: [usize; 2] = [4, 16];

/// Counts mapping and unmapping, and allocating and freeing, on CPU 0, if the lab can count. No
/// page is touched, so the machine need not translate. A flush is then only a counter.
///
/// # Errors
/// The machine has too little memory: it takes some hundred frames.
pub(crate) fn cost<M: Machine, G: Concurrent, R: Sync>(
    lab: &Lab<'_, M, G, R>,
) -> Result<Report, Error> {
    with_rig(lab, SIZES[1], |rig, report| {
        (lab.progress)("vmap: counting");
        Implementations::with(rig, |all| {
            for_each_areas!(all, |_, name, areas| { each(rig, areas, name, report)? });
            Ok(())
        })
    })
}

fn each<M: Machine, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    areas: &impl Areas,
    name: &str,
    report: &mut Report,
) -> Result<(), Error> {
    // Single-stepping takes seconds.
    let sizes = if rig.lab.scale == Scale::LEAST { 1 } else { SIZES.len() };
    for pages in SIZES.into_iter().take(sizes) {
        let short = || areas.unmap(areas.map(rig.frames(pages))?, pages);
        let kept = || areas.give_up(areas.keep(rig.frames(pages))?);
        let long = || areas.free(areas.alloc(pages)?);
        let mut count = |case: &str, operation: &(dyn Fn() -> Result<(), Error> + Sync)| {
            let like = Row::new(NAME, case, name, 1, pages);
            rig.on_first(areas, || {
                // Once, to report an error.
                operation()?;
                let mut prepare = || (rig.lab.host.quiet)();
                let mut once = || {
                    let _ = core::hint::black_box(operation());
                };
                rig.lab.cost(&mut report.rows, &like, &mut prepare, &mut once);
                Ok(())
            })
        };
        count("map and unmap", &short)?;
        count("vmap and vunmap", &kept)?;
        count("allocate and free", &long)?;
    }
    Ok(())
}
