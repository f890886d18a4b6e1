//! System calls.
//!
//! A call gets a [`Call`]: the thread, its [`Own`] part, and the arguments, which it does not
//! trust. It returns a number, or a [`Stop`]. `dispatch` makes a call, `table` has the calls by
//! number, and each other file has those of a kind.
//!
//! # Waiting
//! A call that must wait registers the thread where it will be woken, and returns [`Stop::Wait`].
//! It is made again from the beginning after each wake-up. It records its progress in
//! [`Resume`](crate::task::thread::Resume), which is empty at the first time, so that it does
//! nothing twice. A call that works for long does the same when its turn is over ([`Stop::Turn`]).

mod capability;
mod credentials;
pub(crate) mod dispatch;
mod file;
mod futex_pi;
mod memory;
mod misc;
mod missing;
pub(crate) mod outcome;
pub(crate) mod process;
mod schedule;
mod shm;
mod signal;
pub(crate) mod strace;
pub(crate) mod table;
mod time;
mod timers;
mod userfault_events;
mod wait;

use crate::task::{self, Own, Process, Space, Thread, WaitQueue};
use crate::user::copy::User;
use alloc::sync::Arc;
use linux_raw_sys::errno::ENOMEM;

pub(crate) use outcome::{Outcome, Stop, fail};
pub(crate) use time::{due, timespec, write_itimerspec};

/// A call of a thread.
pub(crate) struct Call<'a> {
    pub(crate) thread: &'a Arc<Thread>,
    pub(crate) own: &'a mut Own,
    pub(crate) args: [u64; 6],
    /// The space that was active when the call began. It stays so.
    space: &'a Arc<Space>,
}

impl<'a> Call<'a> {
    pub(crate) fn process(&self) -> &'a Arc<Process> {
        &self.thread.process
    }

    pub(crate) fn space(&self) -> &'a Arc<Space> {
        self.space
    }

    /// The memory of the program.
    pub(crate) fn user(&self) -> User<'a> {
        // SAFETY: the space is active on this CPU during a call.
        unsafe { User::new(self.space) }
    }

    /// Waits until `ready` gives a value. The caller of `queue.wake_all` makes it ready first.
    pub(crate) fn wait<T>(
        &mut self,
        queue: &WaitQueue,
        mut ready: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T, Stop> {
        if let Some(done) = ready(self) {
            return Ok(done);
        }
        self.thread.begin_wait();
        if !queue.add(self.thread) {
            self.thread.end_wait();
            return fail(ENOMEM);
        }
        if let Some(done) = ready(self) {
            self.thread.end_wait();
            return Ok(done);
        }
        Err(self.rest())
    }

    /// As [`wait`](Self::wait), but only the end of the process or of the thread interrupts it.
    pub(crate) fn wait_killable<T>(
        &mut self,
        queue: &WaitQueue,
        mut ready: impl FnMut(&mut Self) -> Option<T>,
    ) -> Result<T, Stop> {
        match self.wait(queue, &mut ready) {
            Err(Stop::Interrupted) if !task::signal::is_ending(self.thread) => {}
            outcome => return outcome,
        }
        self.thread.begin_wait();
        match ready(self) {
            None => {
                self.thread.wait_deeply();
                Err(Stop::Wait)
            }
            Some(done) => {
                self.thread.end_wait();
                Ok(done)
            }
        }
    }

    /// Whether the thread is to end. Two locks.
    pub(crate) fn is_ending(&self) -> bool {
        task::signal::is_ending(self.thread)
    }

    /// Ends a call that has begun to wait: it waits, unless a signal is pending.
    pub(crate) fn rest(&mut self) -> Stop {
        if task::signal::is_pending(self.thread) {
            self.thread.end_wait();
            return Stop::Interrupted;
        }
        Stop::Wait
    }
}
