//! The length of a thread's turn while others wait: its nice value and its policy.
//!
//! Each CPU runs its ready threads in turns ([`queue`](super::run_queue)). A step of the nice value
//! makes a turn longer or shorter by a quarter, from one tick to ten. So a thread gets at most ten
//! times the time of another; in Linux it is 6,000 times. SCHED_IDLE has the shortest turn.
//! There are no real-time policies.

use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

pub(crate) const OTHER: u32 = 0;
pub(crate) const FIFO: u32 = 1;
pub(crate) const RR: u32 = 2;
pub(crate) const BATCH: u32 = 3;
pub(crate) const IDLE: u32 = 5;
pub(crate) const DEADLINE: u32 = 6;
/// SCHED_RESET_ON_FORK: children do not inherit a nice value below 0.
pub(crate) const RESET: u32 = 0x4000_0000;

/// Nanoseconds of a turn: the usual, the shortest and the longest.
const TURN: u64 = 8_000_000;
const SHORTEST: u64 = 4_000_000;
const LONGEST: u64 = 40_000_000;

/// The fate of a thread whose turn is over.
pub(crate) enum Next {
    /// It goes on when its turn comes again.
    Ready,
    /// It waits.
    Park,
    /// It has ended.
    Gone,
}

/// The nice value, the policy, and the turn. All accesses are relaxed: numbers only. The next turn
/// heeds the first two. Only the CPU that has the thread changes the turn, and the queue's lock
/// passes it on.
#[derive(Default, Debug)]
pub(crate) struct Schedule {
    nice: AtomicI32,
    policy: AtomicU32,
    /// The round of a queue in which the thread has begun its turn.
    round: AtomicU64,
    /// Nanoseconds that are left of it.
    left: AtomicU64,
}

impl Schedule {
    pub(crate) fn nice(&self) -> i32 {
        self.nice.load(Ordering::Relaxed)
    }

    /// Sets the nice value; values beyond the range are its ends.
    pub(crate) fn set_nice(&self, nice: i32) {
        self.nice.store(nice.clamp(-20, 19), Ordering::Relaxed);
    }

    /// The policy, with [`RESET`].
    pub(crate) fn policy(&self) -> u32 {
        self.policy.load(Ordering::Relaxed)
    }

    pub(crate) fn set_policy(&self, policy: u32) {
        self.policy.store(policy, Ordering::Relaxed);
    }

    /// Whether the thread may run in this round of a queue: its turn has not begun, or has a rest.
    pub(crate) fn has_turn(&self, round: u64) -> bool {
        self.round.load(Ordering::Relaxed) != round || self.left.load(Ordering::Relaxed) != 0
    }

    /// The thread begins its turn of this round, or goes on with it.
    pub(crate) fn begin_turn(&self, round: u64) {
        if self.round.load(Ordering::Relaxed) != round || self.left() == 0 {
            self.round.store(round, Ordering::Relaxed);
            self.set_left(self.turn());
        }
    }

    /// Nanoseconds that are left of its turn.
    pub(crate) fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Sets the nanoseconds that are left of its turn.
    pub(crate) fn set_left(&self, nanos: u64) {
        self.left.store(nanos, Ordering::Relaxed);
    }

    /// Nanoseconds of a turn.
    pub(crate) fn turn(&self) -> u64 {
        if self.policy() & !RESET == IDLE {
            return SHORTEST;
        }
        let nice = self.nice();
        let steps = 0..nice.unsigned_abs();
        let longer = |turn, _| if nice < 0 { turn * 5 / 4 } else { turn * 4 / 5 };
        steps.fold(TURN, longer).clamp(SHORTEST, LONGEST)
    }

    /// Gives a new thread of this one its nice value and its policy, without [`RESET`]. With that,
    /// a nice value below 0 becomes 0.
    pub(crate) fn inherit(&self, child: &Schedule) {
        let resets = self.policy() & RESET != 0;
        let nice = self.nice();
        child.set_nice(if resets { nice.max(0) } else { nice });
        child.set_policy(self.policy() & !RESET);
    }
}
