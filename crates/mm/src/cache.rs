//! The pages of an object in memory: what shared memory and cached files have in common.
//!
//! A page comes at its first use. Faults and copies take no lock of the object. What takes pages
//! back (a smaller size, a hole) holds the object's lock, one at a time:
//!
//! 1. it stores the new size, or marks the pages of the hole as going;
//! 2. removes the pages from all spaces ([`Mappings::take_back`]);
//! 3. takes them out of the index, and drops their references.
//!
//! A fault that finds a page going waits until it is gone. One that fills a slot looks at the size
//! again afterwards; if the object has become smaller meanwhile, it takes the page back itself.

use alloc::sync::Arc;
use core::{
    any::Any,
    cell::Cell,
    ops::Range,
    ptr::NonNull,
    sync::atomic::{AtomicU8, AtomicU64, Ordering, fence},
};

use machine::{Access, Frame, Machine, lock};
use paging::{Format, Paging};
use spin::{
    Once,
    mutex::{SpinMutex, SpinMutexGuard},
};
use vma::PAGE_SIZE;

use crate::{
    FrameGroup, GroupError, Mappings, ObjectError, Shared,
    index::{MAX_PAGES, PageIndex, Slot},
    reference::{NoFrame, Reference},
    zero::zero,
};

pub(crate) const PAGE: u64 = PAGE_SIZE as u64;

/// The pages of an object, its size, and where it is mapped.
pub(crate) struct PageCache<M: Machine> {
    pub(crate) machine: M,
    /// The [`Paging`] of the spaces that may map it.
    home: Arc<dyn Any + Send + Sync>,
    pub(crate) index: PageIndex<M>,
    /// In bytes. Changes with the lock held.
    size: AtomicU64,
    changes: SpinMutex<()>,
    pub(crate) mappings: Mappings,
    /// Whose limit the pages count for. Dropped after the pages.
    group: Once<Shared<FrameGroup<M>>>,
}

impl<M: Machine> PageCache<M> {
    /// Of no bytes.
    pub(crate) fn new<F: Format>(paging: &Arc<Paging<M, F>>) -> Self {
        let machine = paging.machine().clone();
        PageCache {
            home: paging.clone(),
            index: PageIndex::new(machine.clone()),
            machine,
            size: AtomicU64::new(0),
            changes: SpinMutex::new(()),
            mappings: Mappings::new(),
            group: Once::new(),
        }
    }

    /// Pages that come from now on count for a group. Later calls change nothing.
    pub(crate) fn set_group(&self, group: &Shared<FrameGroup<M>>) -> Result<(), GroupError> {
        group.check_home(&self.machine)?;
        self.group.call_once(|| group.clone());
        Ok(())
    }

