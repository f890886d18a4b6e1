//! The readiness of open descriptions, and the entries of a poll or select.

use super::device::Device;
use super::epoll::{Epoll, Pollable};
use super::inode::InodeKind;
use super::open::Open;
use super::pipe::PIPE_BUF;
use super::ready::{CONSOLE, Changed, READABLE, WRITABLE};
use super::socket::Socket;
use alloc::sync::Arc;
use core::cell::Cell;
use core::sync::atomic::Ordering;
use linux_raw_sys::general::{POLLERR, POLLHUP, POLLIN, POLLNVAL};

impl Pollable for Open {
    fn changed(&self) -> Option<&Changed> {
        match &self.node.kind {
            InodeKind::Pipe(pipe) => Some(&pipe.changed),
            InodeKind::Monitor(monitor) => Some(&monitor.changed),
            InodeKind::Event(event) => Some(&event.changed),
            InodeKind::Timer(timer) => Some(&timer.changed),
            InodeKind::Epoll(epoll) => Some(&epoll.changed),
            InodeKind::Socket => self.socket().map(|socket| &socket.changed),
            InodeKind::Process(pidfd) => Some(&pidfd.pid.changed),
            InodeKind::Device(Device::Console | Device::Errors | Device::Random) => Some(&CONSOLE),
            _ => None,
        }
    }

    fn ready(&self) -> u32 {
        let flag = |events, is: bool| if is { events } else { 0 };
        match &self.node.kind {
            InodeKind::Pipe(pipe) => {
                let ready = pipe.ready();
                // A reader that came before the first writer has not lost one.
                let lost = !ready.writers && self.other_before != Some(pipe.openings(false));
                let reads = flag(READABLE, ready.bytes > 0) | flag(POLLHUP, lost);
                let room = ready.room >= PIPE_BUF;
                let writes = flag(WRITABLE, room) | flag(POLLERR, !ready.readers);
                flag(reads, self.mode.read) | flag(writes, self.mode.write)
            }
            InodeKind::Monitor(monitor) => match monitor.is_ready() && self.is_nonblocking() {
                true => flag(POLLIN, monitor.has_message()),
                false => POLLERR,
            },
            InodeKind::Event(event) => event.ready(),
            InodeKind::Timer(timer) => flag(POLLIN, timer.is_ready()),
            InodeKind::Epoll(epoll) => flag(READABLE, epoll.is_ready()),
            InodeKind::Socket => self.socket().map_or(0, Socket::ready),
            InodeKind::Process(pidfd) => pidfd.ready(),
            _ => READABLE | WRITABLE,
        }
    }

    fn epoll(&self) -> Option<&Arc<Epoll>> {
        if let InodeKind::Epoll(epoll) = &self.node.kind { Some(epoll) } else { None }
    }

    fn set_watched(&self) {
        // Relaxed: the description is dropped after this call.
        self.is_watched.store(true, Ordering::Relaxed);
    }
}

impl Open {
    /// The description ends: no epoll watches it any more. No lock is held.
    pub(super) fn unwatch(&mut self) {
        if !*self.is_watched.get_mut() {
            return;
        }
        let Some(changed) = self.changed() else { return };
        while let Some(epoll) = changed.unwatch_one(self.owner()) {
            epoll.forget(self.owner());
        }
    }
}

/// An entry of a poll or select: a descriptor, the events that it asks for, and those found.
pub(crate) struct PolledFile {
    /// The place among those of the program: an index, or the number.
    pub(crate) place: usize,
    /// None: it is not open.
    pub(crate) open: Option<Arc<Open>>,
    /// It stands for no descriptor.
    pub(crate) none: bool,
    pub(crate) events: u32,
    pub(crate) found: Cell<u32>,
}

/// Looks at all entries, and returns how many are ready.
pub(crate) fn look(entries: &[PolledFile]) -> u64 {
    for entry in entries.iter().filter(|entry| !entry.none) {
        let found = entry.open.as_ref().map_or(POLLNVAL, |open| open.ready() & entry.events);
        entry.found.set(found);
    }
    entries.iter().filter(|entry| entry.found.get() != 0).count() as u64
}
