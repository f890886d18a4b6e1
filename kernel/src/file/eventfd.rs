//! Counters of events: eventfd(2).

use super::ready::{Changed, READABLE, WRITABLE};
use crate::lock::lock;
use alloc::sync::Arc;
use linux_raw_sys::general::{POLLIN, POLLOUT};
use spin::mutex::SpinMutex;

/// The highest count.
const MOST: u64 = u64::MAX - 1;

/// The file of a descriptor of eventfd.
pub(crate) struct EventFd {
    count: SpinMutex<u64>,
    /// A read takes one (EFD_SEMAPHORE), not all.
    single: bool,
    pub(crate) changed: Changed,
}

impl EventFd {
    pub(crate) fn new(count: u64, single: bool) -> Arc<EventFd> {
        Arc::new(EventFd { count: SpinMutex::new(count), single, changed: Changed::new() })
    }

    pub(super) fn ready(&self) -> u32 {
        let count = *lock(&self.count);
        // As in Linux, without POLLRDNORM and POLLWRNORM.
        let reads = if count > 0 { POLLIN } else { 0 };
        reads | if count < MOST { POLLOUT } else { 0 }
    }

    /// Takes the count, or one of it. `None`: it is 0.
    pub(crate) fn take(&self) -> Option<u64> {
        let taken = {
            let mut count = lock(&self.count);
            let taken = if self.single { (*count).min(1) } else { *count };
            *count -= taken;
            taken
        };
        (taken > 0).then(|| {
            self.changed.wake(WRITABLE);
            taken
        })
    }

    /// Adds to the count. `None`: there is no room.
    pub(crate) fn add(&self, more: u64) -> Option<()> {
        {
            let mut count = lock(&self.count);
            *count = count.checked_add(more).filter(|sum| *sum <= MOST)?;
        }
        self.changed.wake(READABLE);
        Some(())
    }
}
