//! What one operation is to all CPUs of the machine together, waiting included.
//!
//! A CPU that waits for a lock, or for the answers of others, does nothing else meanwhile: it is
//! taken from the machine as if it worked. So from the first beginning to the last end every CPU
//! that takes part counts, whatever it does. That takes a clock which counts the instructions of
//! all CPUs, on a machine on which they run side by side: an emulator's, in turns far shorter than
//! an operation.

use super::flushes::BATCH;
use super::times::{CASE, round};
use super::{AFTER, Areas, BEFORE, Both, NAME, NODES, Rig, with_rig};
use crate::error::Error;
use crate::lab::Lab;
use alloc::format;
use grace::Concurrent;
use machine::{Machine, Translated};
use report::{Report, Row, Target};

/// Pages of a map: the published ones.
const PAGES: usize = 4;
/// How many times as often ours is done: the old way leaves nothing for later, and each of its
/// operations takes much longer.
const MORE: usize = 64;

/// Instructions of all CPUs for a map of 4 pages that is touched and unmapped, the old way and
/// ours, on each number of CPUs. `how` says how the machine takes turns. The lab's clock counts
/// instructions of all CPUs, and one that waits runs. A round of each way: nothing scatters.
///
/// # Errors
/// The machine has too little memory: it takes some thousand frames for tables.
pub(crate) fn work<M: Machine + Translated, G: Concurrent, R: Sync>(
    lab: &Lab<'_, M, G, R>,
    how: &str,
) -> Result<Report, Error> {
    with_rig(lab, PAGES, |rig, report| Both::with(rig, |both| measure(rig, both, how, report)))
}

fn measure<M: Machine + Translated, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    both: &Both<M, G>,
    how: &str,
    report: &mut Report,
) -> Result<(), Error> {
    // As many as where flushes are counted: so what ours leaves for later is paid for within a
    // round.
    let times = rig.lab.scale.batches * BATCH;
    let mut fewest = None;
    for (at, cpus) in rig.lab.cpus.iter().copied().enumerate() {
        (rig.lab.progress)(&format!("vmap: work of {cpus} CPUs, {how}"));
        let old = of_each(rig, &both.old, cpus, (times / MORE).max(1))?;
        let nodes = of_each(rig, &both.nodes, cpus, times)?;
        let new = of_each(rig, &both.new, cpus, times)?;
        let case = format!("{CASE}, {how}");
        for (name, value) in [(BEFORE, old), (NODES, nodes), (AFTER, new)] {
            let row = Row::new(NAME, &case, name, cpus, PAGES);
            report.rows.push(row.with("instructions of all CPUs", value, ""));
        }
        let fewest = *fewest.get_or_insert(new);
        if at + 1 == rig.lab.cpus.len() {
            let target = format!("times less work than the old way, {cpus} CPUs, {how}");
            report.targets.push(Target::at_least(NAME, target, old / new, 25.0));
            if at != 0 {
                let target = format!("work on {cpus} CPUs, of that on {}, {how}", rig.lab.cpus[0]);
                report.targets.push(Target::at_most(NAME, target, new / fewest, 1.15));
            }
        }
    }
    Ok(())
}

/// Of each operation, of so many on each CPU.
fn of_each<M: Machine + Translated, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    areas: &impl Areas,
    cpus: usize,
    times: usize,
) -> Result<f64, Error> {
    let taken = round(rig, areas, PAGES, cpus, times)?;
    Ok(taken.wall as f64 / (times * cpus) as f64)
}
