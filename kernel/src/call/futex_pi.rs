//! futex(2) of locks that pass on priorities: FUTEX_LOCK_PI, FUTEX_LOCK_PI2, FUTEX_TRYLOCK_PI,
//! FUTEX_UNLOCK_PI. `futex/pi.rs` says how they work.

use super::{Call, Outcome, Stop, fail, timespec};
use crate::clock;
use crate::errno::Errno;
use crate::futex::pi::{self, Waiter, Word};
use crate::futex::{self, Key};
use crate::task::process;
use crate::time::real_time;
use alloc::sync::Arc;
use linux_raw_sys::errno::{EPERM, ETIMEDOUT};

impl Call<'_> {
    fn word(&self, private: bool) -> Result<Word, Errno> {
        let at = self.args[0];
        Ok(Word { key: Key::of_readable(self.user(), at, private)?, at })
    }

    /// Takes a lock, or becomes a waiter of it.
    fn take(&self, word: Word, only_try: bool) -> Result<Option<Arc<Waiter>>, Errno> {
        let is_thread = |tid| process::thread(tid).is_some();
        let (thread, tid) = (self.thread.clone(), self.thread.tid());
        word.take((thread, tid), self.user(), only_try, is_thread)
    }

    /// FUTEX_UNLOCK_PI.
    pub(super) fn unlock(&self, private: bool) -> Outcome {
        // As in Linux, the word is looked at first.
        if self.user().read::<u32>(self.args[0])? & futex::OWNER != self.thread.tid() {
            return fail(EPERM);
        }
        self.word(private)?.release(self.thread.tid(), self.user())?;
        Ok(0)
    }

    /// FUTEX_TRYLOCK_PI.
    pub(super) fn try_lock(&self, private: bool) -> Outcome {
        self.take(self.word(private)?, true)?;
        Ok(0)
    }

    /// FUTEX_LOCK_PI. A handler does not end it: it is made again afterwards.
    pub(super) fn lock(&mut self, private: bool, real: bool) -> Outcome {
        let time = self.args[3];
        if time != 0 && self.own.resume.deadline.is_none() {
            let nanos = timespec(self, time)?;
            let past = if real { real_time() - clock::now() } else { 0 };
            self.own.resume.deadline = Some(nanos.saturating_sub(past));
        }
        let word = self.word(private)?;
        let waiter = match self.own.resume.lock.take() {
            Some(waiter) => waiter,
            None => match self.take(word, false)? {
                Some(waiter) => waiter,
                None => return Ok(0),
            },
        };
        self.thread.begin_wait();
        match word.has(&waiter, self.user()) {
            Ok(false) => {}
            Ok(true) => {
                self.thread.end_wait();
                return Ok(0);
            }
            Err(error) => {
                self.thread.end_wait();
                return if pi::give_up(&waiter) { Ok(0) } else { Err(error.into()) };
            }
        }
        let stop = match self.own.resume.deadline {
            Some(deadline) if clock::now() >= deadline => {
                self.thread.end_wait();
                Stop::Errno(Errno(ETIMEDOUT))
            }
            deadline => {
                if let Some(deadline) = deadline {
                    self.own.resume.wake_at(deadline, self.thread);
                }
                self.rest()
            }
        };
        if stop == Stop::Wait {
            self.own.resume.lock = Some(waiter);
        } else if pi::give_up(&waiter) {
            // It has the lock after all.
            return Ok(0);
        }
        self.own.resume.restarts = stop == Stop::Interrupted;
        Err(stop)
    }
}
