//! The CPUs of a trial: they meet at barriers, and all stop when one has found an error.

use alloc::format;
use alloc::string::String;
use core::fmt::Display;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use machine::Machine;
use oorandom::Rand32;

/// The reason why a CPU stops early.
pub(crate) enum Stop {
    /// It has found this error.
    Error(String),
    /// Another CPU has found an error.
    Elsewhere,
}

pub(crate) type Outcome<T = ()> = Result<T, Stop>;

/// Ends a CPU with an error.
pub(crate) fn fail<T>(text: String) -> Outcome<T> {
    Err(Stop::Error(text))
}

/// Calls that must not fail.
pub(crate) trait Context<T> {
    /// Turns an error into an outcome. `what` names the call.
    fn of(self, what: &str) -> Outcome<T>;
}

impl<T, E: Display> Context<T> for Result<T, E> {
    fn of(self, what: &str) -> Outcome<T> {
        self.map_err(|error| Stop::Error(format!("{what}: {error}")))
    }
}

/// The barrier of a trial's CPUs.
pub(crate) struct Barrier<'m, M> {
    machine: &'m M,
    cpus: usize,
    arrived: AtomicUsize,
    stopped: AtomicBool,
}

impl<'m, M: Machine> Barrier<'m, M> {
    pub(crate) fn new(machine: &'m M, cpus: usize) -> Self {
        Barrier { machine, cpus, arrived: AtomicUsize::new(0), stopped: AtomicBool::new(false) }
    }

    /// Makes all CPUs stop at their next barrier.
    pub(crate) fn stop(&self) {
        // Release: pairs with the Acquire in `meet`. The CPUs that stop see what this CPU has left
        // behind.
        self.stopped.store(true, Ordering::Release);
    }

    /// Waits until all CPUs have arrived as often as this one.
    fn meet(&self) -> Outcome {
        // AcqRel: all that CPUs did before the barrier happens before all that they do after it.
        let before = self.arrived.fetch_add(1, Ordering::AcqRel);
        let all = (before / self.cpus + 1) * self.cpus;
        // Acquire: pairs with the AcqRel above.
        while self.arrived.load(Ordering::Acquire) < all {
            // Acquire: pairs with the Release of `stop`.
            if self.stopped.load(Ordering::Acquire) {
                return Err(Stop::Elsewhere);
            }
            self.machine.relax();
        }
        Ok(())
    }
}

/// A CPU of a trial.
pub(crate) struct Worker<'c, M> {
    barrier: &'c Barrier<'c, M>,
    pub(crate) cpu: usize,
    random: Rand32,
}

impl<'c, M: Machine> Worker<'c, M> {
    pub(crate) fn new(barrier: &'c Barrier<'c, M>, cpu: usize, seed: u64) -> Self {
        Worker {
            barrier,
            cpu,
            random: Rand32::new(seed.wrapping_mul(256).wrapping_add(cpu as u64)),
        }
    }

    /// Waits until all CPUs have arrived as often as this one.
    pub(crate) fn meet(&self) -> Outcome {
        self.barrier.meet()
    }

    /// A number below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.random.rand_range(0..end as u32) as usize
    }
}
