//! What threads have used: time, and page faults.

use super::Thread;
use crate::clock;
use core::sync::atomic::{AtomicU64, Ordering};

/// What threads have used together. All accesses are relaxed: statistics.
#[derive(Default)]
pub(crate) struct Usage {
    nanos: AtomicU64,
    faults: AtomicU64,
}

/// A state of it.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Used {
    /// Nanoseconds.
    pub(crate) nanos: u64,
    /// Page faults of programs; those of the kernel for them do not count.
    pub(crate) faults: u64,
}

impl Usage {
    pub(crate) fn add(&self, more: Used) {
        self.nanos.fetch_add(more.nanos, Ordering::Relaxed);
        self.faults.fetch_add(more.faults, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> Used {
        let (nanos, faults) = (&self.nanos, &self.faults);
        Used { nanos: nanos.load(Ordering::Relaxed), faults: faults.load(Ordering::Relaxed) }
    }
}

/// What a thread has used and not told. Only the CPU has it that runs the thread.
#[derive(Default)]
pub(crate) struct Clock {
    /// When its turn began.
    began: u64,
    /// When what runs now began to count.
    since: u64,
    /// Page faults since then.
    faults: u64,
}

impl Clock {
    /// A turn begins.
    pub(super) fn start(&mut self) {
        self.began = clock::now();
        self.since = self.began;
    }

    /// Nanoseconds of this turn so far.
    pub(super) fn turn(&self) -> u64 {
        clock::now() - self.began
    }

    /// A page fault. One addition to a line of this CPU.
    pub(super) fn fault(&mut self) {
        self.faults += 1;
    }

    /// Adds what is new to what the thread and its process have used. Four atomic additions.
    pub(crate) fn tell(&mut self, thread: &Thread) {
        let now = clock::now();
        let more = Used { nanos: now - self.since, faults: core::mem::take(&mut self.faults) };
        self.since = now;
        thread.used.add(more);
        thread.process.used.add(more);
    }
}
