//! Locks that pass on the priority of those that wait (FUTEX_LOCK_PI).
//!
//! The word has the number of the owner, and a bit that says that others wait. Without waiters,
//! programs change it alone. Else the kernel passes the lock on: it writes the number of the first
//! waiter and takes it out of the list, as one step under the lock of the list. A waiter sets the
//! bit and enters the list as one step, too. So an owner that unlocks either finds the waiter, or
//! has unlocked before the waiter looked. The word is changed without a fault while the list is
//! locked; if its page is not there, the lock is given up, and the page is brought in.
//!
//! There are no priorities to pass on, so the lock goes to the waiter that came first. One list has
//! all waiters, with a lock that all such calls take: they are rare, because they only come when
//! threads wait. A call costs a walk over the list.
//!
//! A thread that ends leaves its locks to their first waiters, which write their numbers
//! themselves: the word may be in no other space.

use super::{HAS_WAITERS, Key, OWNER, OWNER_DIED, peek};
use crate::errno::Errno;
use crate::lock::lock;
use crate::machine::compare_exchange;
use crate::task::wait::Sleeper;
use crate::user::copy::User;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};
use linux_raw_sys::errno::{EAGAIN, EDEADLK, ENOMEM, EPERM, ESRCH};
use machine::VirtAddr;
use spin::mutex::{SpinMutex, SpinMutexGuard};

/// The most locks in a row that are looked at for a circle, as in Linux.
const DEPTH: usize = 1024;

/// A thread that waits for a lock.
pub(crate) struct Waiter {
    thread: Arc<dyn Sleeper>,
    tid: u32,
    /// It has the lock.
    granted: AtomicBool,
    /// The owner has ended, and this one is next.
    inherits: AtomicBool,
}

impl Waiter {
    fn wake(&self) {
        Arc::clone(&self.thread).wake();
    }
}

struct Waiting {
    key: Key,
    owner: u32,
    waiter: Arc<Waiter>,
}

type List = Vec<Waiting>;

static LIST: SpinMutex<List> = SpinMutex::new(Vec::new());

/// A step under the lock of the list that has met a page that is not there.
struct Absent;

/// The word of a lock.
#[derive(Clone, Copy)]
pub(crate) struct Word {
    pub(crate) key: Key,
    /// Its address, which `Key::of` has checked.
    pub(crate) at: u64,
}

/// The result of a step.
enum PiStep<T> {
    Done(T),
    /// The word has changed meanwhile.
    Again,
}

