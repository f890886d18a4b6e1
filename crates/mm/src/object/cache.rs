//! The pages of an object in memory, for shared memory and cached files.
//!
//! A page comes at its first use. Faults take no lock of the object for a page that is there, or
//! for one of zeros; a page that was read, or written as a whole, goes in under the lock. A call
//! that takes pages back (a smaller size, a hole) holds the object's lock, one at a time:
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
    sync::atomic::{AtomicU64, Ordering, fence},
};

use machine::{Frame, Machine, SharedAccess, lock};
use paging::{Format, Paging};
use spin::{
    Once,
    mutex::{SpinMutex, SpinMutexGuard},
};
use vma::PAGE_SIZE;

use crate::{
    FrameGroup, GroupError, Mappings, ObjectError, Shared,
    fault::frame_ref::{NoFrame, Reference},
    fault::zero_page::zero,
    object::page_index::{MAX_PAGES, PageIndex, PageSlot},
};

pub(crate) const PAGE: u64 = PAGE_SIZE as u64;

/// The methods of [`Object`](crate::Object) that an object leaves to its `pages`.
macro_rules! as_its_pages {
    () => {
        fn home(&self) -> *const () {
            self.pages.home()
        }

        fn page(&self, index: u64) -> Result<Frame, ObjectError> {
            self.pages.page(index)
        }

        fn is_current(&self, index: u64, frame: Frame) -> bool {
            self.pages.is_current(index, frame)
        }

        fn is_present(&self, index: u64) -> bool {
            self.pages.is_present(index)
        }

        fn mappings(&self) -> &Mappings {
            &self.pages.mappings
        }

        fn is_beyond_end(&self, index: u64) -> bool {
            self.pages.is_beyond_end(index)
        }

        fn info(&self) -> &ObjectInfo {
            &self.info
        }
    };
}
pub(super) use as_its_pages;

