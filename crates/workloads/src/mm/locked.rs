//! The first baseline, as in Linux 5.10: a balanced tree with gaps, and one readers-writer lock.
//!
//! Faults hold the lock for reading, calls for writing.

use super::areas::{Area, Areas};
use super::context::SpaceContext;
use super::memory::{HEAP, Memory, PAGE, SharedMemory, TOP, VmaType};
use super::pages::{Fault, Pages};
use crate::error::Error;
use alloc::sync::Arc;
use grace::Concurrent;
use lock_api::{RawRwLock, RwLock};
use machine::{Machine, PageSize, VirtAddr};

pub(super) struct Locked<M: Machine, G: Concurrent, R: RawRwLock> {
    areas: RwLock<R, LockedState>,
    pages: Pages<M, G>,
}

struct LockedState {
    areas: Areas,
    brk: usize,
}

impl<M: Machine, G: Concurrent, R: RawRwLock + Send + Sync + 'static> Locked<M, G, R> {
    pub(super) fn make(context: &Arc<SpaceContext<M>>) -> Result<SharedMemory, Error> {
        let state = LockedState { areas: Areas::new(), brk: HEAP };
        Ok(Arc::new(Self { areas: RwLock::new(state), pages: Pages::new(context)? }))
    }

    /// Removes the areas of a range, or their parts in it, and its pages.
    fn clear(&self, areas: &mut Areas, start: usize, end: usize) -> Result<(), Error> {
        let mut found = false;
        while let Some(area) = areas.first_after(start).copied().filter(|area| area.start < end) {
            found = true;
            if area.start < start {
                areas.set_end(area.start, start);
            } else {
                areas.remove(area.start);
            }
            if let Some(rest) = area.part(end, usize::MAX) {
                areas.insert(rest);
            }
        }
        if found { self.pages.remove(start..end) } else { Ok(()) }
    }

    /// Inserts an area. Anonymous neighbours become one.
    fn add(areas: &mut Areas, new: Area) {
        if new.of != VmaType::Anonymous {
            return areas.insert(new);
        }
        let joins = |area: &&Area| area.of == VmaType::Anonymous;
        let before = areas.last_before(new.start).filter(|area| area.end == new.start);
        let before = before.filter(joins).copied();
        let after = areas.find(new.end).filter(joins).copied();
        let end = after.map_or(new.end, |after| after.end);
        if let Some(after) = after {
            areas.remove(after.start);
        }
        match before {
            Some(before) => areas.set_end(before.start, end),
            None => areas.insert(Area { end, ..new }),
        }
    }
}

impl<M: Machine, G: Concurrent, R: RawRwLock + Send + Sync + 'static> Memory for Locked<M, G, R> {
    fn enter(&self) {
        self.pages.tables.enter();
    }

    fn leave(&self) {
        self.pages.leave();
    }

    #[cfg(test)]
    fn walk(&self, at: VirtAddr) -> Option<paging::Mapping> {
        self.pages.tables.walk(&G::pin()).get(at)
    }

    fn map(&self, at: Option<usize>, len: usize, of: VmaType) -> Result<usize, Error> {
        let mut state = self.areas.write();
        let areas = &mut state.areas;
        let start = match at {
            Some(at) => {
                self.clear(areas, at, at + len)?;
                at
            }
            None => areas.highest_gap(len, TOP).ok_or(Error::Full { pages: len / PAGE })?,
        };
        Self::add(areas, Area { start, end: start + len, of, index: 0 });
        Ok(start)
    }

    fn unmap(&self, at: usize, len: usize) -> Result<(), Error> {
        self.clear(&mut self.areas.write().areas, at, at + len)
    }

    fn brk(&self, to: usize) -> Result<(), Error> {
        let mut state = self.areas.write();
        let LockedState { areas, brk } = &mut *state;
        if to > *brk {
            Self::add(areas, Area { start: *brk, end: to, of: VmaType::Anonymous, index: 0 });
        } else if to < *brk {
            self.clear(areas, to, *brk)?;
        }
        *brk = to;
        Ok(())
    }

    fn fault(&self, at: usize) -> Result<(), Error> {
        let state = self.areas.read();
        let page = VirtAddr::new(at as u64).align_down(PageSize::Size4K);
        let area = state.areas.find(at).ok_or(Error::NoArea(page))?;
        let index = area.index + (at - area.start) / PAGE;
        self.pages.fault(&G::pin(), Fault { page, of: area.of, index })
    }

    fn fork(&self) -> Result<SharedMemory, Error> {
        let state = self.areas.write();
        let pages = Pages::new(&self.pages.context)?;
        let mut areas = Areas::new();
        state.areas.each(|area| {
            areas.insert(*area);
            match area.of {
                VmaType::SharedFile => Ok(()),
                _ => self.pages.copy_to(&pages, area.start..area.end),
            }
        })?;
        let state = LockedState { areas, brk: state.brk };
        Ok(Arc::new(Self { areas: RwLock::new(state), pages }))
    }
}

impl<M: Machine, G: Concurrent, R: RawRwLock> Drop for Locked<M, G, R> {
    fn drop(&mut self) {
        let ended = self.pages.remove_all();
        debug_assert_eq!(ended, Ok(()));
    }
}
