//! Allocations of frames that fail, as a test has asked.

use crate::lock::locked;
use crate::sim::Sim;
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
        // Relaxed: as in `fail_alloc`.
        self.any.load(Ordering::Relaxed) && locked(&self.next).count()
    }

    /// Whether memory counts as exhausted.
    pub(crate) fn exhausted(&self) -> bool {
        // Relaxed: as in `fail_alloc`.
        let next = self.any.load(Ordering::Relaxed).then(|| *locked(&self.next));
        next.is_some_and(|next| next.lasting && next.failed)
    }
}

impl Sim {
    /// Makes allocations of frames fail, on any CPU: the `nth` from now on (1 is the next one). If
    /// `lasting`, all later ones fail, too, and no frame counts as free.
    ///
    /// For tests of exhausted memory at each allocation (I7): raise `nth` until
    /// [`alloc_failed`](Sim::alloc_failed) returns `false`.
    pub fn fail_alloc(&self, nth: u64, lasting: bool) {
        let failing = &self.0.failing;
        *locked(&failing.next) = Next { left: nth, lasting, failed: false };
        // Relaxed: the test orders it.
        failing.any.store(nth != 0, Ordering::Relaxed);
    }

    /// Whether an allocation has failed because of [`fail_alloc`](Sim::fail_alloc). No more fail
    /// after this call.
    pub fn alloc_failed(&self) -> bool {
        // Relaxed: as in `fail_alloc`.
        self.0.failing.any.store(false, Ordering::Relaxed);
        locked(&self.0.failing.next).failed
    }
}
