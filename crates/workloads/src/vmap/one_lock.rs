//! A baseline: kernel areas as in Linux before 2008, with one lock, one list, and a flush on every
//! CPU at each unmap.
//!
//! The areas are a list, sorted by address. A new area takes the lock, goes through the list from
//! the beginning to the first hole that has room for it and a guard page, is linked in, and
//! releases the lock. Then its pages are mapped. An unmap takes the lock, goes through the list to
//! the area, unlinks it and clears its entries. It has *every* CPU flush them, by IPI, and releases
//! the lock when all have answered. So a hole is always flushed (I4), and all other operations wait
//! meanwhile. A reader of the list holds the lock from end to end.
//!
//! The implementation is as good as the design allows. The area is allocated before the lock is
//! taken and freed after it is released. The flush covers the range and no more. A CPU that waits
//! for the lock answers the flush of its holder ([`machine::lock`]).

use super::Areas;
use super::frames::{alloc, map, range_of, release};
use crate::error::Error;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use grace::Concurrent;
use machine::{Frame, Machine, SharedAccess, VirtAddr, VirtRange, lock};
use paging::{PageTables, X86_64L4};
use spin::mutex::SpinMutex;

/// The guard page behind each area, which faults on an overrun.
const GUARD: u64 = 4096;

/// Areas in a range of the kernel's half.
pub(crate) struct OneLockAreas<M: Machine, G: Concurrent> {
    tables: Arc<PageTables<M, X86_64L4, G>>,
    list: SpinMutex<List>,
}

/// The areas by address, within `start` to `end`.
struct List {
    start: u64,
    end: u64,
    first: Link,
}

type Link = Option<Box<Area>>;

struct Area {
    start: u64,
    pages: usize,
    /// The frames that were allocated with the area.
    frames: Vec<Frame>,
    next: Link,
}

impl Area {
    fn bytes(&self) -> u64 {
        (self.pages as u64) << 12
    }

    /// The first address that the next area may have.
    fn end(&self) -> u64 {
        self.start + self.bytes() + GUARD
    }
}

impl List {
    /// Inserts an area in the first hole that it fits in.
    fn put(&mut self, mut area: Box<Area>) -> Result<VirtAddr, Error> {
        let needed = area.bytes() + GUARD;
        let (mut at, mut link) = (self.start, &mut self.first);
        while link.as_ref().is_some_and(|next| next.start - at < needed) {
            let Some(next) = link else { break };
            at = next.end();
            link = &mut next.next;
        }
        if link.is_none() && self.end - at < needed {
            return Err(Error::Full { pages: area.pages });
        }
        area.start = at;
        area.next = link.take();
        *link = Some(area);
        Ok(VirtAddr::new(at))
    }

    /// Removes the area that begins at an address.
    fn take(&mut self, at: VirtAddr) -> Result<Box<Area>, Error> {
        let mut link = &mut self.first;
        while link.as_ref().is_some_and(|area| area.start < at.get()) {
            let Some(area) = link else { break };
            link = &mut area.next;
        }
        match link.take() {
            Some(mut area) if area.start == at.get() => {
                *link = area.next.take();
                Ok(area)
            }
            other => {
                *link = other;
                Err(Error::NoArea(at))
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Area> {
        core::iter::successors(self.first.as_deref(), |area| area.next.as_deref())
    }
}

impl Drop for List {
    fn drop(&mut self) {
        // One by one: dropping the first area would recurse through the whole list.
        let mut next = self.first.take();
        while let Some(mut area) = next {
            next = area.next.take();
        }
    }
}

impl<M: Machine, G: Concurrent> OneLockAreas<M, G> {
    /// Areas in this range, which nothing else uses.
    pub(crate) fn new(tables: Arc<PageTables<M, X86_64L4, G>>, range: VirtRange) -> Self {
        let start = range.start().get();
        let list = SpinMutex::new(List { start, end: start + range.len(), first: None });
        OneLockAreas { tables, list }
    }

    /// Makes an area of these frames. `own` are those that the area frees.
    fn add(&self, frames: &[Frame], own: Vec<Frame>) -> Result<VirtAddr, Error> {
        let machine = self.tables.machine();
        let area = Box::new(Area { start: 0, pages: frames.len(), frames: own, next: None });
        let at = lock(machine, &self.list).put(area)?;
        // SAFETY: the list has just handed out the addresses, which were flushed before they came
        // back; the frames are the caller's. The pending flush of a map that failed is made when
        // the error is dropped, before the addresses go back.
        let mapped = unsafe { map(&self.tables, at, frames) };
        if mapped.is_err() {
            lock(machine, &self.list).take(at)?;
        }
        mapped.map(|()| at)
    }

    fn remove(&self, at: VirtAddr) -> Result<Box<Area>, Error> {
        let mut list = lock(self.tables.machine(), &self.list);
        let area = list.take(at)?;
        // SAFETY: the area is off the list, so its addresses are ours. They are flushed before they
        // go back.
        let pending = unsafe { self.tables.unmap(range_of(at, area.pages)?, |_| ()) };
        pending.map_err(|failed| failed.error)?.flush();
        Ok(area)
    }
}

impl<M: Machine, G: Concurrent> Areas for OneLockAreas<M, G> {
    fn map(&self, frames: &[Frame]) -> Result<VirtAddr, Error> {
        self.keep(frames)
    }

    fn unmap(&self, at: VirtAddr, _: usize) -> Result<(), Error> {
        self.give_up(at)
    }

    fn alloc(&self, pages: usize) -> Result<VirtAddr, Error> {
        alloc(self.tables.machine(), pages, |frames| self.add(frames, frames.to_vec()))
    }

    fn free(&self, at: VirtAddr) -> Result<(), Error> {
        let area = self.remove(at)?;
        // SAFETY: the area is unmapped and flushed, and nothing else knows its frames.
        unsafe { release(self.tables.machine(), &area.frames) }
    }

    fn keep(&self, frames: &[Frame]) -> Result<VirtAddr, Error> {
        self.add(frames, Vec::new())
    }

    fn give_up(&self, at: VirtAddr) -> Result<(), Error> {
        self.remove(at).map(drop)
    }

    /// Holds the lock throughout.
    fn list(&self) -> usize {
        let machine = self.tables.machine();
        let list = lock(machine, &self.list);
        let areas = list.iter().inspect(|area| {
            core::hint::black_box((VirtAddr::new(area.start), area.pages));
            machine.step(SharedAccess::Other);
        });
        areas.count()
    }

    /// Counts guard pages as used. Goes through the whole list with the lock held.
    fn info(&self) -> (u64, u64) {
        let list = lock(self.tables.machine(), &self.list);
        let (mut used, mut largest, mut at) = (0, 0, list.start);
        for area in list.iter() {
            used += area.end() - area.start;
            largest = largest.max(area.start - at);
            at = area.end();
        }
        (used, largest.max(list.end - at))
    }
}

#[cfg(test)]
mod tests;
