//! The address space of `gup`: pages that each CPU pins, in a page-table page of its own, with the
//! lock that lockless walks replace.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use grace::Concurrent;
use lock_api::{RawRwLockFair, RwLock, RwLockReadGuard, RwLockWriteGuard};
use machine::{Asid, Frame, FrameError, Machine, NodePolicy, PageSize, VirtAddr, VirtRange};
use paging::{Attrs, Error, PageTables, Paging, Pins, X86_64L4};

/// Pages of each CPU: one page-table page maps so many.
pub(crate) const PAGES: usize = 512;

/// The areas of an address space: first address, end, and whether they may be written.
type Areas = BTreeMap<u64, (u64, bool)>;

pub(crate) type Tables<M, G> = PageTables<M, X86_64L4, G>;

/// Page tables, and the areas behind their lock. The lock is released fairly: a writer that takes
/// it again at once would otherwise starve the readers.
pub(crate) struct Space<M: Machine, G: Concurrent, R> {
    pub(crate) tables: Tables<M, G>,
    areas: RwLock<R, Areas>,
}

/// The addresses of a CPU's pages.
pub(crate) fn range_of(cpu: usize) -> VirtRange {
    let start = VirtAddr::new((cpu as u64 + 1) << 21);
    VirtRange::new(start, (PAGES as u64) << 12).expect("the addresses suffice for all CPUs")
}

impl<M: Machine, G: Concurrent, R: RawRwLockFair> Space<M, G, R> {
    /// A space in which each CPU has its pages. Each frame is a block of its own.
    pub(crate) fn new(paging: &Arc<Paging<M, X86_64L4>>, cpus: usize) -> Result<Self, Error> {
        let tables = Tables::user(paging, Asid(1), None)?;
        let space = Space { tables, areas: RwLock::new(Areas::new()) };
        for cpu in 0..cpus {
            space.map(range_of(cpu), |_| paging.machine().alloc(0, NodePolicy::Local))?;
        }
        Ok(space)
    }

    /// Maps pages and inserts their area, under the lock: the baseline.
    pub(crate) fn map(
        &self,
        range: VirtRange,
        mut frame: impl FnMut(usize) -> Result<Frame, FrameError>,
    ) -> Result<(), Error> {
        let mut areas = self.areas.write();
        let mapped = self.map_pages(range, &mut frame);
        if mapped.is_ok() {
            areas.insert(range.start().get(), (range.start().get() + range.len(), true));
        }
        RwLockWriteGuard::unlock_fair(areas);
        mapped
    }

    /// Maps pages without the lock of the areas. The page-table pages have their own locks.
    pub(crate) fn map_pages(
        &self,
        range: VirtRange,
        frame: &mut impl FnMut(usize) -> Result<Frame, FrameError>,
    ) -> Result<(), Error> {
        let place = |at: VirtAddr, _: PageSize| {
            let page = (at.get() - range.start().get()) as usize >> 12;
            Ok((frame(page)?, PageSize::Size4K))
        };
        // SAFETY: the range is this CPU's part of the space, unmapped and flushed; nothing else
        // uses the frames.
        unsafe { self.tables.map_with(range, Attrs::USER_RW, place) }.map_err(|failed| failed.error)
    }

    /// Unmaps an area under the lock. Returns its frames.
    pub(crate) fn unmap(&self, range: VirtRange) -> Result<Vec<Frame>, Error> {
        let mut areas = self.areas.write();
        let frames = self.unmap_pages(range);
        if frames.is_ok() {
            areas.remove(&range.start().get());
        }
        RwLockWriteGuard::unlock_fair(areas);
        frames
    }

    /// Unmaps pages without the lock of the areas. Returns their frames.
    pub(crate) fn unmap_pages(&self, range: VirtRange) -> Result<Vec<Frame>, Error> {
        let mut frames = Vec::with_capacity(PAGES);
        // SAFETY: `map_pages` has mapped the pages. They are flushed before the frames are
        // returned.
        let pending = unsafe { self.tables.unmap(range, |page| frames.push(page.frame)) };
        pending.map_err(|failed| failed.error)?.flush();
        Ok(frames)
    }

    /// Pins pages as the baseline: the space's lock for reading, the area, and the table's lock for
    /// each page.
    pub(crate) fn pin_locked(&self, at: VirtAddr, into: &mut [Frame]) -> usize {
        let areas = self.areas.read();
        let end = at.get() + ((into.len() as u64) << 12);
        let area = areas.range(..=at.get()).next_back();
        let writable = area.is_some_and(|(_, (last, write))| end <= *last && *write);
        let mut pin =
            || self.tables.get_user_pages(at, true, into, |_, _| false).map_or(0, Pins::keep);
        let pinned = if writable { pin() } else { 0 };
        RwLockReadGuard::unlock_fair(areas);
        pinned
    }

    /// Pins pages without a lock.
    pub(crate) fn pin_fast(&self, at: VirtAddr, into: &mut [Frame]) -> usize {
        self.tables.get_user_pages_fast(at, true, into, |_, _| false).map_or(0, Pins::keep)
    }

    /// Unmaps all pages and releases their frames.
    pub(crate) fn end(self, cpus: usize) -> Result<(), Error> {
        for cpu in 0..cpus {
            for frame in self.unmap(range_of(cpu))? {
                // SAFETY: no translation leads to it any more, and it is not pinned.
                unsafe { self.tables.machine().release(frame) }?;
            }
        }
        Ok(())
    }
}
