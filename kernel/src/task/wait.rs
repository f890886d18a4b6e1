//! Queues of threads that wait for an event.

use super::{Thread, lock};
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
    pub(crate) fn add(&self, thread: &Arc<Thread>) -> bool {
        let mut threads = lock(&self.0);
        if threads.iter().any(|other| Arc::ptr_eq(other, thread)) {
            return true;
        }
        if threads.try_reserve(1).is_err() {
            return false;
        }
        threads.push(Arc::clone(thread));
        true
    }

    /// Wakes all.
    pub(crate) fn wake_all(&self) {
        let threads = core::mem::take(&mut *lock(&self.0));
        threads.iter().for_each(|thread| thread.wake());
    }
}
