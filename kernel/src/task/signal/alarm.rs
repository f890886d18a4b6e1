//! The timer of a process that sends SIGALRM (ITIMER_REAL).
//!
//! A process has at most one entry in the timers of the CPUs. It changes with the lock of the
//! process's signals held. An entry that comes too late to be cancelled finds another due time, and
//! does nothing.

use super::{Info, SIGALRM, send};
use crate::clock;
use crate::lock::lock;
use crate::task::Process;
use crate::task::timer::{self, Timer};
use alloc::sync::Arc;

/// The timer of a process.
#[derive(Default)]
pub(crate) struct Alarm {
    /// When it is due, if it runs.
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

    /// The nanoseconds until it is due, 0 if it does not run, and its interval.
    fn left(&self) -> (u64, u64) {
        // A timer that is late is due soon, but runs.
        let left = self.due.map_or(0, |due| due.saturating_sub(clock::now()).max(1));
        (left, self.interval)
    }

    fn start(&mut self, due: u64, process: &Arc<Process>) {
        self.due = Some(due);
        self.timer = Some(timer::alarm_at(due, process));
    }
}

/// The state of the timer: nanoseconds until it is due, and its interval. With `new`, it is set to
/// such a state; 0 nanoseconds stop it.
pub(crate) fn set(process: &Arc<Process>, new: Option<(u64, u64)>) -> (u64, u64) {
    let mut signals = lock(&process.signals);
    let before = signals.alarm.left();
    if let Some((left, interval)) = new {
        signals.alarm.stop();
        if left != 0 {
            signals.alarm.interval = interval;
            signals.alarm.start(clock::now().saturating_add(left), process);
        }
    }
    before
}

/// An entry of the timers is due.
pub(in crate::task) fn expired(process: &Arc<Process>) {
    {
        let mut signals = lock(&process.signals);
        let (alarm, now) = (&mut signals.alarm, clock::now());
        let Some(due) = alarm.due.filter(|due| *due <= now) else { return };
        // The entry is gone.
        (alarm.due, alarm.timer) = (None, None);
        if let Some(periods) = (now - due).checked_div(alarm.interval) {
            let periods = periods + 1;
            let next = due.saturating_add(periods.saturating_mul(alarm.interval));
            alarm.start(next, process);
        }
    }
    // A standard signal is never refused.
    let _ = send(process, Info::kernel(SIGALRM));
}
