//! Events of userfaultfd: a call that has changed registered memory waits until the monitor has
//! read of it.
//!
//! `mm` tells this CPU of the events when the change is done ([`userfaultfd::Found`]). The call
//! takes them ([`Events::take`]) and records them in [`Resume`](crate::task::thread::Resume), with
//! its result: made again, it only waits on. As in Linux, one event is told after the other, and
//! only the end of the thread, or of the monitor, ends the waiting otherwise.
//!
//! A fork makes the monitor of the child's memory. The event keeps it until a process has read the
//! event, and has got a descriptor for it. If none does, it is dropped, and the child's memory is
//! not registered.

use super::userfaultfd::{self, MESSAGE, Monitor};
use crate::lock::lock;
use crate::task::memory::Space;
use crate::task::wait::{Sleeper, WaitQueue};
use alloc::sync::{Arc, Weak};
use alloc::vec::{self, Vec};
use core::sync::atomic::{AtomicBool, Ordering};
use mm::{UserFaultChange, UserFaultEvent};

/// A message of userfaultfd.
pub(crate) type Words = [u64; MESSAGE / 8];

/// Whether an event was read. Its call and its monitor share it.
pub(crate) struct Told {
    uffd: u64,
    done: AtomicBool,
    /// The thread of the call.
    pub(crate) waiting: WaitQueue,
}

impl Told {
    pub(crate) fn is_done(&self) -> bool {
        // Acquire: pairs with `finish`. The call goes on when the monitor has read the event.
        self.done.load(Ordering::Acquire)
    }

    /// The event was read, or its call or its monitor has ended.
    pub(crate) fn finish(&self) {
        // Release: pairs with `is_done`. Acquire is not needed: the first one ends the change.
        if !self.done.swap(true, Ordering::Release) {
            userfaultfd::end_change(self.uffd);
            self.waiting.wake_all();
        }
    }
}

/// An event in the queue of a monitor.
pub(crate) struct Event {
    pub(super) message: Words,
    /// The monitor of a child.
    pub(crate) child: Option<Arc<Monitor>>,
    pub(crate) told: Arc<Told>,
}

/// The next message of a monitor: a fault or an event.
pub(crate) enum Message {
    /// A thread that waits for a page.
    Fault(Words, Arc<dyn Sleeper>),
    Event(Event),
}

impl Message {
    pub(crate) fn words(&self) -> Words {
        match self {
            Message::Fault(words, _) | Message::Event(Event { message: words, .. }) => *words,
        }
    }

    /// The monitor of a child, for which the reader gets a descriptor.
    pub(crate) fn child(&self) -> Option<&Arc<Monitor>> {
        match self {
            Message::Event(event) => event.child.as_ref(),
            Message::Fault(..) => None,
        }
    }

    /// It was read.
    pub(crate) fn finish(&self) {
        if let Message::Event(event) = self {
            event.told.finish();
        }
    }
}

/// The events for which a call waits. Dropping it gives them up.
pub(crate) struct Events {
    rest: vec::IntoIter<UserFaultEvent>,
    /// The monitors of the child of a fork.
    children: Vec<Arc<Monitor>>,
    current: Option<(Weak<Monitor>, Arc<Told>)>,
}

impl Events {
    /// Those of the call that this CPU has just made, if there are any; `child` is the space that a
    /// fork has made.
    pub(crate) fn take(child: Option<&Arc<Space>>) -> Option<Events> {
        let (events, children) = {
            let mut found = lock(userfaultfd::found());
            (core::mem::take(&mut found.events), core::mem::take(&mut found.children))
        };
        if let Some(space) = child {
            children.iter().for_each(|monitor| monitor.set_space(space));
        }
        // Without events, the monitors that a failed fork has made are dropped.
        (!events.is_empty()).then(|| Events { rest: events.into_iter(), children, current: None })
    }

    /// The event for which the call waits now: the next one, if the last one was read.
    pub(crate) fn next(&mut self) -> Option<Arc<Told>> {
        loop {
            if let Some((_, told)) = self.current.as_ref().filter(|(_, told)| !told.is_done()) {
                return Some(Arc::clone(told));
            }
            let event = self.rest.next()?;
            let uffd = event.uffd;
            self.current = self.post(event);
            if self.current.is_none() {
                // The monitor was closed; or without memory, it does not hear of it.
                userfaultfd::end_change(uffd);
            }
        }
    }

    fn post(&mut self, event: UserFaultEvent) -> Option<(Weak<Monitor>, Arc<Told>)> {
        const FORK: u64 = 0x13;
        const REMAP: u64 = 0x14;
        const REMOVE: u64 = 0x15;
        const UNMAP: u64 = 0x16;
        let UserFaultEvent { uffd, change } = event;
        let (message, child) = match change {
            UserFaultChange::Fork { child } => {
                let place = self.children.iter().position(|monitor| monitor.is(child));
                ([FORK, 0, 0, 0], place.map(|place| self.children.swap_remove(place)))
            }
            UserFaultChange::Remap { from, to, len } => {
                ([REMAP, from as u64, to as u64, len as u64], None)
            }
            UserFaultChange::Remove(range) => {
                ([REMOVE, range.start as u64, range.end as u64, 0], None)
            }
            UserFaultChange::Unmap(range) => {
                ([UNMAP, range.start as u64, range.end as u64, 0], None)
            }
        };
        let monitor = userfaultfd::find(uffd)?;
        let done = AtomicBool::new(false);
        let told = Arc::new(Told { uffd, done, waiting: WaitQueue::new() });
        monitor.post(Event { message, child, told: Arc::clone(&told) }).ok()?;
        Some((Arc::downgrade(&monitor), told))
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if let Some((monitor, told)) = self.current.take() {
            told.finish();
            monitor.upgrade().inspect(|monitor| monitor.take_back(&told));
        }
        self.rest.by_ref().for_each(|event| userfaultfd::end_change(event.uffd));
    }
}
