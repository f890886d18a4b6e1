//! The kernel's areas as they were: one lock, one list, and at each unmap a flush on every CPU.
//!
//! It is what Linux did before 2008. The areas are a list, sorted by address. Who wants one takes
//! the lock, goes through the list from its beginning to the first hole that is large enough, with
//! a guard page behind the area, links the area in and gives the lock back; then the pages are
//! mapped. Who unmaps one takes the lock, goes through the list to the area, unlinks it, clears its
//! entries and has *every* CPU drop them, by interrupt, and gives the lock back when all have
//! answered. So whoever finds the hole finds it flushed (I4), and all who want an area meanwhile
//! wait. Who reads the list holds the lock from end to end.
//!
//! It is written as well as it can be that way: the area is allocated before the lock is taken and
//! freed after it; the flush is of the range and no more; who waits for the lock answers to the
//! flush of its holder ([`machine::lock`]).

use crate::error::Error;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use grace::Concurrent;
use machine::{Frame, FrameError, Machine, PageSize, Place, VirtAddr, VirtRange, lock};
use paging::{Attrs, PageTables, X86_64L4};
use spin::mutex::SpinMutex;

/// Behind each area, so that who runs over its end is told.
const GUARD: u64 = 4096;

/// Areas in a range of the kernel's half.
pub(crate) struct OldAreas<M: Machine, G: Concurrent> {
    tables: Arc<PageTables<M, X86_64L4, G>>,
    list: SpinMutex<List>,
}

/// The areas, by address, within `start` to `end`.
struct List {
    start: u64,
    end: u64,
    first: Link,
}

type Link = Option<Box<Area>>;

struct Area {
    start: u64,
    pages: usize,
    /// Those that belong to the area, if it was allocated with it.
    frames: Vec<Frame>,
    next: Link,
}

impl Area {
    fn bytes(&self) -> u64 {
        (self.pages as u64) << 12
    }

    /// Where the next may begin.
    fn end(&self) -> u64 {
        self.start + self.bytes() + GUARD
    }
}

impl List {
    /// Puts an area into the first hole that it fits in.
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

    /// Takes out the area that begins at an address.
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
        // One by one: a long list dropped from its first would go as deep as it is long.
        let mut next = self.first.take();
        while let Some(mut area) = next {
            next = area.next.take();
        }
    }
}

impl<M: Machine, G: Concurrent> OldAreas<M, G> {
    /// Areas in this range, which nobody else uses.
    pub(crate) fn new(tables: Arc<PageTables<M, X86_64L4, G>>, range: VirtRange) -> Self {
        let start = range.start().get();
        let list = SpinMutex::new(List { start, end: start + range.len(), first: None });
        OldAreas { tables, list }
    }

    pub(crate) fn machine(&self) -> &M {
        self.tables.machine()
    }

    /// Maps frames one behind the other.
    pub(crate) fn vmap(&self, frames: &[Frame]) -> Result<VirtAddr, Error> {
        self.add(frames.len(), Vec::new(), |page| {
            frames.get(page).copied().ok_or(FrameError::OutOfFrames { order: 0 })
        })
    }

    /// Unmaps an area, and has every CPU drop it.
    pub(crate) fn vunmap(&self, at: VirtAddr) -> Result<(), Error> {
        self.remove(at).map(drop)
    }

    /// Allocates frames and maps them.
    pub(crate) fn vmalloc(&self, pages: usize) -> Result<VirtAddr, Error> {
        let mut frames = Vec::with_capacity(pages);
        for _ in 0..pages {
            match self.machine().alloc(0, Place::Local) {
                Ok(frame) => frames.push(frame),
                Err(error) => {
                    self.release(frames)?;
                    return Err(error.into());
                }
            }
        }
        let kept = frames.clone();
        let added = self.add(pages, frames, |page| {
            kept.get(page).copied().ok_or(FrameError::OutOfFrames { order: 0 })
        });
        if added.is_err() {
            self.release(kept)?;
        }
        added
    }

    /// Unmaps an area as [`vunmap`](Self::vunmap), and frees its frames.
    pub(crate) fn vfree(&self, at: VirtAddr) -> Result<(), Error> {
        let area = self.remove(at)?;
        self.release(area.frames)
    }

    /// Calls `each` with the start and the pages of each area, with the lock held.
    pub(crate) fn list(&self, mut each: impl FnMut(VirtAddr, usize)) {
        let list = lock(self.machine(), &self.list);
        list.iter().for_each(|area| each(VirtAddr::new(area.start), area.pages));
    }

    /// The bytes of all areas with their guards, and of the largest hole: through the whole list,
    /// with the lock held.
    pub(crate) fn info(&self) -> (u64, u64) {
        let list = lock(self.machine(), &self.list);
        let (mut used, mut largest, mut at) = (0, 0, list.start);
        for area in list.iter() {
            used += area.end() - area.start;
            largest = largest.max(area.start - at);
            at = area.end();
        }
        (used, largest.max(list.end - at))
    }

    fn add(
        &self,
        pages: usize,
        frames: Vec<Frame>,
        mut frame: impl FnMut(usize) -> Result<Frame, FrameError>,
    ) -> Result<VirtAddr, Error> {
        let machine = self.machine();
        let area = Box::new(Area { start: 0, pages, frames, next: None });
        let at = lock(machine, &self.list).put(area)?;
        let place = |to: VirtAddr, _: PageSize| {
            Ok((frame((to.get() - at.get()) as usize >> 12)?, PageSize::Size4K))
        };
        let mapped = self.map(at, pages, place);
        if mapped.is_err() {
            lock(machine, &self.list).take(at)?;
        }
        mapped.map(|()| at)
    }

    fn map(&self, at: VirtAddr, pages: usize, place: impl paging::Supply) -> Result<(), Error> {
        let range = range_of(at, pages)?;
        self.machine().check_reuse(None, range);
        // What is owed for a map that failed is paid as it is dropped, before the addresses are
        // given up. SAFETY: the list has just given us the range, which was flushed when it came
        // back; the frames are the caller's.
        let mapped = unsafe { self.tables.map_with(range, Attrs::KERNEL_RW, place) };
        Ok(mapped.map_err(|failed| failed.error)?)
    }

    fn remove(&self, at: VirtAddr) -> Result<Box<Area>, Error> {
        let mut list = lock(self.machine(), &self.list);
        let area = list.take(at)?;
        // SAFETY: the area is off the list, so its addresses are ours; they are flushed before they
        // go back.
        let owed = unsafe { self.tables.unmap(range_of(at, area.pages)?, |_| ()) };
        owed.map_err(|failed| failed.error)?.flush();
        Ok(area)
    }

    fn release(&self, frames: Vec<Frame>) -> Result<(), Error> {
        for frame in frames {
            // SAFETY: allocated with the area, whose pages are unmapped and flushed; nobody else
            // knows of it.
            unsafe { self.machine().release(frame) }?;
        }
        Ok(())
    }
}

fn range_of(at: VirtAddr, pages: usize) -> Result<VirtRange, Error> {
    VirtRange::new(at, (pages as u64) << 12).ok_or(Error::Full { pages })
}

#[cfg(test)]
mod tests;
