//! The work of one operation on all CPUs of the machine together, waiting included.
//!
//! A CPU that waits for a lock, or for answers of other CPUs, does nothing else meanwhile, so its
//! waiting counts as work. Every CPU that takes part counts from the first beginning to the last
//! end. That needs a clock that counts the instructions of all CPUs, on a machine whose CPUs run
//! side by side: an emulator's, whose turns are far shorter than an operation.

use super::flushes::BATCH;
use super::times::{CASE, round};
use super::{Implementations, NAME, Rig, for_each_areas, with_rig};
use crate::error::Error;
use crate::lab::Lab;
use alloc::format;
use grace::Concurrent;
use machine::{Machine, Translated};
use report::{Report, Row, Target};

/// Pages of a map, as published.
const PAGES: usize = 4;
/// The factor of our operations to the baseline's, which defers nothing, and whose operations take
/// much longer.
const MORE: usize = 64;

/// Counts the instructions of all CPUs for mapping, touching and unmapping 4 pages, for each
/// implementation and number of CPUs. `how` says how the machine switches between CPUs. The lab's
/// clock counts the instructions of all CPUs, and CPUs that wait keep running. One round is enough,
/// because the counts do not scatter.
///
/// # Errors
/// The machine has too little memory: it takes some thousand frames for tables.
pub(crate) fn work<M: Machine + Translated, G: Concurrent, R: Sync>(
    lab: &Lab<'_, M, G, R>,
    how: &str,
) -> Result<Report, Error> {
    with_rig(lab, PAGES, |rig, report| {
        Implementations::with(rig, |all| measure(rig, all, how, report))
    })
}

fn measure<M: Machine + Translated, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    all: &Implementations<M, G>,
    how: &str,
    report: &mut Report,
) -> Result<(), Error> {
    // As many as where flushes are counted, so a round includes the work that our unmaps defer.
    let times = rig.lab.scale.batches * BATCH;
    let mut fewest = None;
    for (at, cpus) in rig.lab.cpus.iter().copied().enumerate() {
        (rig.lab.progress)(&format!("vmap: work of {cpus} CPUs, {how}"));
        let case = format!("{CASE}, {how}");
        let mut found = [f64::NAN; 3];
        for_each_areas!(all, |number, name, areas| {
            let times = [(times / MORE).max(1), times, times][number];
            let wall = round(rig, areas, PAGES, cpus, times)?.wall;
            found[number] = wall as f64 / (times * cpus) as f64;
            let row = Row::new(NAME, &case, name, cpus, PAGES);
            report.rows.push(row.with("instructions of all CPUs", found[number], ""));
        });
        let [old, _, new] = found;
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
