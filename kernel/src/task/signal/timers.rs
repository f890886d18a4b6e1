//! The timers of a process that programs make (timer_create(2)): they send signals.
//!
//! As in Linux, a timer has one signal at most that was sent and not delivered. A periodic one is
//! started anew at the delivery, which counts the periods that have passed (the overrun). So a
//! short period costs nothing by itself. A signal carries the number of the setting that sent it:
//! one of a timer that was set anew or deleted is not delivered.
//!
//! The list's lock comes before that of a timer. Neither is held while a signal is sent.

use super::info::Info;
use crate::clock;
use crate::errno::Errno;
use crate::lock::lock;
use crate::task::timer::{self, Expire, Timer};
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use linux_raw_sys::errno::EAGAIN;
use spin::mutex::SpinMutex;

/// The most timers of a process.
const MOST: usize = 1024;

/// The process or thread to which a timer sends its signal.
pub(crate) trait Target: Send + Sync {
    /// Sends a signal. Returns false if it is ignored.
    ///
    /// # Errors
    /// EAGAIN: too many signals are pending.
    fn send(self: Arc<Self>, info: Info) -> Result<bool, Errno>;
}

#[derive(Default)]
struct State {
    /// The time at which it is due next, or was due; none if it is stopped.
    due: Option<u64>,
    interval: u64,
    timer: Option<Timer>,
    /// Its signal is sent and not delivered.
    sent: bool,
    /// Counts the settings; never 0 in a signal.
    setting: u32,
    /// The periods that passed before the last delivery without one of their own.
    overrun: u32,
}

/// A timer.
pub(crate) struct PosixTimer {
    this: Weak<PosixTimer>,
    id: u32,
    /// Times that a program gives count from 1970.
    pub(crate) real_time: bool,
    signal: u8,
    value: u64,
    /// None: it is only read.
    target: Option<Weak<dyn Target>>,
    state: SpinMutex<State>,
}

/// The timers of a process.
#[derive(Default)]
pub(crate) struct Timers {
    all: SpinMutex<(u32, Vec<Arc<PosixTimer>>)>,
}

impl Timers {
    /// Makes a timer. `value`: the value that its signal carries; none for the timer's number.
    ///
    /// # Errors
    /// EAGAIN: there are too many, or no memory.
    pub(crate) fn create(
        &self,
        real_time: bool,
        (signal, value): (u8, Option<u64>),
        target: Option<Weak<dyn Target>>,
    ) -> Result<u32, Errno> {
        let mut all = lock(&self.all);
        let (next, timers) = &mut *all;
        if timers.len() >= MOST || timers.try_reserve(1).is_err() {
            return Err(Errno(EAGAIN));
        }
        let id = (0..=MOST as u32).map(|step| (*next + step) & (i32::MAX as u32));
        let id = id.into_iter().find(|id| timers.iter().all(|timer| timer.id != *id));
        let id = id.ok_or(Errno(EAGAIN))?;
        *next = id + 1;
        let value = value.unwrap_or(id.into());
        let state = SpinMutex::default();
        timers.push(Arc::new_cyclic(|this| {
            let this = this.clone();
            PosixTimer { this, id, real_time, signal, value, target, state }
        }));
        Ok(id)
    }

    pub(crate) fn find(&self, id: u32) -> Option<Arc<PosixTimer>> {
        lock(&self.all).1.iter().find(|timer| timer.id == id).cloned()
    }

    /// Deletes a timer. Returns whether it was there.
    pub(crate) fn delete(&self, id: u32) -> bool {
        let timer = {
            let mut all = lock(&self.all);
            let place = all.1.iter().position(|timer| timer.id == id);
            place.map(|place| all.1.swap_remove(place))
        };
        timer.inspect(|timer| timer.stop()).is_some()
    }

    /// Deletes all.
    pub(crate) fn clear(&self) {
        let all = core::mem::take(&mut lock(&self.all).1);
        all.iter().for_each(|timer| timer.stop());
    }

