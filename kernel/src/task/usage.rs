//! CPU time and page faults of threads.
//!
//! The sum of a thread's time is exact. Its parts, in the program and in the kernel, are samples:
//! the place where a tick comes counts for the time since the last one. A thread that no tick meets
//! has all its time in the program. Reading a clock at each entry of the kernel would be exact, and
//! would make each call slower.

use crate::clock;
use core::sync::atomic::{AtomicU64, Ordering};

/// The sum of CPU time and faults of one thread or several. All accesses are relaxed: statistics.
#[derive(Default)]
pub(crate) struct Usage {
    nanos: AtomicU64,
    system: AtomicU64,
    faults: AtomicU64,
}

/// A reading of [`Usage`], or an amount to add.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Used {
    /// Nanoseconds, in the program and in the kernel.
    pub(crate) nanos: u64,
    /// The part of them in the kernel.
    pub(crate) system: u64,
    /// Page faults of programs; those of the kernel for them do not count.
    pub(crate) faults: u64,
}

impl Usage {
    pub(crate) fn add(&self, more: Used) {
        self.nanos.fetch_add(more.nanos, Ordering::Relaxed);
        if more.system != 0 {
            self.system.fetch_add(more.system, Ordering::Relaxed);
        }
        self.faults.fetch_add(more.faults, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Used {
        let load = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let (system, nanos) = (load(&self.system), load(&self.nanos));
        // The parts are added one by one.
        Used { nanos, system: system.min(nanos), faults: load(&self.faults) }
    }
}

impl Used {
    /// Nanoseconds in the program.
    pub(crate) fn user(&self) -> u64 {
        self.nanos - self.system
    }
}

/// CPU time and faults of a thread that no [`Usage`] has yet. Only the CPU that runs the thread
/// has it.
#[derive(Default)]
pub(crate) struct Clock {
    /// The time at which its turn ends, if others wait.
    turn_end: u64,
    /// The time up to which all is in a [`Usage`].
    since: u64,
    /// Page faults after that.
    faults: u64,
}

impl Clock {
    /// A turn of so many nanoseconds begins.
    pub(crate) fn start(&mut self, turn: u64) {
        self.since = clock::now();
        self.turn_end = self.since + turn;
    }

    pub(crate) fn is_turn_over(&self) -> bool {
        clock::now() >= self.turn_end
    }

    /// Nanoseconds of the turn that were left at the last [`take`](Self::take).
    pub(crate) fn left(&self) -> u64 {
        self.turn_end.saturating_sub(self.since)
    }

    /// A page fault. One addition to a line of this CPU.
    pub(crate) fn fault(&mut self) {
        self.faults += 1;
    }

    /// Takes the time and the faults since the last call: as time in the program, or `in_kernel`.
    pub(crate) fn take(&mut self, in_kernel: bool) -> Used {
        let now = clock::now();
        let nanos = now - self.since;
        let faults = core::mem::take(&mut self.faults);
        self.since = now;
        Used { nanos, system: if in_kernel { nanos } else { 0 }, faults }
    }
}
