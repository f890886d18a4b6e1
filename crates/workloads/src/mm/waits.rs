//! Threads of one space that map, touch and unmap: with the shootdown of each munmap, and with TLB
//! grace periods instead ([`mm::UnmapPolicy::Grace`]).
//!
//! Rates are measured as in `rates`. IPIs are counted apart, on CPUs that keep step: a host has
//! fewer processors than the machine has CPUs, and a CPU without a processor does not tick. On a
//! machine of threads an IPI costs nothing, so there the rates show only the price of waiting.

use super::loops::{Cpu, Loop, TOUCH, WILL_IT_SCALE};
use super::memory::{SharedMemory, populate};
use super::ours::Ours;
use super::rates::{QUIET, Sharing, Times, round};
use super::{NAME, SpaceContext, SpaceKind};
use crate::barrier::Barrier;
use crate::error::Error;
use crate::lab::Lab;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use grace::Concurrent;
use lock_api::RawRwLockFair;
use machine::Machine;
use report::{Report, Row, Target};

/// The implementations, and ours with grace periods.
const CASES: [(&str, Option<SpaceKind>); 4] = [
    ("one lock", Some(SpaceKind::Locked)),
    ("counted VMAs", Some(SpaceKind::Counted)),
    ("ours", Some(SpaceKind::Ours)),
    (WAITING, None),
];
const WAITING: &str = "ours, grace periods";
/// Operations of a CPU whose IPIs are counted, for each batch of the lab.
const COUNTED: usize = 256;

pub(super) fn measure<M: Machine, G: Concurrent, R: RawRwLockFair + Send + Sync + 'static>(
    lab: &Lab<'_, M, G, R>,
    context: &Arc<SpaceContext<M>>,
    report: &mut Report,
) -> Result<(), Error> {
    let malloc = WILL_IT_SCALE.iter().filter(|which| which.name == "malloc1");
    for which in malloc.chain([&TOUCH]) {
        for cpus in lab.cpus.iter().copied().filter(|cpus| *cpus > 1) {
            (lab.progress)(&format!("mm: {} of {cpus} threads, by grace periods", which.name));
            one(lab, context, which, cpus, report)?;
        }
    }
    Ok(())
}

/// Measures a loop on so many CPUs.
fn one<M: Machine, G: Concurrent, R: RawRwLockFair + Send + Sync + 'static>(
    lab: &Lab<'_, M, G, R>,
    context: &Arc<SpaceContext<M>>,
    which: &Loop,
    cpus: usize,
    report: &mut Report,
) -> Result<(), Error> {
    let mut times: [Times; 4] = Default::default();
    let mut ipis = [0.0; 4];
    for rest in (0..lab.scale.rounds).rev() {
        for ((times, ipis), (_, way)) in times.iter_mut().zip(&mut ipis).zip(CASES) {
            let space: SharedMemory = lab.on_first(|| {
                let space = match way {
                    Some(way) => way.make::<M, G, R>(context)?,
                    None => Ours::<M, G>::make_waiting(context)?,
                };
                populate(&*space)?;
                Ok::<_, Error>(space)
            })?;
            let spaces: Vec<_> = (0..cpus).map(|_| Arc::clone(&space)).collect();
            let mut done = round(lab, &spaces, which, Sharing::Threads, cpus, times);
            if rest == 0 {
                done = done.and_then(|()| count(lab, &space, which, cpus)).map(|found| {
                    *ipis = found;
                });
            }
            lab.on_first(|| drop((space, spaces)));
            lab.settle(&context.paging);
            done?;
        }
    }
    let case = format!("{}, waiting or not", which.name);
    for (((name, way), times), ipis) in CASES.iter().zip(&times).zip(ipis) {
        let row = Row::new(NAME, &case, name, cpus, 1);
        report.rows.push(row.with("operations a second", times.rate.median(), ""));
        report.rows.push(row.with("interrupts an operation", ipis, ""));
        if way.is_none() {
            let target = format!("interrupts of 10,000: {}, {name}, {cpus} CPUs", which.name);
            report.targets.push(Target::at_most(NAME, target, ipis * 1e4, 0.0));
        }
    }
    Ok(())
}

/// The IPIs of an operation, once the first ones are over.
fn count<M: Machine, G: Concurrent, R: Sync>(
    lab: &Lab<'_, M, G, R>,
    memory: &SharedMemory,
    which: &Loop,
    cpus: usize,
) -> Result<f64, Error> {
    let times = COUNTED * lab.scale.batches;
    let barrier = Barrier::new(lab.host.machine, cpus, cpus);
    let sent = AtomicU64::new(0);
    let work = |number: usize| {
        let cpu = Cpu::new(number);
        memory.enter();
        let mut result = Ok(());
        for run in 0..times {
            if run % QUIET == 0 {
                (lab.host.quiet)();
                memory.tick();
                barrier.wait();
            }
            if run == 2 * QUIET && number == 0 {
                // Relaxed: one CPU uses it, and the end of the run orders the last read.
                sent.store((lab.interrupts)(), Ordering::Relaxed);
            }
            result = result.and_then(|()| (which.once)(&**memory, &cpu, run));
        }
        // All are there: flushes at the end of a space do not count.
        barrier.wait();
        if number == 0 {
            let since = (lab.interrupts)().saturating_sub(sent.load(Ordering::Relaxed));
            sent.store(since, Ordering::Relaxed);
        }
        barrier.wait();
        memory.leave();
        result
    };
    lab.host.on_each(cpus, work).into_iter().flatten().collect::<Result<(), Error>>()?;
    Ok(sent.into_inner() as f64 / ((times - 2 * QUIET) * cpus) as f64)
}
