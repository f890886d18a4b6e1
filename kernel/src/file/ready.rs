//! How files tell that they are ready: for poll, select and epoll.
//!
//! [`Open::ready`] says what a file is ready for now. Its [`Changed`] is where threads wait for a
//! change, and where epolls watch it. A file changes its state first, and calls [`Changed::wake`]
//! afterwards, with no lock held. A waiter registers first, and looks at `ready` afterwards. So it
//! sees the change, or is woken.

use super::epoll::{Epoll, Key};
use super::node::{Device, Kind};
use super::open::Open;
use super::pipe::PIPE_BUF;
use crate::call::Errno;
use crate::task::{WaitQueue, lock};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use linux_raw_sys::errno::ENOMEM;
use linux_raw_sys::general::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDNORM, POLLWRNORM};
use spin::mutex::SpinMutex;

/// Bytes can be read, and can be written.
pub(crate) const READABLE: u32 = POLLIN | POLLRDNORM;
pub(crate) const WRITABLE: u32 = POLLOUT | POLLWRNORM;
/// Any change.
const ALL: u32 = u32::MAX;

/// The console. It is always ready: input that has ended can be read, too.
pub(crate) static CONSOLE: Changed = Changed::new();

/// The threads that wait for a change of a file, and the epolls that watch it.
pub(crate) struct Changed {
    pub(crate) threads: WaitQueue,
    watchers: SpinMutex<Vec<(Arc<Epoll>, Key)>>,
}

impl Changed {
    pub(crate) const fn new() -> Changed {
        Changed { threads: WaitQueue::new(), watchers: SpinMutex::new(Vec::new()) }
    }

    /// Wakes all threads, and tells the epolls that the file may have become ready for `events`.
    /// Cost: two locks, and one more for each epoll.
    pub(crate) fn wake(&self, events: u32) {
        self.threads.wake_all();
        let watchers = lock(&self.watchers);
        watchers.iter().for_each(|(epoll, key)| epoll.tell(*key, events));
    }

    /// Tells of any change.
    pub(crate) fn wake_all(&self) {
        self.wake(ALL);
    }

    /// # Errors
    /// ENOMEM.
    pub(super) fn watch(&self, epoll: &Arc<Epoll>, key: Key) -> Result<(), Errno> {
        let mut watchers = lock(&self.watchers);
        watchers.try_reserve(1).map_err(|_| Errno(ENOMEM))?;
        watchers.push((Arc::clone(epoll), key));
        Ok(())
    }

    /// Takes out one watcher that `is` names.
    pub(super) fn unwatch(&self, is: impl Fn(&Arc<Epoll>, Key) -> bool) -> Option<Arc<Epoll>> {
        let mut watchers = lock(&self.watchers);
        let place = watchers.iter().position(|(epoll, key)| is(epoll, *key))?;
        Some(watchers.swap_remove(place).0)
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
        let above = watchers.iter().map(|(epoll, _)| 1 + epoll.changed.levels(most - 1));
        above.max().unwrap_or(0)
    }
}

impl Open {
    /// Where a change is told of, if there can be one. Epolls watch only such files.
    pub(crate) fn changed(&self) -> Option<&Changed> {
        match &self.node.kind {
            Kind::Pipe(pipe) => Some(&pipe.changed),
            Kind::Monitor(monitor) => Some(&monitor.changed),
            Kind::Event(event) => Some(&event.changed),
            Kind::Timer(timer) => Some(&timer.changed),
            Kind::Epoll(epoll) => Some(&epoll.changed),
            Kind::Socket(socket) => Some(&socket.changed),
            Kind::Device(Device::Console | Device::Errors | Device::Random) => Some(&CONSOLE),
            _ => None,
        }
    }

    /// What it is ready for.
    pub(crate) fn ready(&self) -> u32 {
        let flag = |events, is: bool| if is { events } else { 0 };
        match &self.node.kind {
            Kind::Pipe(pipe) => {
                let ready = pipe.ready();
                let reads = flag(READABLE, ready.bytes > 0) | flag(POLLHUP, !ready.writers);
                let room = ready.room >= PIPE_BUF;
                let writes = flag(WRITABLE, room) | flag(POLLERR, !ready.readers);
                flag(reads, self.mode.read) | flag(writes, self.mode.write)
            }
            Kind::Monitor(monitor) => match monitor.is_ready() && self.is_nonblocking() {
                true => flag(READABLE, monitor.has_message()),
                false => POLLERR,
            },
            Kind::Event(event) => event.ready(),
            Kind::Timer(timer) => flag(READABLE, timer.is_ready()),
            Kind::Epoll(epoll) => flag(READABLE, epoll.is_ready()),
            Kind::Socket(socket) => socket.ready(),
            _ => READABLE | WRITABLE,
        }
    }

    /// The description ends: no epoll watches it any more. No lock is held.
    pub(super) fn unwatch(&mut self) {
        if !*self.is_watched.get_mut() {
            return;
        }
        let Some(changed) = self.changed() else { return };
        let own = |key: Key| key.0 == self.owner();
        while let Some(epoll) = changed.unwatch(|_, key| own(key)) {
            epoll.forget(self.owner());
        }
    }

    /// An epoll watches it from now on.
    pub(super) fn set_watched(&self) {
        // Relaxed: the description is dropped after this call.
        self.is_watched.store(true, Ordering::Relaxed);
    }
}
