//! Allocations of frames that fail, as a test has asked.

use crate::lock::locked;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// Which allocations fail.
#[derive(Default)]
pub(crate) struct Failing {
    /// Whether any may: tests that ask for none take no lock.
    any: AtomicBool,
    next: Mutex<Next>,
}

#[derive(Clone, Copy, Default)]
struct Next {
    /// The allocations up to the one that fails, and that one; 0 if none will.
    left: u64,
    lasting: bool,
    failed: bool,
}

impl Next {
    fn count(&mut self) -> bool {
        let now = self.left == 1;
        self.left = self.left.saturating_sub(1);
        self.failed |= now;
        now || (self.lasting && self.failed)
    }
}

impl Failing {
    /// Whether this allocation is one that fails.
    #[inline]
    pub(crate) fn next_fails(&self) -> bool {
        // Relaxed: as in `begin`.
        self.any.load(Ordering::Relaxed) && locked(&self.next).count()
    }

    /// Whether memory counts as exhausted.
    pub(crate) fn exhausted(&self) -> bool {
        // Relaxed: as in `begin`.
        let next = self.any.load(Ordering::Relaxed).then(|| *locked(&self.next));
        next.is_some_and(|next| next.lasting && next.failed)
    }

    /// As [`Sim::fail_alloc`](crate::Sim::fail_alloc).
    pub(crate) fn begin(&self, nth: u64, lasting: bool) {
        *locked(&self.next) = Next { left: nth, lasting, failed: false };
        // Relaxed: the test orders it.
        self.any.store(nth != 0, Ordering::Relaxed);
    }

    /// No more fail. Returns whether one has failed.
    pub(crate) fn end(&self) -> bool {
        // Relaxed: as in `begin`.
        self.any.store(false, Ordering::Relaxed);
        locked(&self.next).failed
    }
}
