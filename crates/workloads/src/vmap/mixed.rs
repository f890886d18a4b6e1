//! Areas of mixed sizes and lifetimes, allocated on one CPU and freed on another.
//!
//! All CPUs share an array of places. A CPU allocates an area, writes a word in each page, puts the
//! area into a place, and frees the area that was there. With eight CPUs, seven of eight such areas
//! are another CPU's. Some places are chosen more often than others, so some areas live long.

use super::times::in_turns;
use super::{Areas, Implementations, NAME, Rig, fewer};
use crate::barrier::{Measured, Watch, at_once};
use crate::error::Error;
use crate::timing::Timer;
use alloc::format;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use grace::Concurrent;
use machine::{Machine, Translated, VirtAddr};
use oorandom::Rand32;
use report::{Report, Target};

/// Areas alive at once, for each CPU.
const PLACES: usize = 64;
/// Pages of the largest area.
const PAGES: usize = 32;
const CASE: &str = "allocate, touch, free another's";

/// Measures on the fewest CPUs and on the most.
pub(super) fn measure<M: Machine + Translated, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    three: &Implementations<M, G>,
    report: &mut Report,
) -> Result<(), Error> {
    let all = rig.lab.cpus;
    for cpus in [all.first(), all.last()].into_iter().flatten().copied() {
        (rig.lab.progress)(&format!("vmap: mixed sizes on {cpus} CPUs"));
        let times = rig.lab.scale.batches * 16;
        let mut seed = 0;
        let [old, nodes, new] = in_turns!(rig, three, cpus, times, |areas, times| {
            // The same for all three.
            seed += 1;
            round(rig, areas, cpus, times, seed / 3)
        });
        for found in [&old, &nodes, &new] {
            report.rows.extend(found.rows(CASE, cpus, PAGES));
        }
        let target = format!("time of areas that others free, of that of nodes, {cpus} CPUs");
        report.targets.push(Target::at_most(NAME, target, new.time.times(&nodes.time), 1.0));
    }
    Ok(())
}

fn round<M: Machine + Translated, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    areas: &impl Areas,
    cpus: usize,
    times: usize,
    seed: usize,
) -> Result<Measured, Error> {
    let places: Vec<AtomicU64> = (0..PLACES * cpus).map(|_| AtomicU64::new(0)).collect();
    let free = |place: &AtomicU64, new: u64| {
        // AcqRel: the writes to an area happen before it is freed on another CPU. Address 0 stands
        // for no area.
        match place.swap(new, Ordering::AcqRel) {
            0 => Ok(()),
            at => areas.free(VirtAddr::new(at)),
        }
    };
    let measure = |cpu: usize, watch: &Watch<'_, M>| {
        rig.inside(areas, || {
            let timer = Timer::new(rig.lab.time);
            let mut random = Rand32::new((seed << 8 | cpu) as u64);
            let mut once = || {
                let pages = 1 + low(&mut random, PAGES);
                let at = areas.alloc(pages)?;
                rig.touch(at, pages, cpu)?;
                free(&places[low(&mut random, places.len())], at.get())
            };
            // Until most places are filled.
            rig.repeat((2 * PLACES).min(times), &mut once)?;
            watch.start();
            let mut done = Ok(());
            let time = timer.each(times, || done = rig.repeat(times, &mut once));
            watch.stop();
            done.map(|()| time)
        })
    };
    let taken = at_once(rig.lab, cpus, measure, Vec::new());
    rig.on_first(areas, || places.iter().try_for_each(|place| free(place, 0)))?;
    taken
}

/// A number below `end`, small ones more often.
fn low(random: &mut Rand32, end: usize) -> usize {
    let mut below = || random.rand_range(0..end as u32) as usize;
    below().min(below())
}
