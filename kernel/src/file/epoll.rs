//! Epolls: sets of files that are watched, and a list of those that may be ready.
//!
//! An item watches an open description by its [`Changed`]. A change puts the item at the end of the
//! list, once, and wakes the threads that wait. A wait takes items from the front, and asks each
//! file for the events for which it is [ready](Pollable::ready). A level-triggered item that is
//! ready goes back to the end. So the cost of a wait is that of the items in the list, not of all.
//!
//! # Why no wake-up is lost
//! A file changes its state before it tells of it. A wait takes an item out of the list before it
//! asks the file. Both take the lock of the epoll for the list. If the change is told of before the
//! item is taken out, the wait asks afterwards and sees the change. If later, the item goes into
//! the list anew. An item that a poll of the epoll finds not ready goes out of the list only if no
//! change was told of since it was looked at ([`Interest::told`]). A new item, or a new mask, is
//! asked after it can be told of. A thread that waits for the epoll is in its queue before it looks
//! at the list for the last time.
//!
//! A change that reaches an epoll by several items is passed on once ([`Items::passed`]): its cost
//! grows with the items, not with the paths. It is passed on again if the list was empty, or if a
//! wait or a poll has looked at the epoll since. Otherwise this same thread has passed it on, and
//! the list is not empty. So no thread has begun to wait since, and the epolls that watch this one
//! were told, and have yet to look at it: they find the later item, too.
//!
//! A one-shot item is disarmed under the lock by the wait that reports it: one wait gets the event.
//!
//! # References
//! An item has a weak reference to its description, which removes the item when it ends
//! (`Open::unwatch`); the file has the epoll, until the item is removed. An epoll that ends
//! removes its items from the files ([`Epoll::close`]). Items are added by calls that hold both
//! descriptions. So dropping an epoll only frees memory, and may be done with a lock held. Dropping
//! a description may close a file, and is done with none.
//!
//! # Nesting
//! At most [`LEVELS`] epolls watch each other in a row, as in Linux, and none itself. One lock is
//! held from the look until the item is there, so two calls do not make a cycle together. At most
//! [`WATCHERS`] watch the same epoll; Linux bounds the paths of each length instead.

use super::budget::Charge;
use super::ready::{Changed, READABLE, number};
use crate::errno::Errno;
use crate::lock::lock;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::ptr;
use linux_raw_sys::errno::{EINVAL, ELOOP, ENOENT, EPERM};
use linux_raw_sys::general::{
    EPOLLERR, EPOLLET, EPOLLEXCLUSIVE, EPOLLHUP, EPOLLONESHOT, EPOLLWAKEUP,
};
use spin::mutex::SpinMutex;

/// The most epolls in a row.
const LEVELS: usize = 5;
/// The most epolls that watch one epoll. So a change is told to a bounded number of epolls.
const WATCHERS: usize = 4;
/// The heap that an item uses, about.
const ITEM: usize = 192;
/// The bits of a mask that are flags of the item, not events.
const FLAGS: u32 = EPOLLET | EPOLLONESHOT | EPOLLEXCLUSIVE | EPOLLWAKEUP;

/// Held while an epoll begins to watch another one.
static NESTING: SpinMutex<()> = SpinMutex::new(());

/// An open description, as an epoll watches it.
pub(crate) trait Pollable: Send + Sync {
    /// The place where it tells of changes; none if it never changes. Epolls watch only files that
    /// change.
    fn changed(&self) -> Option<&Changed>;

    /// The events for which it is ready.
    fn ready(&self) -> u32;

    /// The file, if it is an epoll.
    fn epoll(&self) -> Option<&Arc<Epoll>>;

    /// An epoll watches it from now on.
    fn set_watched(&self);
}

/// The address of a description, and the descriptor by which it was added.
pub(crate) type Key = (usize, u32);

/// The events that a program asks an item for, and the data that the item reports with them.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    /// The events and flags.
    pub(crate) mask: u32,
    pub(crate) data: u64,
}

/// A file that is watched.
struct Interest {
    open: Weak<dyn Pollable>,
    /// The file, if it is an epoll.
    epoll: Option<Arc<Epoll>>,
    wanted: Wanted,
    /// The events of which it tells now: none of a one-shot item that has reported.
    armed: u32,
    /// Whether it is in the list, and which come before and after it.
    queued: bool,
    before: Option<Key>,
    after: Option<Key>,
    /// The changes that were told of.
    told: u64,
    _charge: Charge,
}

#[derive(Default)]
struct Items {
    all: BTreeMap<Key, Interest>,
    /// The ends of the list of those that may be ready, and how many it has. Items are linked by
    /// their keys: to put one in takes no memory, and to take one out no search of the list.
    first: Option<Key>,
    last: Option<Key>,
    queued: usize,
    /// The waits that take items now. The list lacks the items that they will give back.
    taking: usize,
    /// The change that was passed on last; 0 when the list was looked at since.
    passed: u64,
}

