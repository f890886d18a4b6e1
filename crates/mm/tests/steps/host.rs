//! The host's part of a world: a disk, swap, and a monitor.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
};

use crate::{common::*, ram::Ram};
use machine::Step;
use mm::*;
use paging::Swap;
use sim::Sim;

/// The userfaultfd whose faults a monitor resolves.
pub(crate) const ASKS: u64 = 1;
/// The one whose write-protection needs no monitor.
pub(crate) const ASYNC: u64 = 2;

/// The one whose monitor wants all events.
pub(crate) const TELLS: u64 = 3;

/// A userfaultfd, as a registration names it.
pub(crate) fn uffd(id: u64) -> Uffd {
    Uffd { id, follows_fork: id == TELLS, follows_remap: id == TELLS }
}

/// A monitor that resolves faults by its calls only: the access that faults is told so at once. It
/// notes the events.
pub(crate) struct Refuses {
    sim: Sim,
    /// The changes whose event was not read yet.
    changing: AtomicUsize,
    told: Mutex<Vec<String>>,
}

impl Refuses {
    pub(crate) fn new(sim: &Sim) -> Self {
        Refuses { sim: sim.clone(), changing: AtomicUsize::new(0), told: Mutex::default() }
    }

    /// Notes an event for each of these pages.
    pub(crate) fn note(&self, what: &str, pages: impl IntoIterator<Item = usize>) {
        let told = pages.into_iter().map(|at| format!("{what} {at:x}"));
        self.told.lock().unwrap().extend(told);
    }

    /// Makes a call, and forgets its events. No other call runs.
    pub(crate) fn unheard<T>(&self, call: impl FnOnce() -> T) -> T {
        let told = self.told.lock().unwrap().len();
        let done = call();
        self.told.lock().unwrap().truncate(told);
        done
    }

    /// The events, for each page one, without their order: calls that meet are told of in any.
    pub(crate) fn told(&self) -> Vec<String> {
        let mut told = self.told.lock().unwrap().clone();
        told.sort();
        told
    }
}

impl UserFaultHandler for Refuses {
    fn handle(&self, _: UserFault) -> bool {
        false
    }

    fn is_write_protect_async(&self, uffd: u64) -> bool {
        uffd == ASYNC
    }

    fn events(&self, uffd: u64) -> UserFaultEvents {
        if uffd == TELLS { UserFaultEvents::all() } else { UserFaultEvents::empty() }
    }

    fn begin_change(&self, _: u64) {
        // SeqCst, here and below: the driver runs one CPU at a time.
        self.changing.fetch_add(1, SeqCst);
    }

    fn is_changing(&self, _: u64) -> bool {
        self.changing.load(SeqCst) > 0
    }

    fn make_child(&self, uffd: u64) -> Option<u64> {
        Some(uffd)
    }

    fn deliver(&self, events: Vec<UserFaultEvent>) {
        for event in events {
            self.sim.step(machine::SharedAccess::Other);
            match event.change {
                UserFaultChange::Remove(range) => self.note("remove", range.step_by(PAGE)),
                UserFaultChange::Unmap(range) => self.note("unmap", range.step_by(PAGE)),
                UserFaultChange::Remap { from, to, len } => {
                    let moved = |at| format!("remap {:x} {:x}", from + at, to + at);
                    self.told.lock().unwrap().extend((0..len).step_by(PAGE).map(moved));
                }
                UserFaultChange::Fork { child } => {
                    self.told.lock().unwrap().push(format!("fork {child}"));
                }
            }
            self.changing.fetch_sub(1, SeqCst);
        }
    }
}

/// The pages of the file on its disk, and the size of the file there.
#[derive(Default)]
pub(crate) struct Disk {
    pub(crate) pages: Mutex<HashMap<u64, Box<[u8; PAGE]>>>,
    pub(crate) size: AtomicU64,
    /// The lock of the file's size.
    pub(crate) resizing: AtomicBool,
}

impl Disk {
    /// The bytes beyond the end go.
    pub(crate) fn set_size(&self, bytes: u64) {
        // SeqCst, here and below: the driver runs one CPU at a time.
        self.size.store(bytes, SeqCst);
        let mut pages = self.pages.lock().unwrap();
        pages.iter_mut().for_each(|(index, page)| Self::cut(*index, page, bytes));
    }

    /// The part of a page within the size counts.
    fn cut(index: u64, page: &mut [u8; PAGE], bytes: u64) {
        let within = bytes.saturating_sub(index * PAGE as u64).min(PAGE as u64);
        page[within as usize..].fill(0);
    }
}

pub(crate) struct OnDisk {
    pub(crate) sim: Sim,
    pub(crate) disk: Arc<Disk>,
}

impl PageSource for OnDisk {
    fn read(&self, index: u64, into: &mut [u8; PAGE]) -> Result<(), ObjectError> {
        self.sim.step(machine::SharedAccess::Other);
        if let Some(page) = self.disk.pages.lock().unwrap().get(&index) {
            *into = **page;
        }
        Ok(())
    }

    fn write(&self, index: u64, from: &[u8; PAGE]) -> Result<(), ObjectError> {
        self.sim.step(machine::SharedAccess::Other);
        let mut page = Box::new(*from);
        Disk::cut(index, &mut page, self.disk.size.load(SeqCst));
        self.disk.pages.lock().unwrap().insert(index, page);
        Ok(())
    }

    crate::named!(4, "/file");
}

/// Swap that may refuse a second reference to a slot.
#[derive(Default)]
pub(crate) struct Slots {
    pub(crate) ram: Ram,
    pub(crate) is_tight: AtomicBool,
}

impl Swap for Slots {
    fn write(&self, page: &[u8; PAGE]) -> Option<u64> {
        self.ram.write(page)
    }

    fn read(&self, slot: u64, page: &mut [u8; PAGE]) -> bool {
        self.ram.read(slot, page)
    }

    fn hold(&self, slot: u64) -> bool {
        // SeqCst: the driver runs one CPU at a time.
        !self.is_tight.load(SeqCst) && self.ram.hold(slot)
    }

    fn release(&self, slot: u64) {
        self.ram.release(slot);
    }
}