/// The pages of an object, its size, and where it is mapped.
pub(crate) struct PageCache<M: Machine> {
    pub(crate) machine: M,
    /// The [`Paging`] of the spaces that may map it.
    home: Arc<dyn Any + Send + Sync>,
    pub(crate) index: PageIndex<M>,
    /// In bytes. Changes with the lock held.
    size: AtomicU64,
    changes: SpinMutex<()>,
    /// How often pages were taken away that may be read again. Changes with the lock held.
    losses: AtomicU64,
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
            losses: AtomicU64::new(0),
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
    pub(super) fn new_page(&self) -> Result<Reference<'_, M>, ObjectError> {
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
        self.machine.step(SharedAccess::Other);
        // Acquire: pairs with the Release of `set_size`.
        self.size.load(Ordering::Acquire)
    }

    /// How often pages were taken away that may be read again.
    pub(super) fn losses(&self) -> u64 {
        // Acquire: pairs with the fence in `set_size`. A size that is read afterwards is not older
        // than the one with which the loss came.
        self.losses.load(Ordering::Acquire)
    }

    /// Stores the size. Called with the lock held.
    pub(super) fn store_size(&self, bytes: u64) {
        // Release: pairs with `size`.
        self.size.store(bytes, Ordering::Release);
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
        self.store_size(bytes);
        // SeqCst: pairs with the fence in `bring_in`. Either this CPU sees the page in its slot, or
        // the fault sees the new size.
        fence(Ordering::SeqCst);
        if bytes < old {
            // Relaxed: those that look have the lock.
            self.losses.fetch_add(1, Ordering::Relaxed);
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
    /// reference to. Returns whether it did. A page that is mapped is not even marked: all find it
    /// present.
    ///
    /// The mark comes first: no fault takes a reference afterwards. So if there is none but the
    /// index's, no entry leads to the page, and none will. A holder that has gone in between may
    /// have written to the page: it has marked it before.
    pub(crate) fn evict(&self, index: u64) -> bool {
        let _locked = self.lock();
        let alone = || {
            let frame = self.index.get(index).frame();
            let info = frame.and_then(|frame| self.machine.info(frame));
            info.is_some_and(|info| info.refs() == 1)
        };
        if !alone() || !self.index.mark_clean(index) {
            return false;
        }
        let evicted = alone() && self.index.remove_clean(index);
        match evicted {
            // Relaxed: as in `set_size`.
            true => _ = self.losses.fetch_add(1, Ordering::Relaxed),
            false => self.index.unmark(index),
        }
        evicted
    }

    /// Puts a page where there is none, without its reference. The nodes are there. Returns whether
    /// it did.
    pub(super) fn put(&self, index: u64, page: &Reference<'_, M>) -> bool {
        self.index.insert(index, page.frame()) == Ok(PageSlot::Page(page.frame()))
    }

    /// As [`Object::page`](crate::Object::page).
    pub(crate) fn page(&self, index: u64) -> Result<Frame, ObjectError> {
        if index >= self.limit() {
            return Err(ObjectError::BeyondEnd);
        }
        self.index.hold(index)
    }

    /// As [`Object::bring_in`](crate::Object::bring_in), for pages of zeros.
    pub(crate) fn bring_in(&self, index: u64) -> Result<(), ObjectError> {
        self.bring_in_when(index, &mut |put| _ = put())
    }

    /// As [`MemoryPages::bring_in_when`](crate::MemoryPages::bring_in_when).
    pub(crate) fn bring_in_when(
        &self,
        index: u64,
        may: &mut dyn FnMut(&dyn Fn() -> bool),
    ) -> Result<(), ObjectError> {
        while self.is_absent(index)? {
            let new = self.new_page()?;
            zero(&self.machine, new.frame()).map_err(ObjectError::OutOfMemory)?;
            self.index.prepare(index).map_err(ObjectError::OutOfMemory)?;
            let (asked, is_in) = (Cell::new(false), Cell::new(false));
            may(&|| {
                is_in.set(!asked.replace(true) && self.put(index, &new));
                is_in.get()
            });
            if is_in.get() {
                new.keep();
            }
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
            if !asked.get() {
                break;
            }
        }
        Ok(())
    }

    /// As [`Object::bring_in`](crate::Object::bring_in), for pages that `read` fills. The
    /// contents count only if no page was cut off or evicted meanwhile: they may be older.
    pub(crate) fn read_in(
        &self,
        index: u64,
        read: impl Fn(Frame) -> Result<(), ObjectError>,
    ) -> Result<(), ObjectError> {
        // Relaxed, here and below: the lock orders the second look.
        while let (seen, true) = (self.losses.load(Ordering::Relaxed), self.is_absent(index)?) {
            let new = self.new_page()?;
            read(new.frame())?;
            self.index.prepare(index).map_err(ObjectError::OutOfMemory)?;
            let _locked = self.lock();
            if seen == self.losses.load(Ordering::Relaxed) && self.put(index, &new) {
                new.keep();
            }
        }
        Ok(())
    }

    /// Whether a page within the size is absent. Waits for one that goes.
    fn is_absent(&self, index: u64) -> Result<bool, ObjectError> {
        loop {
            if index >= self.limit() {
                return Err(ObjectError::BeyondEnd);
            }
            match self.index.get(index) {
                PageSlot::Page(_) => return Ok(false),
                // The page goes in a moment.
                PageSlot::Going(_) => self.machine.relax(),
                PageSlot::Absent => return Ok(true),
            }
        }
    }

    /// As [`MemoryPages::fill`](crate::MemoryPages::fill), if `may` allows it.
    ///
    /// The page goes in with the object's lock held, and with that of the entry's table. So a call
    /// that takes pages back comes before, or waits for the table, and finds the entry. Others take
    /// those two locks in the opposite order, so this one only tries to take the object's.
    pub(crate) fn fill(
        &self,
        index: u64,
        fill: impl FnOnce(Frame) -> Result<(), ObjectError>,
        may: impl Fn() -> Result<(), ObjectError>,
        map: &mut dyn FnMut(Frame, &dyn Fn() -> bool),
    ) -> Result<bool, ObjectError> {
        if index >= self.limit() {
            return Err(ObjectError::BeyondEnd);
        }
        let new = self.new_page()?;
        fill(new.frame())?;
        self.index.prepare(index).map_err(ObjectError::OutOfMemory)?;
        let (frame, for_entry) = (new.frame(), new.another().map_err(ObjectError::OutOfMemory)?);
        // Gone once the page is in: they are the index's and the entry's then, whatever follows.
        let ours = Cell::new(Some((new, for_entry)));
        let (busy, refused) = (Cell::new(false), Cell::new(Ok(())));
        let put = || {
            let Some(_locked) = self.changes.try_lock() else {
                busy.set(true);
                return false;
            };
            let Some((new, for_entry)) = ours.take() else { return false };
            let allowed = match index < self.limit() {
                true => may(),
                false => Err(ObjectError::BeyondEnd),
            };
            refused.set(allowed);
            let is_in = allowed.is_ok() && self.put(index, &new);
            match is_in {
                true => _ = (new.keep(), for_entry.keep()),
                false => ours.set(Some((new, for_entry))),
            }
            is_in
        };
        loop {
            map(frame, &put);
            let held = ours.take();
            if held.is_none() {
                return Ok(true);
            }
            ours.set(held);
            if !busy.replace(false) {
                return refused.get().map(|()| false);
            }
            // With nothing held, it can wait.
            drop(self.lock());
        }
    }

    /// As [`Object::is_current`](crate::Object::is_current).
    pub(crate) fn is_current(&self, index: u64, frame: Frame) -> bool {
        index < self.limit() && self.index.get(index) == PageSlot::Page(frame)
    }

    pub(crate) fn is_beyond_end(&self, index: u64) -> bool {
        index >= self.limit()
    }

    pub(crate) fn is_present(&self, index: u64) -> bool {
        // The size after the page: one that came in by an older size goes in a moment.
        matches!(self.index.get(index), PageSlot::Page(_)) && index < self.limit()
    }

    /// As [`Object::home`](crate::Object::home).
    pub(crate) fn home(&self) -> *const () {
        Arc::as_ptr(&self.home).cast()
    }
}
