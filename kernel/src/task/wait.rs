//! Queues of threads that wait for an event.

use super::Thread;
use crate::lock::lock;
use alloc::sync::Arc;
use alloc::vec::Vec;
use spin::mutex::SpinMutex;

/// Threads that wait for the same event. A wake-up wakes all; each makes its call again, and waits
/// again if the event was another's.
#[derive(Default)]
pub(crate) struct WaitQueue(SpinMutex<Vec<Arc<Thread>>>);

impl WaitQueue {
    pub(crate) const fn new() -> Self {
        WaitQueue(SpinMutex::new(Vec::new()))
    }

    /// Adds a thread that has [begun to wait](Thread::begin_wait). It may be there from an earlier
    /// wait that ended otherwise. Returns false without memory.
    ///
    /// A thread that has ended leaves for one that comes. So no more are in the queue than have
    /// lived at once, even if no event ever comes.
    pub(crate) fn add(&self, thread: &Arc<Thread>) -> bool {
        let mut threads = lock(&self.0);
        if threads.iter().any(|other| Arc::ptr_eq(other, thread)) {
            return true;
        }
        let ended = threads.iter().position(|other| other.has_ended());
        let ended = ended.map(|at| threads.swap_remove(at));
        let room = threads.try_reserve(1).is_ok();
        if room {
            threads.push(Arc::clone(thread));
        }
        drop(threads);
        // Without the lock: the last reference to a process frees much.
        drop(ended);
        room
    }

    /// Wakes all.
    pub(crate) fn wake_all(&self) {
        let threads = core::mem::take(&mut *lock(&self.0));
        threads.iter().for_each(|thread| thread.wake());
    }
}