    /// A frame for a new page. Waits for nothing but the host of a group.
    fn new_page(&self) -> Result<Reference<'_, M>, ObjectError> {
        let group = self.group.get().map(|group| &**group);
        Reference::alloc_page_with_room(&self.machine, group).map_err(|error| match error {
            NoFrame::Source(error) => ObjectError::OutOfMemory(error),
            NoFrame::Group { .. } => ObjectError::GroupLimit,
        })
    }

    /// The lock of what takes pages back.
    pub(crate) fn lock(&self) -> SpinMutexGuard<'_, ()> {
        lock(&self.machine, &self.changes)
    }

    pub(crate) fn size(&self) -> u64 {
        self.machine.step(Access::Shared);
        // Acquire: pairs with the Release of `set_size`.
        self.size.load(Ordering::Acquire)
    }

    /// The number of pages that it may have.
    fn limit(&self) -> u64 {
        self.size().div_ceil(PAGE)
    }

    /// Sets the size, unless `may` refuses the old one. See `set_size` of the objects.
    pub(crate) fn set_size(
        &self,
        bytes: u64,
        may: impl FnOnce(u64) -> Result<(), ObjectError>,
    ) -> Result<(), ObjectError> {
        if bytes.div_ceil(PAGE) > MAX_PAGES {
            return Err(ObjectError::BeyondEnd);
        }
        let _locked = self.lock();
        let old = self.size();
        may(old)?;
        // Release: pairs with `size`.
        self.size.store(bytes, Ordering::Release);
        // SeqCst: pairs with the fence in `bring_in`. Either this CPU sees the page in its slot, or
        // the fault sees the new size.
        fence(Ordering::SeqCst);
        if bytes < old {
            self.take_back(bytes.div_ceil(PAGE)..MAX_PAGES, true);
            self.clear(bytes..bytes.next_multiple_of(PAGE));
        }
        Ok(())
    }

    /// Frees the bytes of a range. Called with the lock held.
    pub(crate) fn punch_hole(&self, bytes: Range<u64>) {
        let end = bytes.end.min(self.size().next_multiple_of(PAGE));
        let whole = bytes.start.div_ceil(PAGE)..end / PAGE;
        if whole.is_empty() {
            self.clear(bytes.start..end);
            return;
        }
        self.clear(bytes.start..whole.start * PAGE);
        self.clear(whole.end * PAGE..end);
        self.take_back(whole, false);
    }

    /// Takes pages back. Called with the lock held.
    fn take_back(&self, pages: Range<u64>, copies: bool) {
        self.index.mark(pages.clone());
        let is_ours = |index, frame| self.index.get(index).frame() == Some(frame);
        self.mappings.take_back(&self.machine, pages.clone(), copies, &is_ours);
        self.index.remove_marked(pages);
    }

    /// Gives up a page that was not written since it was synced, and that nothing else has a
    /// reference to. Returns whether it did.
    ///
    /// The mark comes first: no fault takes a reference afterwards. So if there is none besides the
    /// index's, no entry leads to the page, and none will. A holder that has gone in between may
    /// have written to the page: it has marked it before.
    pub(crate) fn evict(&self, index: u64) -> bool {
        let _locked = self.lock();
        if !self.index.mark_clean(index) {
            return false;
        }
        let frame = self.index.get(index).frame();
        let info = frame.and_then(|frame| self.machine.info(frame));
        let alone = info.is_some_and(|info| info.refs() == 1);
        let evicted = alone && self.index.remove_clean(index);
        if !evicted {
            self.index.unmark(index);
        }
        evicted
    }

    /// Fills bytes with zeros, where there are pages.
    pub(crate) fn clear(&self, bytes: Range<u64>) {
        self.each_part(bytes, |part, _| {
            // Relaxed: a program's memory orders nothing here.
            part.iter().for_each(|byte| byte.store(0, Ordering::Relaxed));
        });
    }

    /// Calls `each` with the parts of a range that have pages, and their places in the range.
    pub(crate) fn each_part(&self, bytes: Range<u64>, mut each: impl FnMut(&[AtomicU8], usize)) {
        let hold = |index| Ok(self.index.hold(index).ok());
        let done = self.each_held(bytes, hold, |part, place, _| each(part, place));
        debug_assert!(done.is_ok(), "nothing fails");
    }

    /// Calls `each` with the parts of a range for which `hold` takes a reference to a frame, their
    /// places in the range, and their frames. A page that is held is not evicted.
    pub(crate) fn each_held(
        &self,
        bytes: Range<u64>,
        mut hold: impl FnMut(u64) -> Result<Option<Frame>, ObjectError>,
        mut each: impl FnMut(&[AtomicU8], usize, Frame),
    ) -> Result<(), ObjectError> {
        let mut at = bytes.start;
        while at < bytes.end {
            let end = bytes.end.min((at / PAGE + 1) * PAGE);
            if let Some(frame) = hold(at / PAGE)? {
                // SAFETY: `hold` took this reference.
                let held = unsafe { Reference::new(&self.machine, frame) };
                if let Some(page) = self.machine.frame_ptr(held.frame()) {
                    let within = (at % PAGE) as usize;
                    let page = page.cast::<AtomicU8>();
                    // SAFETY: the part lies in the frame, to which we hold a reference. Other users
                    // access it by translations or by atomic bytes.
                    let part = unsafe {
                        core::slice::from_raw_parts(page.add(within).as_ptr(), (end - at) as usize)
                    };
                    each(part, (at - bytes.start) as usize, frame);
                }
            }
            at = end;
        }
        Ok(())
    }

    /// Reads bytes, up to the end; absent pages are zeros. Returns how many.
    pub(crate) fn read(&self, at: u64, into: &mut [u8]) -> usize {
        let len = self.size().saturating_sub(at).min(into.len() as u64);
        let into = &mut into[..len as usize];
        into.fill(0);
        self.each_part(at..at + len, |part, place| {
            for (byte, into) in part.iter().zip(&mut into[place..]) {
                // Relaxed: as in `clear`.
                *into = byte.load(Ordering::Relaxed);
            }
        });
        len as usize
    }

    /// Writes bytes of one page. If it is absent, it comes in with them: no map shows it without.
    /// `may` gets the size and that which the write needs, with the lock held, as the last thing
    /// that can fail.
    pub(crate) fn write_page(
        &self,
        at: u64,
        from: &[u8],
        may: impl Fn(u64, u64) -> Result<(), ObjectError>,
    ) -> Result<(), ObjectError> {
        let (index, within, end) = (at / PAGE, (at % PAGE) as usize, at + from.len() as u64);
        if index >= MAX_PAGES {
            return Err(ObjectError::BeyondEnd);
        }
        let is_present = || matches!(self.index.get(index), Slot::Page(_));
        loop {
            let mut new = None;
            if !is_present() {
                let page = self.new_page()?;
                zero(&self.machine, page.frame()).map_err(ObjectError::OutOfMemory)?;
                let bytes = self.machine.frame_ptr(page.frame()).ok_or(ObjectError::Failed)?;
                let (from, len) = (NonNull::from(from).cast(), from.len());
                // SAFETY: a frame of our own, which no other code uses yet; the bytes end in it.
                unsafe { bytes.add(within).copy_from_nonoverlapping(from, len) };
                self.index.prepare(index).map_err(ObjectError::OutOfMemory)?;
                new = Some(page);
            }
            let _locked = self.lock();
            // With the lock, a page that is there stays.
            if new.is_none() && !is_present() {
                continue;
            }
            let size = self.size();
            may(size, end.max(size))?;
            let frame = new.as_ref().map(Reference::frame);
            let slot = frame.map(|frame| self.index.insert(index, frame)).transpose();
            if slot.map_err(ObjectError::OutOfMemory)? == frame.map(Slot::Page) && frame.is_some() {
                new.map(Reference::keep);
            } else {
                self.each_part(at..end, |part, place| {
                    for (byte, from) in part.iter().zip(&from[place..]) {
                        // Relaxed: as in `clear`.
                        byte.store(*from, Ordering::Relaxed);
                    }
                });
            }
            if end > size {
                // Release: pairs with `size`.
                self.size.store(end, Ordering::Release);
            }
            return Ok(());
        }
    }

    /// As [`Object::page`](crate::Object::page).
    pub(crate) fn page(&self, index: u64) -> Result<Frame, ObjectError> {
        if index >= self.limit() {
            return Err(ObjectError::BeyondEnd);
        }
        self.index.hold(index)
    }

    /// As [`Object::bring_in`](crate::Object::bring_in). `fill` fills a new frame, which is ours
    /// alone.
    pub(crate) fn bring_in(
        &self,
        index: u64,
        fill: impl FnOnce(Frame) -> Result<(), ObjectError>,
    ) -> Result<(), ObjectError> {
        if index >= self.limit() {
            return Err(ObjectError::BeyondEnd);
        }
        loop {
            match self.index.get(index) {
                Slot::Page(_) => return Ok(()),
                // The page goes in a moment.
                Slot::Going(_) => self.machine.relax(),
                Slot::Absent => break,
            }
        }
        let no_memory = ObjectError::OutOfMemory;
        let new = self.new_page()?;
        fill(new.frame())?;
        if self.index.insert(index, new.frame()).map_err(no_memory)? == Slot::Page(new.frame()) {
            new.keep();
        }
        self.stays(index)
    }

    /// Looks at the size again: a page that has just come in goes if the object has become smaller.
    fn stays(&self, index: u64) -> Result<(), ObjectError> {
        // SeqCst: pairs with the fence in `set_size`.
        fence(Ordering::SeqCst);
        if index >= self.limit() {
            let _locked = self.lock();
            // It may have become larger again.
            if index >= self.limit() {
                self.take_back(index..index + 1, true);
                return Err(ObjectError::BeyondEnd);
            }
        }
        Ok(())
    }

    /// As [`Object::fill`](crate::Object::fill).
    pub(crate) fn fill(
        &self,
        index: u64,
        fill: impl FnOnce(Frame) -> Result<(), ObjectError>,
        map: &mut dyn FnMut(Frame, &dyn Fn() -> bool) -> bool,
    ) -> Result<bool, ObjectError> {
        if index >= self.limit() {
            return Err(ObjectError::BeyondEnd);
        }
        let new = self.new_page()?;
        fill(new.frame())?;
        self.index.prepare(index).map_err(ObjectError::OutOfMemory)?;
        let (frame, for_entry) = (new.frame(), new.another().map_err(ObjectError::OutOfMemory)?);
        let is_in = Cell::new(false);
        let put = || {
            is_in.set(self.index.insert(index, frame) == Ok(Slot::Page(frame)));
            // SeqCst: pairs with the fence in `set_size`. A smaller size that this misses is
            // followed by a visit that waits for the lock of the table, and removes the entry.
            fence(Ordering::SeqCst);
            is_in.get() && index < self.limit()
        };
        let mapped = map(frame, &put);
        if mapped {
            for_entry.keep();
        }
        if is_in.get() {
            new.keep();
            self.stays(index)?;
            if !mapped {
                // The object was smaller for a moment, or there was no memory for a table.
                let _locked = self.lock();
                self.take_back(index..index + 1, true);
            }
        }
        Ok(mapped)
    }

    /// As [`Object::is_current`](crate::Object::is_current).
    pub(crate) fn is_current(&self, index: u64, frame: Frame) -> bool {
        index < self.limit() && self.index.get(index) == Slot::Page(frame)
    }

    pub(crate) fn is_beyond_end(&self, index: u64) -> bool {
        index >= self.limit()
    }

    pub(crate) fn is_present(&self, index: u64) -> bool {
        matches!(self.index.get(index), Slot::Page(_))
    }

    /// As [`Object::home`](crate::Object::home).
    pub(crate) fn home(&self) -> *const () {
        Arc::as_ptr(&self.home).cast()
    }
}
