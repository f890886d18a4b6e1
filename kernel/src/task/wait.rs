//! Queues of threads that wait for an event.
//!
//! A queue knows its threads only as [`Sleeper`]s, because files, futexes and timers have queues
//! and threads have files. Cost: an indirect call for each thread that is woken.

use crate::lock::lock;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr;
use spin::mutex::SpinMutex;

/// A thread, as the queues know it in which it waits for an event.
pub(crate) trait Sleeper: Send + Sync {
    /// Ends its waiting, if it waits. Call it after the event.
    fn wake(self: Arc<Self>);

    /// Whether it never waits again.
    fn has_ended(&self) -> bool;
}

/// Threads that wait for the same event. A wake-up wakes all; each makes its call again, and waits
/// again if the event was another's.
#[derive(Default)]
pub(crate) struct WaitQueue(SpinMutex<Vec<Arc<dyn Sleeper>>>);

impl WaitQueue {
    pub(crate) const fn new() -> Self {
        WaitQueue(SpinMutex::new(Vec::new()))
    }

    /// Adds a thread that has begun to wait. It may be there from an earlier wait that ended
    /// otherwise. Returns false without memory.
    ///
    /// A thread that has ended leaves for one that comes. So no more are in the queue than have
    /// lived at once, even if no event ever comes.
    pub(crate) fn add<T: Sleeper + 'static>(&self, thread: &Arc<T>) -> bool {
        let mut threads = lock(&self.0);
        if threads.iter().any(|other| ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(thread))) {
            return true;
        }
        let ended = threads.iter().position(|other| other.has_ended());
        let ended = ended.map(|at| threads.swap_remove(at));
        let room = threads.try_reserve(1).is_ok();
        if room {
            threads.push(Arc::<T>::clone(thread));
        }
        drop(threads);
        // Without the lock: the last reference to a process frees much.
        drop(ended);
        room
    }

    /// Wakes all.
    pub(crate) fn wake_all(&self) {
        let threads = core::mem::take(&mut *lock(&self.0));
        threads.into_iter().for_each(Sleeper::wake);
    }
}
