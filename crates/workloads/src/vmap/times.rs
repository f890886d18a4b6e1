//! Maps: pages are mapped, a word is written in each, and they are unmapped.
//!
//! With a processor for each CPU, operations a second and processor time agree. With fewer
//! processors, a CPU that waits for the baseline's lock, or for the answer of another CPU, yields
//! its processor to that CPU. So the baseline's processor time is too small, and operations a
//! second compare the implementations on equal processors.

use super::{AFTER, Areas, BEFORE, Implementations, NAME, PUBLISHED, Rig, fewer};
use crate::barrier::{Measured, Watch, at_once};
use crate::error::Error;
use crate::timing::{Rounds, Timer};
use alloc::format;
use alloc::vec::Vec;
use grace::Concurrent;
use machine::{Machine, Translated};
use report::{Report, Row, Target};

/// Pages of a map: the published size, those of large buffers, and more than a CPU has in blocks.
const SIZES: [usize; 5] = [4, 16, 64, 256, LARGEST];
pub(super) const LARGEST: usize = 4096;
/// Pages that a CPU maps in a batch, for all sizes.
const BATCH: usize = 256;
pub(super) const CASE: &str = "map, touch, unmap";

/// The measurements of one implementation, of this name.
#[derive(Default)]
pub(super) struct Times {
    pub(super) name: &'static str,
    pub(super) time: Rounds,
    rate: Rounds,
}

impl Times {
    pub(super) fn push(&mut self, taken: &Measured, operations: usize) {
        self.time.push(taken.time);
        self.rate.push(operations as f64 / taken.wall as f64 * 1e9);
    }

    /// The rows of its time.
    pub(super) fn rows(&self, case: &str, cpus: usize, pages: usize) -> [Row; 2] {
        self.time.rows(&Row::new(NAME, case, self.name, cpus, pages), "time", "ns")
    }
}

/// Runs all rounds of the three implementations, in turns, and returns their [`Times`]. The block
/// runs so many operations on each CPU: `times`, and fewer of the baseline that interrupts all
/// CPUs.
macro_rules! in_turns {
    ($rig:expr, $all:expr, $cpus:expr, $times:expr, |$areas:ident, $some:ident| $round:expr) => {{
        let mut found: [$crate::vmap::times::Times; 3] = Default::default();
        for _ in 0..$rig.lab.scale.rounds {
            $crate::vmap::for_each_areas!($all, |number, name, $areas| {
                let is_baseline = name == $crate::vmap::BEFORE;
                let $some = if is_baseline { fewer($times, $cpus) } else { $times };
                found[number].name = name;
                found[number].push(&$round?, $some * $cpus);
            });
        }
        found
    }};
}
pub(super) use in_turns;

/// Measures the published size on all numbers of CPUs, the others on the fewest and the most.
pub(super) fn short_maps<M: Machine + Translated, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    three: &Implementations<M, G>,
    report: &mut Report,
) -> Result<(), Error> {
    let all = rig.lab.cpus;
    let ends: Vec<usize> = [all.first(), all.last()].into_iter().flatten().copied().collect();
    for pages in SIZES {
        let cpus = if pages == SIZES[0] { all } else { &ends[..] };
        // The fewest CPUs, and our time on them.
        let mut fewest: Option<(usize, f64)> = None;
        for (at, cpus) in cpus.iter().copied().enumerate() {
            (rig.lab.progress)(&format!("vmap: {pages} pages on {cpus} CPUs"));
            let times = (rig.lab.scale.batches * BATCH / pages).max(1);
            let [old, nodes, new] = in_turns!(rig, three, cpus, times, |areas, times| round(
                rig, areas, pages, cpus, times
            ));
            for found in [&old, &nodes, &new] {
                report.rows.extend(found.rows(CASE, cpus, pages));
                let row = Row::new(NAME, CASE, found.name, cpus, pages);
                report.rows.push(row.with("operations a second", found.rate.median(), ""));
            }
            if pages != SIZES[0] {
                continue;
            }
            for (of, before, after) in PUBLISHED.iter().filter(|(of, ..)| *of == cpus) {
                for (name, value) in [(BEFORE, before), (AFTER, after)] {
                    let row = Row::new(NAME, CASE, &format!("{name}, published"), *of, pages);
                    report.rows.push(row.with("time", *value, "ns"));
                }
            }
            let fewest = fewest.get_or_insert((cpus, new.time.median()));
            if at != 0 && at + 1 == all.len() {
                report.targets.extend(targets(rig.lab.at_once, cpus, *fewest, &old, &new));
            }
            // Processor time is valid even where CPUs take turns and have no processor most of the
            // time.
            let target = format!("time of short maps, of that of nodes, {cpus} CPUs");
            report.targets.push(Target::at_most(NAME, target, new.time.times(&nodes.time), 1.0));
        }
    }
    Ok(())
}

