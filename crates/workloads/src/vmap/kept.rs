//! Areas of their own for given frames, as drivers make them. Per-CPU blocks do not serve these.

use super::times::round_of;
use super::{AFTER, Areas, BEFORE, Both, NAME, NODES, Rig, fewer};
use crate::error::Error;
use crate::mean::Rounds;
use alloc::format;
use grace::Concurrent;
use machine::{Machine, Translated};
use report::{Report, Row, Target};

/// Pages of an area.
const PAGES: usize = 4;
const CASE: &str = "vmap, touch, vunmap";

/// Measures on all numbers of CPUs, the implementations in turns.
pub(super) fn measure<M: Machine + Translated, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    both: &Both<M, G>,
    report: &mut Report,
) -> Result<(), Error> {
    let times = rig.lab.scale.batches * 16;
    for cpus in rig.lab.cpus.iter().copied() {
        (rig.lab.progress)(&format!("vmap: areas of {PAGES} pages on {cpus} CPUs"));
        let [mut old, mut nodes, mut new] = [const { Rounds::new() }; 3];
        for _ in 0..rig.lab.scale.rounds {
            old.push(round(rig, &both.old, cpus, fewer(times, cpus).max(1))?);
            nodes.push(round(rig, &both.nodes, cpus, times)?);
            new.push(round(rig, &both.new, cpus, times)?);
        }
        for (name, times) in [(BEFORE, &old), (NODES, &nodes), (AFTER, &new)] {
            let row = Row::new(NAME, CASE, name, cpus, PAGES);
            report.rows.extend(times.rows(&row, "time", "ns"));
        }
        let target = format!("time of areas of their own, of that of nodes, {cpus} CPUs");
        report.targets.push(Target::at_most(NAME, target, new.times(&nodes), 1.0));
    }
    Ok(())
}

fn round<M: Machine + Translated, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    areas: &impl Areas,
    cpus: usize,
    times: usize,
) -> Result<f64, Error> {
    let operation = |cpu: usize| {
        let at = areas.keep(rig.frames(PAGES))?;
        rig.touch(at, PAGES, cpu)?;
        areas.give_up(at)
    };
    Ok(round_of(rig, areas, cpus, times, operation)?.time)
}
