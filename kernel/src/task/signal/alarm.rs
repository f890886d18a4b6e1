//! The timer of a process that sends SIGALRM (ITIMER_REAL).
//!
//! A process has at most one entry in the timers of the CPUs. It changes with the lock of the
//! process's signals held. An entry that comes too late to be cancelled finds another due time, and
//! does nothing.

use crate::clock;
use crate::task::timer::{self, Expire, Timer};
use alloc::sync::Weak;

/// The timer of a process.
#[derive(Default)]
pub(crate) struct Alarm {
    /// The time at which it is due; none if it is stopped.
    due: Option<u64>,
    /// After this many nanoseconds it is due again; 0: it is not.
    interval: u64,
    timer: Option<Timer>,
}

impl Alarm {
    /// Stops it.
    pub(super) fn stop(&mut self) {
        if let Some(timer) = self.timer.take() {
            timer.cancel();
        }
        (self.due, self.interval) = (None, 0);
    }

    fn left(&self) -> (u64, u64) {
        // A timer that is late is due soon, but runs.
        let left = self.due.map_or(0, |due| due.saturating_sub(clock::now()).max(1));
        (left, self.interval)
    }

    fn start(&mut self, due: u64, process: Weak<dyn Expire>) {
        self.due = Some(due);
        self.timer = Some(timer::call_at(due, process));
    }

    /// The nanoseconds until it is due, 0 if it does not run, and its interval. With `new`, it is
    /// set to such a state; 0 nanoseconds stop it. `process` is told when it is due.
    pub(super) fn set(&mut self, new: Option<(u64, u64)>, process: Weak<dyn Expire>) -> (u64, u64) {
        let before = self.left();
        if let Some((left, interval)) = new {
            self.stop();
            if left != 0 {
                self.interval = interval;
                self.start(clock::now().saturating_add(left), process);
            }
        }
        before
    }

    /// An entry of the timers is due. Returns whether the process gets the signal.
    pub(super) fn expire(&mut self, process: Weak<dyn Expire>) -> bool {
        let now = clock::now();
        let Some(due) = self.due.filter(|due| *due <= now) else { return false };
        // The entry is gone.
        (self.due, self.timer) = (None, None);
        if let Some(periods) = (now - due).checked_div(self.interval) {
            let periods = periods + 1;
            let next = due.saturating_add(periods.saturating_mul(self.interval));
            self.start(next, process);
        }
        true
    }
}
