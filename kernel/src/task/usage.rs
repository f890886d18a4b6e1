//! What threads have used: time, and page faults.
//!
//! The sum of a thread's time is exact. Its parts, in the program and in the kernel, are samples:
//! the place where a tick comes counts for the time since the last one. A thread that no tick meets
//! has all its time in the program. Reading a clock at each entry of the kernel would be exact, and
//! would make each call slower.

use super::Thread;
use crate::clock;
use core::sync::atomic::{AtomicU64, Ordering};

/// What threads have used together. All accesses are relaxed: statistics.
#[derive(Default)]
pub(crate) struct Usage {
    nanos: AtomicU64,
    system: AtomicU64,
    faults: AtomicU64,
}

/// A state of it.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Used {
    /// Nanoseconds, in the program and in the kernel.
    pub(crate) nanos: u64,
    /// Those in the kernel.
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

/// What a thread has used and not told. Only the CPU has it that runs the thread.
#[derive(Default)]
pub(crate) struct Clock {
    /// When its turn ends, if others wait.
    turn_end: u64,
    /// When what runs now began to count.
    since: u64,
    /// Page faults since then.
    faults: u64,
}

impl Clock {
    /// A turn of so many nanoseconds begins.
    pub(super) fn start(&mut self, turn: u64) {
        self.since = clock::now();
        self.turn_end = self.since + turn;
    }

    pub(super) fn is_turn_over(&self) -> bool {
        clock::now() >= self.turn_end
    }

    /// Nanoseconds of the turn that were left when the thread last told.
    pub(super) fn left(&self) -> u64 {
        self.turn_end.saturating_sub(self.since)
    }

    /// A page fault. One addition to a line of this CPU.
    pub(super) fn fault(&mut self) {
        self.faults += 1;
    }

    /// Adds what is new to what the thread and its process have used, as time in the program. Four
    /// atomic additions.
    pub(crate) fn tell(&mut self, thread: &Thread) {
        self.tell_as(thread, false);
    }

    /// As [`tell`](Self::tell), at a tick. It counts the time since the last as time in the kernel,
    /// or in the program: where the tick has come.
    pub(super) fn tell_as(&mut self, thread: &Thread, in_kernel: bool) {
        let now = clock::now();
        let nanos = now - self.since;
        let faults = core::mem::take(&mut self.faults);
        let more = Used { nanos, system: if in_kernel { nanos } else { 0 }, faults };
        self.since = now;
        thread.used.add(more);
        thread.process.used.add(more);
    }
}
