//! Changes of the readiness of files, for poll, select and epoll.
//!
//! [`Pollable::ready`](super::epoll::Pollable::ready) returns the events for which a file is ready
//! now. Threads wait at its [`Changed`] for a change, and epolls watch it there. A file changes its
//! state first, and calls [`Changed::wake`] afterwards, with no lock held. A waiter registers
//! first, and looks at `ready` afterwards. So it sees the change, or is woken.
//!
//! A change has a number, with which it is passed on over nested epolls: each passes it on once.

use super::epoll::{Epoll, Key};
use crate::errno::Errno;
use crate::lock::lock;
use crate::task::WaitQueue;
use alloc::collections::BTreeMap;
use alloc::collections::btree_map::Entry;
use alloc::sync::Arc;
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::errno::EEXIST;
use linux_raw_sys::general::{POLLIN, POLLOUT, POLLRDNORM, POLLWRNORM};
use spin::mutex::SpinMutex;

/// Bytes can be read, and can be written.
pub(crate) const READABLE: u32 = POLLIN | POLLRDNORM;
pub(crate) const WRITABLE: u32 = POLLOUT | POLLWRNORM;
/// Any change.
const ALL: u32 = u32::MAX;

/// The changes so far that epolls were told of.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// The number of a change.
pub(super) fn number() -> u64 {
    // Relaxed: the numbers only have to differ, which one variable gives. One pairs with nothing.
    CHANGES.fetch_add(1, Ordering::Relaxed) + 1
}

/// The console. It is always ready: input that has ended can be read, too.
pub(crate) static CONSOLE: Changed = Changed::new();

/// The threads that wait for a change of a file, and the epolls that watch it.
pub(crate) struct Changed {
    pub(crate) threads: WaitQueue,
    /// By the keys of their items, and by their own addresses.
    watchers: SpinMutex<BTreeMap<(Key, usize), Arc<Epoll>>>,
}

impl Changed {
    pub(crate) const fn new() -> Changed {
        Changed { threads: WaitQueue::new(), watchers: SpinMutex::new(BTreeMap::new()) }
    }

    /// Wakes all threads, and tells the epolls that the file may have become ready for `events`.
    /// Cost: two locks, and one more for each item that watches it or an epoll that passes it on.
    pub(crate) fn wake(&self, events: u32) {
        self.pass_on(events, None);
    }

    /// The same, as a part of a change.
    pub(super) fn pass_on(&self, events: u32, change: Option<u64>) {
        self.threads.wake_all();
        let watchers = lock(&self.watchers);
        if watchers.is_empty() {
            return;
        }
        let change = change.unwrap_or_else(number);
        watchers.iter().for_each(|((key, _), epoll)| epoll.tell(*key, events, change));
    }

    /// Tells of any change.
    pub(crate) fn wake_all(&self) {
        self.wake(ALL);
    }

    /// # Errors
    /// EEXIST.
    pub(super) fn watch(&self, epoll: &Arc<Epoll>, key: Key) -> Result<(), Errno> {
        match lock(&self.watchers).entry((key, Arc::as_ptr(epoll).addr())) {
            Entry::Occupied(_) => return Err(Errno(EEXIST)),
            Entry::Vacant(place) => _ = place.insert(Arc::clone(epoll)),
        }
        Ok(())
    }

    /// Takes out a watcher.
    pub(super) fn unwatch(&self, epoll: &Arc<Epoll>, key: Key) -> Option<Arc<Epoll>> {
        lock(&self.watchers).remove(&(key, Arc::as_ptr(epoll).addr()))
    }

    /// Takes out a watcher of a description.
    pub(super) fn unwatch_one(&self, owner: usize) -> Option<Arc<Epoll>> {
        let mut watchers = lock(&self.watchers);
        let first = watchers.range(((owner, 0), 0)..=((owner, u32::MAX), usize::MAX)).next();
        let at = *first?.0;
        watchers.remove(&at)
    }

    /// The epolls that watch it.
    pub(super) fn watchers(&self) -> usize {
        lock(&self.watchers).len()
    }

    /// The most epolls in a row that watch this, each the one before it; `most` at most.
    pub(super) fn levels(&self, most: usize) -> usize {
        if most == 0 {
            return 0;
        }
        let watchers = lock(&self.watchers);
        let above = watchers.values().map(|epoll| 1 + epoll.changed.levels(most - 1));
        above.max().unwrap_or(0)
    }
}