impl Word {
    /// Makes a step with the list locked, until it is done.
    fn step<T>(
        self,
        user: User<'_>,
        mut step: impl FnMut(&mut SpinMutexGuard<'_, List>, u32) -> Result<PiStep<T>, Absent>,
    ) -> Result<T, Errno> {
        loop {
            let outcome = {
                let mut list = lock(&LIST);
                peek(self.at).ok_or(Absent).and_then(|word| step(&mut list, word))
            };
            match outcome {
                Ok(PiStep::Done(done)) => return Ok(done),
                Ok(PiStep::Again) => {}
                Err(Absent) => {
                    // Brings the page in, for writing.
                    let word = user.read::<u32>(self.at)?;
                    user.compare_exchange(self.at, word, word)?;
                }
            }
        }
    }

    /// Changes the word, if it is still `old`.
    fn change(self, old: u32, new: u32) -> Result<bool, Absent> {
        // SAFETY: a program's word, in the lower half: `Key::of` has checked it.
        unsafe { compare_exchange(VirtAddr::new(self.at), old, new) }.map_err(|_| Absent)
    }

    /// Takes the lock, or enters the list. With `only_try`, fails instead of entering. `is_thread`
    /// says whether there is a thread of a number.
    ///
    /// # Errors
    /// EDEADLK: the thread has it, or a thread that has it waits for one of this thread. ESRCH: the
    /// owner is gone. EAGAIN: it has an owner. EFAULT, ENOMEM.
    pub(crate) fn take(
        self,
        (thread, tid): (Arc<dyn Sleeper>, u32),
        user: User<'_>,
        only_try: bool,
        is_thread: impl Fn(u32) -> bool,
    ) -> Result<Option<Arc<Waiter>>, Errno> {
        let waiter = Arc::new(Waiter {
            thread,
            tid,
            granted: AtomicBool::new(false),
            inherits: AtomicBool::new(false),
        });
        self.step(user, |list, word| {
            let fail = |errno| Ok(PiStep::Done(Err(Errno(errno))));
            let owner = word & OWNER;
            if owner == tid {
                return fail(EDEADLK);
            }
            if owner == 0 {
                let waits = list.iter().any(|waiting| waiting.key == self.key);
                let waits = if waits { HAS_WAITERS } else { 0 };
                let taken = self.change(word, tid | word & OWNER_DIED | waits)?;
                return Ok(if taken { PiStep::Done(Ok(None)) } else { PiStep::Again });
            }
            if only_try {
                return fail(EAGAIN);
            }
            if !is_thread(owner) {
                return fail(ESRCH);
            }
            if is_circle(list, owner, tid) {
                return fail(EDEADLK);
            }
            if list.try_reserve(1).is_err() {
                return fail(ENOMEM);
            }
            if !self.change(word, word | HAS_WAITERS)? {
                return Ok(PiStep::Again);
            }
            list.push(Waiting { key: self.key, owner, waiter: Arc::clone(&waiter) });
            Ok(PiStep::Done(Ok(Some(Arc::clone(&waiter)))))
        })?
    }

    /// Gives the lock to its first waiter, or to none.
    ///
    /// # Errors
    /// EPERM: the thread does not have it. EFAULT.
    pub(crate) fn release(self, tid: u32, user: User<'_>) -> Result<(), Errno> {
        let next = self.step(user, |list, word| {
            if word & OWNER != tid {
                return Ok(PiStep::Done(Err(Errno(EPERM))));
            }
            let first = list.iter().position(|waiting| waiting.key == self.key);
            let Some(first) = first else {
                let freed = self.change(word, 0)?;
                return Ok(if freed { PiStep::Done(Ok(None)) } else { PiStep::Again });
            };
            let others = list.iter().skip(first + 1).any(|waiting| waiting.key == self.key);
            let new = list[first].waiter.tid | if others { HAS_WAITERS } else { 0 };
            if !self.change(word, new)? {
                return Ok(PiStep::Again);
            }
            Ok(PiStep::Done(Ok(Some(grant(list, first)))))
        })??;
        if let Some(waiter) = next {
            waiter.wake();
        }
        Ok(())
    }

    /// Whether the waiter has the lock. One whose owner has ended takes it.
    ///
    /// # Errors
    /// EFAULT.
    pub(crate) fn has(self, waiter: &Waiter, user: User<'_>) -> Result<bool, Errno> {
        // Relaxed, both: written before the fence of the wake-up, and read after that of
        // `begin_wait`.
        if waiter.granted.load(Ordering::Relaxed) || !waiter.inherits.load(Ordering::Relaxed) {
            return Ok(waiter.granted.load(Ordering::Relaxed));
        }
        self.step(user, |list, word| {
            let place = list.iter().position(|waiting| core::ptr::eq(&*waiting.waiter, waiter));
            let Some(place) = place else { return Ok(PiStep::Done(true)) };
            let others = list.iter().filter(|waiting| waiting.key == self.key).count() > 1;
            let waits = if others { HAS_WAITERS } else { 0 };
            if !self.change(word, waiter.tid | OWNER_DIED | waits)? {
                return Ok(PiStep::Again);
            }
            grant(list, place);
            Ok(PiStep::Done(true))
        })
    }
}

/// Takes a waiter that has the lock now out of the list. The others wait for it.
fn grant(list: &mut List, place: usize) -> Arc<Waiter> {
    let Waiting { key, waiter, .. } = list.remove(place);
    for waiting in list.iter_mut().filter(|waiting| waiting.key == key) {
        waiting.owner = waiter.tid;
    }
    // Relaxed: see `Word::has`.
    waiter.granted.store(true, Ordering::Relaxed);
    waiter
}

/// Whether the owner waits, lock by lock, for a lock of this thread.
fn is_circle(list: &List, mut owner: u32, tid: u32) -> bool {
    for _ in 0..DEPTH {
        let Some(waiting) = list.iter().find(|waiting| waiting.waiter.tid == owner) else {
            return false;
        };
        owner = waiting.owner;
        if owner == tid {
            return true;
        }
    }
    true
}

/// Ends a wait from the waiter's side. Returns whether it has the lock.
pub(crate) fn give_up(waiter: &Arc<Waiter>) -> bool {
    let mut list = lock(&LIST);
    let place = list.iter().position(|waiting| Arc::ptr_eq(&waiting.waiter, waiter));
    let Some(place) = place else { return waiter.granted.load(Ordering::Relaxed) };
    let Waiting { key, owner, .. } = list.remove(place);
    // Relaxed: see `Word::has`.
    let next = waiter.inherits.load(Ordering::Relaxed).then(|| inherit(&list, key, owner));
    drop(list);
    if let Some(next) = next.flatten() {
        next.wake();
    }
    false
}

/// The first waiter of a lock whose owner has ended is next.
fn inherit(list: &List, key: Key, owner: u32) -> Option<Arc<Waiter>> {
    let is_first = |waiting: &&Waiting| waiting.key == key && waiting.owner == owner;
    let waiter = Arc::clone(&list.iter().find(is_first)?.waiter);
    // Relaxed: see `Word::has`.
    waiter.inherits.store(true, Ordering::Relaxed);
    Some(waiter)
}

/// A thread ends, with locks that others wait for.
pub(crate) fn leave(tid: u32) {
    let list = lock(&LIST);
    for place in 0..list.len() {
        let Waiting { key, owner, .. } = list[place];
        let is_first = !list[..place].iter().any(|before| before.key == key);
        if owner == tid
            && is_first
            && let Some(waiter) = inherit(&list, key, owner)
        {
            waiter.wake();
        }
    }
}
