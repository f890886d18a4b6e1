//! The IPIs and flushes that an unmap causes on other CPUs. They depend on no clock.
//!
//! All CPUs of the machine map, touch and unmap 4 pages. A host has fewer processors than the
//! machine has CPUs, and a CPU without a processor does not tick. So CPUs keep step: each waits for
//! the others after some operations, as if all ran at once.

use super::{
    AFTER, Areas, BEFORE, Implementations, NAME, QUIET, Rig, TICKS, for_each_areas, with_rig,
};
use crate::barrier::Barrier;
use crate::error::Error;
use crate::lab::Lab;
use alloc::format;
use core::sync::atomic::{AtomicU64, Ordering};
use grace::Concurrent;
use machine::{Machine, Translated};
use report::{Report, Row, Target};

/// Pages of a map.
const PAGES: usize = 4;
/// Operations between two barriers.
const STEP: usize = 64;
/// Operations of a CPU in a batch. All batches are 30,000 operations, three times as many as CPUs
/// make before they interrupt each other.
pub(super) const BATCH: usize = 150;

/// Counts IPIs and flushes at each unmap on all CPUs at once: without timer interrupts, and with
/// them if the machine has a timer.
///
/// # Errors
/// The machine has too little memory: it takes some thousand frames for tables.
pub(crate) fn flushes<M: Machine + Translated, G: Concurrent, R: Sync>(
    lab: &Lab<'_, M, G, R>,
) -> Result<Report, Error> {
    with_rig(lab, PAGES, |rig, report| Implementations::with(rig, |all| measure(rig, all, report)))
}

fn measure<M: Machine + Translated, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    all: &Implementations<M, G>,
    report: &mut Report,
) -> Result<(), Error> {
    let (cpus, batches) = (rig.lab.host.machine.count(), rig.lab.scale.batches);
    let many = batches * BATCH;
    let few = (batches / 10).max(2);
    (rig.lab.progress)(&format!("vmap: flushes of {cpus} CPUs"));
    for_each_areas!(all, |number, name, areas| {
        let found = run(rig, areas, [few, many, many][number])?;
        tell(report, QUIET, name, cpus, &found);
        if name == AFTER {
            let target = format!("interrupts of 10,000 unmaps, {cpus} CPUs");
            report.targets.push(Target::at_most(NAME, target, found.interrupts * 1e4, 1.0));
        }
    });
    // Otherwise the pages that the run before has left waiting would exceed their limit before the
    // first tick.
    rig.settle(&all.new);
    let ticking = || Ok::<_, Error>((run(rig, &all.old, few)?, run(rig, &all.new, many)?));
    if let Some(found) = all.new.ticking(rig, ticking) {
        let (old, new) = found?;
        tell(report, TICKS, BEFORE, cpus, &old);
        tell(report, TICKS, AFTER, cpus, &new);
        let target = format!("interrupts of 10,000 unmaps, {cpus} CPUs that tick");
        report.targets.push(Target::at_most(NAME, target, new.interrupts * 1e4, 0.0));
    }
    Ok(())
}

/// The counts for each unmap.
struct FlushCounts {
    interrupts: f64,
    flushes: f64,
    /// Unmaps of each CPU.
    unmaps: usize,
}

fn tell(report: &mut Report, case: &str, name: &str, cpus: usize, found: &FlushCounts) {
    let row = Row::new(NAME, case, name, cpus, PAGES);
    report.rows.push(row.with("interrupts an unmap", found.interrupts, ""));
    report.rows.push(row.with("flushes an unmap", found.flushes, ""));
    report.rows.push(row.with("unmaps of a CPU", found.unmaps as f64, ""));
}

/// Runs so many operations on each CPU.
fn run<M: Machine + Translated, G: Concurrent, R: Sync>(
    rig: &Rig<'_, '_, M, G, R>,
    areas: &impl Areas,
    times: usize,
) -> Result<FlushCounts, Error> {
    let lab = rig.lab;
    let cpus = lab.host.machine.count();
    let (interrupts, flushes) = (AtomicU64::new(0), AtomicU64::new(0));
    let barrier = Barrier::new(lab.host.machine, cpus, cpus);
    let work = |cpu: usize| {
        rig.inside(areas, || {
            // A CPU that fails still takes part in the barriers.
            let mut result = rig.cycle(areas, cpu, PAGES);
            barrier.wait();
            if cpu == 0 {
                // Relaxed, here and below: one CPU uses them, and the end of the run orders the
                // last read.
                interrupts.store((lab.interrupts)(), Ordering::Relaxed);
                flushes.store((lab.flushes)(), Ordering::Relaxed);
            }
            barrier.wait();
            for begun in (0..times).step_by(STEP) {
                let times = STEP.min(times - begun);
                result = result.and_then(|()| rig.repeat(times, || rig.cycle(areas, cpu, PAGES)));
                barrier.wait();
            }
            if cpu == 0 {
                let since = |now: u64, then: &AtomicU64| {
                    then.store(now.saturating_sub(then.load(Ordering::Relaxed)), Ordering::Relaxed);
                };
                since((lab.interrupts)(), &interrupts);
                since((lab.flushes)(), &flushes);
            }
            barrier.wait();
            result
        })
    };
    lab.host.on_each(cpus, work).into_iter().flatten().collect::<Result<(), Error>>()?;
    let each = |of: AtomicU64| of.into_inner() as f64 / (times * cpus) as f64;
    Ok(FlushCounts { interrupts: each(interrupts), flushes: each(flushes), unmaps: times })
}