impl Items {
    fn queue(&mut self, key: Key, first: bool) {
        let Some(item) = self.all.get_mut(&key).filter(|item| !item.queued) else { return };
        item.queued = true;
        (item.before, item.after) = if first { (None, self.first) } else { (self.last, None) };
        let (before, after) = (item.before, item.after);
        self.link(before, Some(key), Some(key), after);
        self.queued += 1;
    }

    /// Takes an item out of the list, if it is there.
    fn unqueue(&mut self, key: Key) {
        let Some(item) = self.all.get_mut(&key).filter(|item| item.queued) else { return };
        item.queued = false;
        let (before, after) = (item.before.take(), item.after.take());
        self.link(before, after, before, after);
        self.queued -= 1;
    }

    /// `next` comes after `before` now, and `last` before `after`. None is an end of the list.
    fn link(
        &mut self,
        before: Option<Key>,
        next: Option<Key>,
        last: Option<Key>,
        after: Option<Key>,
    ) {
        match before.and_then(|key| self.all.get_mut(&key)) {
            Some(item) => item.after = next,
            None => self.first = next,
        }
        match after.and_then(|key| self.all.get_mut(&key)) {
            Some(item) => item.before = last,
            None => self.last = last,
        }
    }

    fn remove(&mut self, key: Key) -> Option<Interest> {
        self.unqueue(key);
        self.all.remove(&key)
    }
}

/// An event of an item.
pub(crate) struct Event {
    key: Key,
    pub(crate) events: u32,
    pub(crate) data: u64,
    /// It is level-triggered: a later wait asks it again.
    again: bool,
    /// The events for which the item was armed when the wait took it.
    armed: u32,
}

/// The file of a descriptor of epoll.
pub(crate) struct Epoll {
    items: SpinMutex<Items>,
    pub(crate) changed: Changed,
}

impl Epoll {
    pub(crate) fn new() -> Arc<Epoll> {
        Arc::new(Epoll { items: SpinMutex::default(), changed: Changed::new() })
    }

    /// Watches a file.
    ///
    /// # Errors
    /// EPERM: it never changes. ELOOP: too many epolls in a row, or a cycle. EINVAL: too many
    /// epolls watch it. EEXIST. ENOSPC: the budget is used up. Nothing has changed.
    pub(crate) fn add(
        self: &Arc<Self>,
        fd: u32,
        open: &Arc<dyn Pollable>,
        wanted: Wanted,
    ) -> Result<(), Errno> {
        let changed = open.changed().ok_or(Errno(EPERM))?;
        let (key, armed) = (key(&**open, fd), armed(wanted));
        let (mut epoll, mut _nesting) = (None, None);
        if let Some(nested) = open.epoll() {
            _nesting = Some(lock(&NESTING));
            epoll = Some(Arc::clone(nested));
            if 1 + self.changed.levels(LEVELS) + nested.depth(self, LEVELS) > LEVELS {
                return Err(Errno(ELOOP));
            }
            if nested.changed.watchers() >= WATCHERS {
                return Err(Errno(EINVAL));
            }
        }
        let item = Interest {
            open: Arc::downgrade(open),
            epoll,
            wanted,
            armed,
            queued: false,
            before: None,
            after: None,
            told: 0,
            _charge: Charge::new(ITEM)?,
        };
        open.set_watched();
        changed.watch(self, key)?;
        // Its file has the epoll already, so there is no other item of this key.
        lock(&self.items).all.insert(key, item);
        drop(_nesting);
        self.ask(key, &**open);
        Ok(())
    }

    /// The epolls in a row from this one on, each of which watches the next; `most` at most. A row
    /// that leads to `end` would have none with it, and counts as [`LEVELS`] more.
    fn depth(&self, end: &Epoll, most: usize) -> usize {
        if core::ptr::eq(self, end) {
            return LEVELS;
        }
        if most == 0 {
            return 0;
        }
        let items = lock(&self.items);
        let nested = items.all.values().filter_map(|item| item.epoll.as_ref());
        1 + nested.map(|nested| nested.depth(end, most - 1)).max().unwrap_or(0)
    }

    /// Changes the mask and the data of an item, and arms it.
    ///
    /// # Errors
    /// ENOENT. EINVAL: it is exclusive.
    pub(crate) fn modify(&self, fd: u32, open: &dyn Pollable, wanted: Wanted) -> Result<(), Errno> {
        let key = key(open, fd);
        {
            let mut items = lock(&self.items);
            let item = items.all.get_mut(&key).ok_or(Errno(ENOENT))?;
            if item.wanted.mask & EPOLLEXCLUSIVE != 0 {
                return Err(Errno(EINVAL));
            }
            (item.wanted, item.armed) = (wanted, armed(wanted));
        }
        self.ask(key, open);
        Ok(())
    }

    /// Puts an item into the list if its file is ready.
    fn ask(&self, key: Key, open: &dyn Pollable) {
        let ready = open.ready();
        if ready != 0 {
            self.tell(key, ready, number());
        }
    }

