//! Loops on each implementation, as processes and as threads.
//!
//! A round runs a loop on some CPUs at once: each with a space of its own ("processes"), or all in
//! one ("threads"). Two times are measured:
//!
//! - `time`: processor time of an operation. Waiting for a lock is in it only as far as the CPU
//!   spins.
//! - `operations a second`: of all CPUs together by the wall clock, only while they run operations.
//!   Everything is in it.

use super::loops::{Cpu, Loop};
use super::memory::{Memory, SharedMemory, populate};
use super::{SpaceContext, SpaceKind};
use crate::barrier::{Watch, at_once};
use crate::error::Error;
use crate::lab::Lab;
use crate::timing::{Rounds, Timer};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use grace::Concurrent;
use lock_api::RawRwLockFair;
use machine::Machine;
use report::{Report, Row};
use spin::Mutex;

/// Runs between two quiescent states of a CPU.
pub(super) const QUIET: usize = 32;

/// How CPUs share spaces.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sharing {
    Processes,
    Threads,
}

impl Sharing {
    pub(super) fn name(self) -> &'static str {
        match self {
            Sharing::Processes => "processes",
            Sharing::Threads => "threads",
        }
    }
}

/// The rounds of one implementation.
#[derive(Default)]
pub(super) struct Times {
    time: Rounds,
    pub(super) rate: Rounds,
}

/// The medians of one loop on so many CPUs, in the order of [`SpaceKind::ALL`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Median {
    pub(super) name: &'static str,
    pub(super) sharing: Sharing,
    pub(super) cpus: usize,
    pub(super) rate: [f64; 3],
}

/// Measures a loop on all numbers of CPUs.
pub(super) fn measure<M: Machine, G: Concurrent, R: RawRwLockFair + Send + Sync + 'static>(
    lab: &Lab<'_, M, G, R>,
    context: &Arc<SpaceContext<M>>,
    (which, sharing): (&Loop, Sharing),
    report: &mut Report,
) -> Result<Vec<Median>, Error> {
    let mut medians = Vec::new();
    for cpus in lab.cpus.iter().copied() {
        (lab.progress)(&format!("mm: {} on {cpus} CPUs, {}", which.name, sharing.name()));
        let mut all: [Times; 3] = Default::default();
        let spaces = SpaceKind::ALL.map(|way| spaces(lab, context, way, sharing, cpus));
        let rounds = |times: &mut [Times; 3]| {
            for _ in 0..lab.scale.rounds {
                for (spaces, times) in spaces.iter().zip(&mut *times) {
                    let spaces = spaces.as_ref().map_err(|error| *error)?;
                    round(lab, spaces, which, sharing, cpus, times)?;
                }
            }
            Ok::<_, Error>(())
        };
        let done = rounds(&mut all);
        // Also after an error: a space ends on a CPU.
        lab.on_first(|| drop(spaces));
        lab.settle(&context.paging);
        done?;
        let case = format!("{}, {}", which.name, sharing.name());
        for (way, times) in SpaceKind::ALL.into_iter().zip(&all) {
            let row = Row::new(super::NAME, &case, way.name(), cpus, which.operations);
            report.rows.extend(times.time.rows(&row, "time", "ns"));
            report.rows.push(row.with("operations a second", times.rate.median(), ""));
        }
        let rate = all.each_ref().map(|times| times.rate.median());
        medians.push(Median { name: which.name, sharing, cpus, rate });
    }
    Ok(medians)
}

/// The spaces of so many CPUs, as their programs find them.
fn spaces<M: Machine, G: Concurrent, R: RawRwLockFair + Send + Sync + 'static>(
    lab: &Lab<'_, M, G, R>,
    context: &Arc<SpaceContext<M>>,
    way: SpaceKind,
    sharing: Sharing,
    cpus: usize,
) -> Result<Vec<SharedMemory>, Error> {
    lab.on_first(|| {
        let new = || {
            let space = way.make::<M, G, R>(context)?;
            populate(&*space)?;
            Ok(space)
        };
        match sharing {
            Sharing::Processes => (0..cpus).map(|_| new()).collect(),
            Sharing::Threads => new().map(|space| (0..cpus).map(|_| Arc::clone(&space)).collect()),
        }
    })
}

/// Runs a loop on each of these spaces at once.
pub(super) fn round<M: Machine, G: Concurrent, R: RawRwLockFair + Send + Sync>(
    lab: &Lab<'_, M, G, R>,
    spaces: &[SharedMemory],
    which: &Loop,
    sharing: Sharing,
    cpus: usize,
    times: &mut Times,
) -> Result<(), Error> {
    // All CPUs run for the same time, so that they meet.
    let length = lab.scale.batches as u64 * 100_000;
    let rate = Mutex::new(0.0);
    let measure = |number: usize, watch: &Watch<'_, M>| {
        let cpu = Cpu::new(if sharing == Sharing::Processes { 0 } else { number });
        let memory = &*spaces[number];
        memory.enter();
        let timer = Timer::new(lab.time);
        // The first batch fills caches.
        let mut result = batch(lab, memory, which, &cpu, &timer).map(drop);
        watch.start();
        let (mut times, mut took, began) = (Rounds::default(), 0, (lab.clock)());
        while result.is_ok() && (lab.clock)().saturating_sub(began) < length {
            result = batch(lab, memory, which, &cpu, &timer).map(|(time, wall)| {
                times.push(time);
                took += wall;
            });
        }
        watch.stop();
        memory.leave();
        let done = (times.len() * which.batch * which.operations) as f64;
        *rate.lock() += done / took as f64 * 1e9;
        result.map(|()| times.mean())
    };
    let taken = at_once(lab, cpus, measure, Vec::new())?;
    times.time.push(taken.time);
    times.rate.push(rate.into_inner());
    Ok(())
}

/// Runs a batch. Returns processor time of an operation, and the wall clock's time of all.
fn batch<M: Machine, G: Concurrent, R>(
    lab: &Lab<'_, M, G, R>,
    memory: &dyn Memory,
    which: &Loop,
    cpu: &Cpu,
    timer: &Timer,
) -> Result<(f64, u64), Error> {
    (which.begin)(memory, cpu, 0)?;
    (lab.host.quiet)();
    let mut done = Ok(());
    let began = (lab.clock)();
    let time = timer.each(which.batch * which.operations, || {
        done = (0..which.batch).try_for_each(|run| {
            // Retired objects are freed in the time of the operations that retired them.
            if run % QUIET == QUIET - 1 {
                (lab.host.quiet)();
                memory.tick();
            }
            (which.once)(memory, cpu, run)
        });
    });
    let took = (lab.clock)().saturating_sub(began);
    done.map(|()| (time, took))
}