    /// A signal of a timer is delivered now. Fills in the overrun. Returns false if it is not
    /// delivered: the timer was set anew, or is gone.
    pub(super) fn deliver(&self, info: &mut Info) -> bool {
        let Some(setting) = info.take_setting() else { return true };
        let timer = self.find(info.timer_id());
        let overrun = timer.and_then(|timer| timer.delivered(setting));
        overrun.inspect(|overrun| info.set_overrun(*overrun)).is_some()
    }

    /// Pending signals of this number were forgotten, those of timers among them.
    pub(super) fn lost(&self, signal: u8) {
        let timers = lock(&self.all);
        for timer in timers.1.iter().filter(|timer| timer.signal == signal) {
            timer.go_on(&mut lock(&timer.state));
        }
    }
}

impl PosixTimer {
    /// Nanoseconds until it is due, 0 if it does not run, and its interval. With `new`, it is set
    /// to the time and interval; without a time it stops.
    pub(crate) fn set(&self, new: Option<(Option<u64>, u64)>) -> (u64, u64) {
        let mut state = lock(&self.state);
        let now = clock::now();
        let left = match state.due {
            None => 0,
            Some(due) if due > now => due - now,
            // Its signal is on the way.
            Some(due) => match (now - due).checked_rem(state.interval) {
                Some(passed) => state.interval - passed,
                None if self.target.is_none() || state.sent => 0,
                None => 1,
            },
        };
        let before = (left, state.interval);
        if let Some((due, interval)) = new {
            if let Some(timer) = state.timer.take() {
                timer.cancel();
            }
            let setting = state.setting.wrapping_add(1).max(1);
            *state = State { due, interval, setting, ..State::default() };
            if let Some(due) = due {
                self.start(&mut state, due);
            }
        }
        before
    }

    fn stop(&self) {
        self.set(Some((None, 0)));
    }

    /// The periods that passed before the last delivery without a signal of their own.
    pub(crate) fn overrun(&self) -> u32 {
        lock(&self.state).overrun
    }

    fn start(&self, state: &mut State, due: u64) {
        state.due = Some(due);
        if self.target.is_some() {
            let this: Weak<dyn Expire> = self.this.clone();
            state.timer = Some(timer::call_at(due, this));
        }
    }

    /// Its signal was delivered, or is lost. Starts a periodic timer anew, and returns the periods
    /// that have passed meanwhile.
    fn go_on(&self, state: &mut State) -> u32 {
        let (Some(due), true) = (state.due, core::mem::take(&mut state.sent)) else { return 0 };
        match clock::now().saturating_sub(due).checked_div(state.interval) {
            None => {
                state.due = None;
                0
            }
            Some(passed) => {
                let next = due.saturating_add((passed + 1).saturating_mul(state.interval));
                self.start(state, next);
                passed.min(i32::MAX as u64) as u32
            }
        }
    }

    /// The overrun of the signal that is delivered; none if it is one of another setting.
    fn delivered(&self, setting: u32) -> Option<u32> {
        let mut state = lock(&self.state);
        if state.setting != setting || !state.sent {
            return None;
        }
        state.overrun = self.go_on(&mut state);
        Some(state.overrun)
    }

    /// Sends the signal. Returns whether it will be delivered.
    fn send(&self, setting: u32) -> bool {
        let info = Info::timer(self.signal, self.id, self.value, setting);
        let target = self.target.as_ref().and_then(Weak::upgrade);
        target.is_some_and(|target| target.send(info).unwrap_or(false))
    }
}

impl Expire for PosixTimer {
    fn expire(self: Arc<Self>) {
        let setting = {
            let mut state = lock(&self.state);
            // An entry that comes too late to be cancelled is another one's.
            if state.timer.is_none() || state.due.is_none_or(|due| due > clock::now()) {
                return;
            }
            state.timer = None;
            state.sent = true;
            state.setting
        };
        if !self.send(setting) {
            // It is ignored, or has no room. The next period may fare better.
            let mut state = lock(&self.state);
            if state.setting == setting {
                self.go_on(&mut state);
            }
        }
    }
}
