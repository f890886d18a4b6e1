//! RadixVM's three loops, in pages a second: CPUs of one space that map, touch, and unmap.
//!
//! - *local*: each CPU at addresses of its own.
//! - *pipeline*: each CPU maps and touches a page, and tells the next one, which touches it and
//!   unmaps it.
//! - *global*: each CPU maps its slice of one region; then all touch random pages of the whole
//!   region; then each maps its slice again.

use super::memory::{Memory, Of, PAGE, Shared, populate, touch};
use super::{NAME, Way, World};
use crate::error::Error;
use crate::lab::Lab;
use crate::mean::Rounds;
use crate::meeting::{Watch, at_once};
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use grace::Concurrent;
use lock_api::RawRwLockFair;
use machine::Machine;
use oorandom::Rand64;
use report::{Report, Row};

const BASE: usize = 0x1000_0000_0000;
/// Pages of a CPU's slice in *global*.
const SLICE: usize = 64;
/// Rounds of a loop between two looks at the clock.
const TURNS: usize = 16;

/// A loop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Pattern {
    Local,
    Pipeline,
    Global,
}

/// What the CPUs of a round share.
struct Group<'m, M> {
    machine: &'m M,
    memory: &'m dyn Memory,
    cpus: usize,
    /// Arrivals at the barrier.
    arrived: AtomicUsize,
    /// For each CPU, the address that the CPU before has passed on, or 0.
    passed: Vec<AtomicUsize>,
    failed: AtomicBool,
}

impl<M: Machine> Group<'_, M> {
    /// Waits for a value of another CPU. Ends early after an error of any CPU.
    fn wait(&self, place: &AtomicUsize, until: impl Fn(usize) -> bool) -> Option<usize> {
        loop {
            // Acquire: pairs with the Release of the CPU that stores it.
            let value = place.load(Ordering::Acquire);
            if until(value) {
                return Some(value);
            }
            // Relaxed: only a flag.
            if self.failed.load(Ordering::Relaxed) {
                return None;
            }
            self.machine.relax();
        }
    }

    /// Waits until all CPUs have come here as often as this one.
    fn meet(&self) {
        // AcqRel: all that CPUs did before happens before all that they do after.
        let before = self.arrived.fetch_add(1, Ordering::AcqRel);
        let all = (before / self.cpus + 1) * self.cpus;
        self.wait(&self.arrived, |arrived| arrived >= all);
    }

    /// Runs a pattern once on this CPU. Returns the pages touched.
    fn run(&self, cpu: usize, pattern: Pattern, random: &mut Rand64) -> Result<usize, Error> {
        let own = BASE + (cpu << 20);
        match pattern {
            Pattern::Local => {
                self.memory.map(Some(own), PAGE, Of::Nothing)?;
                touch(self.memory, own)?;
                self.memory.unmap(own, PAGE)?;
                Ok(1)
            }
            Pattern::Pipeline => {
                let next = &self.passed[(cpu + 1) % self.cpus];
                if self.wait(next, |value| value == 0).is_none() {
                    return Ok(0);
                }
                self.memory.map(Some(own), PAGE, Of::Nothing)?;
                touch(self.memory, own)?;
                // Release: pairs with `wait`.
                next.store(own, Ordering::Release);
                let Some(at) = self.wait(&self.passed[cpu], |value| value != 0) else {
                    return Ok(0);
                };
                touch(self.memory, at)?;
                self.memory.unmap(at, PAGE)?;
                // Release: as above.
                self.passed[cpu].store(0, Ordering::Release);
                Ok(2)
            }
            Pattern::Global => {
                let slice = BASE + cpu * SLICE * PAGE;
                self.memory.map(Some(slice), SLICE * PAGE, Of::Nothing)?;
                self.meet();
                let pages = (self.cpus * SLICE) as u64;
                for _ in 0..SLICE {
                    touch(self.memory, BASE + random.rand_range(0..pages) as usize * PAGE)?;
                }
                self.meet();
                Ok(SLICE)
            }
        }
    }
}

pub(super) fn measure<M: Machine, G: Concurrent, R: RawRwLockFair + Send + Sync + 'static>(
    lab: &Lab<'_, M, G, R>,
    world: &Arc<World<M>>,
    report: &mut Report,
) -> Result<(), Error> {
    let patterns = [Pattern::Local, Pattern::Pipeline, Pattern::Global];
    for (pattern, name) in patterns.into_iter().zip(["local", "pipeline", "global"]) {
        for cpus in lab.cpus.iter().copied() {
            (lab.progress)(&format!("mm: RadixVM's {name} on {cpus} CPUs"));
            for way in Way::ALL {
                let mut rates = Rounds::default();
                for _ in 0..lab.scale.rounds {
                    rates.push(round(lab, world, (way, pattern), cpus)?);
                }
                let row = Row::new(NAME, &format!("RadixVM's {name}"), way.name(), cpus, 1);
                report.rows.push(row.with("pages a second", rates.median(), ""));
            }
        }
    }
    Ok(())
}

/// Pages a second of all CPUs.
fn round<M: Machine, G: Concurrent, R: RawRwLockFair + Send + Sync + 'static>(
    lab: &Lab<'_, M, G, R>,
    world: &Arc<World<M>>,
    (way, pattern): (Way, Pattern),
    cpus: usize,
) -> Result<f64, Error> {
    let space: Shared = lab.on_first(|| {
        let space = way.make::<M, G, R>(world)?;
        populate(&*space)?;
        Ok::<_, Error>(space)
    })?;
    let machine = lab.host.machine;
    let group = Group {
        machine,
        memory: &*space,
        cpus,
        arrived: AtomicUsize::new(0),
        passed: (0..cpus).map(|_| AtomicUsize::new(0)).collect(),
        failed: AtomicBool::new(false),
    };
    // All CPUs do the same number of turns, since they wait for each other.
    let turns = lab.scale.batches * TURNS / if pattern == Pattern::Global { SLICE } else { 1 };
    let pages = AtomicUsize::new(0);
    let run = |cpu: usize, watch: &Watch<'_, M>| {
        group.memory.enter();
        let mut random = Rand64::new(cpu as u128);
        watch.start();
        let done = (0..turns.max(2)).try_for_each(|turn| {
            let touched = group.run(cpu, pattern, &mut random)?;
            // Relaxed: read after all programs have ended.
            pages.fetch_add(touched, Ordering::Relaxed);
            if turn % TURNS == 0 {
                (lab.host.quiet)();
            }
            Ok::<_, Error>(())
        });
        watch.stop();
        // Relaxed: only a flag.
        group.failed.fetch_or(done.is_err(), Ordering::Relaxed);
        group.memory.leave();
        done.map(|()| 0.0)
    };
    let taken = at_once(lab, cpus, run, Vec::new());
    lab.on_first(|| drop(space));
    lab.settle(&world.paging);
    Ok(pages.into_inner() as f64 / taken?.wall as f64 * 1e9)
}
