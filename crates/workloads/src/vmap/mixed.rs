//! Areas of mixed sizes and lifetimes, allocated on one CPU and freed on another.
//!
//! All CPUs share an array of places. A CPU allocates an area, writes a word in each page, puts the
//! area into a place, and frees the area that was there. With eight CPUs, seven of eight such areas
//! are another CPU's. Some places are chosen more often than others, so some areas live long.

use super::random::Random;
use super::{AFTER, Areas, BEFORE, Both, NAME, NODES, Rig, fewer};
use crate::error::Error;
use crate::mean::{Rounds, Timer};
use crate::meeting::{Taken, Watch, at_once};
use alloc::format;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use grace::Concurrent;
use machine::{Machine, Translated, VirtAddr};
use report::{Report, Row, Target};

/// Areas alive at once, for each CPU.
const PLACES: usize = 64;
/// Pages of the largest area.
const PAGES: usize = 32;
const CASE: &str = "allocate, touch, free another's";

/// Measures on the fewest CPUs and on the most.
pub(super) fn measure<M: Machine + Translated, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    both: &Both<M, G>,
    report: &mut Report,
) -> Result<(), Error> {
    let all = rig.lab.cpus;
    for cpus in [all.first(), all.last()].into_iter().flatten().copied() {
        (rig.lab.progress)(&format!("vmap: mixed sizes on {cpus} CPUs"));
        let [mut old, mut nodes, mut new] = [const { Rounds::new() }; 3];
        let times = rig.lab.scale.batches * 16;
        let fewer = fewer(times, cpus).max(2);
        for seed in 0..rig.lab.scale.rounds {
            old.push(round(rig, &both.old, cpus, fewer, seed)?.time);
            nodes.push(round(rig, &both.nodes, cpus, times, seed)?.time);
            new.push(round(rig, &both.new, cpus, times, seed)?.time);
        }
        for (name, times) in [(BEFORE, &old), (NODES, &nodes), (AFTER, &new)] {
            let row = Row::new(NAME, CASE, name, cpus, PAGES);
            report.rows.extend(times.rows(&row, "time", "ns"));
        }
        let target = format!("time of areas that others free, of that of nodes, {cpus} CPUs");
        report.targets.push(Target::at_most(NAME, target, new.times(&nodes), 1.0));
    }
    Ok(())
}

fn round<M: Machine + Translated, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    areas: &impl Areas,
    cpus: usize,
    times: usize,
    seed: usize,
) -> Result<Taken, Error> {
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
            let mut random = Random::new(seed << 8 | cpu);
            let mut once = || {
                let pages = 1 + random.low(PAGES);
                let at = areas.alloc(pages)?;
                rig.touch(at, pages, cpu)?;
                free(&places[random.low(places.len())], at.get())
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