    /// Stops watching a file.
    ///
    /// # Errors
    /// ENOENT.
    pub(crate) fn remove(self: &Arc<Self>, fd: u32, open: &dyn Pollable) -> Result<(), Errno> {
        let key = key(open, fd);
        let item = lock(&self.items).remove(key).ok_or(Errno(ENOENT))?;
        drop(item);
        drop(open.changed().and_then(|changed| changed.unwatch(self, key)));
        Ok(())
    }

    /// Forgets an item of a description that ends.
    pub(super) fn forget(&self, owner: usize) {
        let mut items = lock(&self.items);
        let key = items.all.range((owner, 0)..=(owner, u32::MAX)).next().map(|(key, _)| *key);
        let item = key.and_then(|key| items.remove(key));
        drop(items);
        drop(item);
    }

    /// The description of the epoll ends: it watches nothing any more. No lock is held.
    pub(super) fn close(self: &Arc<Self>) {
        loop {
            let mut items = lock(&self.items);
            let Some(key) = items.all.first_key_value().map(|(key, _)| *key) else { break };
            let Some(item) = items.remove(key) else { break };
            drop(items);
            // A description that ends at this moment removes the watcher itself.
            if let Some(open) = item.open.upgrade() {
                drop(open.changed().and_then(|changed| changed.unwatch(self, key)));
            }
        }
    }

    /// The file of an item may have become ready for `events`, by a change of this number.
    pub(super) fn tell(&self, key: Key, events: u32, change: u64) {
        let mut items = lock(&self.items);
        let Some(item) = items.all.get_mut(&key) else { return };
        if item.armed & events == 0 {
            return;
        }
        item.told += 1;
        let again = items.passed == change && items.first.is_some();
        items.passed = change;
        items.queue(key, false);
        drop(items);
        if !again {
            self.changed.pass_on(READABLE, Some(change));
        }
    }

    /// Whether an item is in the list.
    pub(crate) fn has_queued(&self) -> bool {
        lock(&self.items).first.is_some()
    }

    /// A wait begins to take items: as many as are in the list now. [`give_back`](Self::give_back)
    /// follows.
    pub(crate) fn begin(&self) -> usize {
        let mut items = lock(&self.items);
        items.taking += 1;
        items.passed = 0;
        items.queued
    }

    /// Takes the next item out of the list, and returns its event, if it is ready. `None`: the list
    /// is empty.
    pub(crate) fn next(&self) -> Option<Option<Event>> {
        let (key, open) = {
            let mut items = lock(&self.items);
            let key = items.first?;
            items.unqueue(key);
            let Some(item) = items.all.get_mut(&key) else { return Some(None) };
            (key, Weak::clone(&item.open))
        };
        let Some(ready) = open.upgrade().map(|open| open.ready()) else { return Some(None) };
        let mut items = lock(&self.items);
        let Some(item) = items.all.get_mut(&key) else { return Some(None) };
        let (events, mask) = (ready & item.armed, item.wanted.mask);
        if events == 0 {
            return Some(None);
        }
        let before = item.armed;
        if mask & EPOLLONESHOT != 0 {
            item.armed = 0;
        }
        let again = mask & (EPOLLONESHOT | EPOLLET) == 0;
        Some(Some(Event { key, events, data: item.wanted.data, again, armed: before }))
    }

    /// An event could not be delivered: the item is as before, and comes first.
    pub(crate) fn take_back(&self, event: &Event) {
        let mut items = lock(&self.items);
        if let Some(item) = items.all.get_mut(&event.key) {
            // A new mask has armed it anew.
            item.armed = if item.armed == 0 { event.armed } else { item.armed };
        }
        items.queue(event.key, true);
        drop(items);
        self.changed.threads.wake_all();
    }

    /// A wait has taken its items: puts back the level-triggered ones that it has reported.
    pub(crate) fn give_back(&self, events: &[Event]) {
        let mut items = lock(&self.items);
        items.taking -= 1;
        events.iter().filter(|event| event.again).for_each(|event| items.queue(event.key, false));
        let more = items.first.is_some();
        drop(items);
        if more {
            // Other threads may have begun to wait meanwhile.
            self.changed.threads.wake_all();
        }
    }

    /// Whether an item is ready, or may be that a wait has taken. Takes those out of the list that
    /// are not.
    pub(super) fn is_ready(&self) -> bool {
        loop {
            let (key, open, told) = {
                let mut items = lock(&self.items);
                items.passed = 0;
                let Some(key) = items.first else { return items.taking > 0 };
                let Some(item) = items.all.get(&key) else { return false };
                (key, Weak::clone(&item.open), item.told)
            };
            let ready = open.upgrade().map_or(0, |open| open.ready());
            let mut items = lock(&self.items);
            let Some(item) = items.all.get_mut(&key) else { continue };
            if ready & item.armed != 0 {
                return true;
            }
            if item.told == told {
                items.unqueue(key);
            }
        }
    }
}

/// The events of which an item tells.
fn armed(wanted: Wanted) -> u32 {
    wanted.mask & !FLAGS | EPOLLERR | EPOLLHUP
}

/// The key of an item.
fn key(open: &dyn Pollable, fd: u32) -> Key {
    (ptr::from_ref(open).addr(), fd)
}