/// Measures areas of their own for given frames, as drivers make them, on all numbers of CPUs.
/// Per-CPU blocks do not serve these.
pub(super) fn own_areas<M: Machine + Translated, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    three: &Implementations<M, G>,
    report: &mut Report,
) -> Result<(), Error> {
    const PAGES: usize = SIZES[0];
    for cpus in rig.lab.cpus.iter().copied() {
        (rig.lab.progress)(&format!("vmap: areas of {PAGES} pages on {cpus} CPUs"));
        let times = rig.lab.scale.batches * 16;
        let [old, nodes, new] = in_turns!(rig, three, cpus, times, |areas, times| round_of(
            rig,
            areas,
            cpus,
            times,
            |cpu| {
                let at = areas.keep(rig.frames(PAGES))?;
                rig.touch(at, PAGES, cpu)?;
                areas.give_up(at)
            }
        ));
        for found in [&old, &nodes, &new] {
            report.rows.extend(found.rows("vmap, touch, vunmap", cpus, PAGES));
        }
        let target = format!("time of areas of their own, of that of nodes, {cpus} CPUs");
        report.targets.push(Target::at_most(NAME, target, new.time.times(&nodes.time), 1.0));
    }
    Ok(())
}

/// The targets for the most CPUs, given our time on the fewest. If CPUs take turns, the time of a
/// CPU may include that of others, so only the ratio of the operations a second has a target.
fn targets(
    at_once: bool,
    cpus: usize,
    fewest: (usize, f64),
    old: &Times,
    new: &Times,
) -> Vec<Target> {
    let least = |target, value| Target::at_least(NAME, target, value, 25.0);
    let (fewest, one) = fewest;
    let mut targets = Vec::new();
    if at_once {
        let target = format!("time on {cpus} CPUs, of that on {fewest}");
        targets.push(Target::at_most(NAME, target, new.time.median() / one, 1.15));
        let target = format!("times less processor time than the old way, {cpus} CPUs");
        targets.push(least(target, old.time.times(&new.time)));
    }
    let target = format!("times the old way's operations a second, {cpus} CPUs");
    targets.push(least(target, new.rate.times(&old.rate)));
    targets
}

pub(super) fn round<M: Machine + Translated, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    areas: &impl Areas,
    pages: usize,
    cpus: usize,
    times: usize,
) -> Result<Measured, Error> {
    round_of(rig, areas, cpus, times, |cpu| rig.cycle(areas, cpu, pages))
}

/// Runs so many operations on each of so many CPUs.
pub(super) fn round_of<M: Machine + Translated, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    areas: &impl Areas,
    cpus: usize,
    times: usize,
    operation: impl Fn(usize) -> Result<(), Error> + Sync,
) -> Result<Measured, Error> {
    let measure = |cpu: usize, watch: &Watch<'_, M>| {
        rig.inside(areas, || {
            let timer = Timer::new(rig.lab.time);
            let cycle = || operation(cpu);
            // The first operations fill caches.
            rig.repeat(times / 8 + 1, cycle)?;
            watch.start();
            let mut done = Ok(());
            let time = timer.each(times, || done = rig.repeat(times, cycle));
            watch.stop();
            done.map(|()| time)
        })
    };
    at_once(rig.lab, cpus, measure, Vec::new())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_cpus_in_turns_are_no_targets() {
        let times = |time: f64| {
            let mut times = Times::default();
            times.push(&Measured { time, together: true, wall: time as u64 }, 8);
            times
        };
        let of = |at_once| targets(at_once, 8, (1, 10.0), &times(3000.0), &times(12.0));
        let expected = [
            Target::at_most(NAME, "time on 8 CPUs, of that on 1", 1.2, 1.15),
            Target::at_least(
                NAME,
                "times less processor time than the old way, 8 CPUs",
                250.0,
                25.0,
            ),
            Target::at_least(NAME, "times the old way's operations a second, 8 CPUs", 250.0, 25.0),
        ];
        assert_eq!(of(true), expected);
        assert_eq!(of(false), expected[2..]);
    }
}
