//! Timers with a descriptor: timerfd(2).
//!
//! A timer has one entry at most in the timers of the CPUs. As in Linux, a periodic timer that is
//! due stays so until it is read, which counts the periods that have passed and starts it anew. So
//! a short period costs nothing by itself.

use super::ready::{Changed, READABLE};
use crate::clock;
use crate::lock::lock;
use crate::task::timer::{self, Expire, Timer};
use alloc::sync::{Arc, Weak};
use spin::mutex::SpinMutex;

#[derive(Default)]
struct State {
    /// The time at which it is due next, or was due; none if it is stopped.
    due: Option<u64>,
    interval: u64,
    /// It was due, and was not read.
    ticks: u64,
    timer: Option<Timer>,
}

/// The file of a descriptor of timerfd.
pub(crate) struct TimerFd {
    /// Times that a program gives count from 1970.
    pub(crate) real_time: bool,
    state: SpinMutex<State>,
    pub(crate) changed: Changed,
}

impl TimerFd {
    pub(crate) fn new(real_time: bool) -> Arc<TimerFd> {
        Arc::new(TimerFd { real_time, state: SpinMutex::default(), changed: Changed::new() })
    }

    pub(super) fn is_ready(&self) -> bool {
        lock(&self.state).ticks > 0
    }

    /// Nanoseconds until it is due, 0 if it does not run, and its interval. With `new`, it is set
    /// to the time and interval; without a time it stops.
    pub(crate) fn set(self: &Arc<Self>, new: Option<(Option<u64>, u64)>) -> (u64, u64) {
        let mut state = lock(&self.state);
        self.go_on(&mut state);
        let left = state.due.map_or(0, |due| due.saturating_sub(clock::now()).max(1));
        let before = (if state.timer.is_some() { left } else { 0 }, state.interval);
        if let Some((due, interval)) = new {
            if let Some(timer) = state.timer.take() {
                timer.cancel();
            }
            *state = State { due, interval, ..State::default() };
            if let Some(due) = due {
                self.start(&mut state, due);
            }
        }
        before
    }

    /// The times that it was due since the last read. `None`: it was not.
    pub(crate) fn take(self: &Arc<Self>) -> Option<u64> {
        let mut state = lock(&self.state);
        self.go_on(&mut state);
        let ticks = core::mem::take(&mut state.ticks);
        (ticks > 0).then_some(ticks)
    }

    /// Counts the periods that have passed of a timer that was due, and starts it anew.
    fn go_on(self: &Arc<Self>, state: &mut State) {
        let (Some(due), None, 1..) = (state.due, &state.timer, state.ticks) else { return };
        match clock::now().saturating_sub(due).checked_div(state.interval) {
            None => state.due = None,
            Some(passed) => {
                state.ticks += passed;
                let next = due.saturating_add((passed + 1).saturating_mul(state.interval));
                self.start(state, next);
            }
        }
    }

    fn start(self: &Arc<Self>, state: &mut State, due: u64) {
        state.due = Some(due);
        let this = Arc::downgrade(self);
        let this: Weak<dyn Expire> = this;
        state.timer = Some(timer::call_at(due, this));
    }
}

impl Expire for TimerFd {
    fn expire(self: Arc<Self>) {
        {
            let mut state = lock(&self.state);
            // An entry that comes too late to be cancelled is another one's.
            if state.timer.is_none() || state.due.is_none_or(|due| due > clock::now()) {
                return;
            }
            state.timer = None;
            state.ticks += 1;
        }
        self.changed.wake(READABLE);
    }
}

impl Drop for TimerFd {
    fn drop(&mut self) {
        if let Some(timer) = self.state.get_mut().timer.take() {
            timer.cancel();
        }
    }
}
