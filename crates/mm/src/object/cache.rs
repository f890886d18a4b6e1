//! The pages of an object in memory: what shared memory and cached files have in common.
//!
//! A page comes at its first use. Faults take no lock of the object for a page that is there, or
//! for one of zeros; a page that was read, or written as a whole, goes in under the lock. What
//! takes pages back (a smaller size, a hole) holds the object's lock, one at a time:
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
    fault::reference::{NoFrame, Reference},
    fault::zero::zero,
    object::index::{MAX_PAGES, PageIndex, Slot},
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
        match evicted {
            // Relaxed: as in `set_size`.
            true => _ = self.losses.fetch_add(1, Ordering::Relaxed),
            false => self.index.unmark(index),
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
                if let Some(part) = self.bytes_of(&held, at..end) {
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
    /// `may` gets the size, and that which the write needs: first to refuse before anything is
    /// allocated, then (`true`) with the lock held, when nothing else fails.
    pub(crate) fn write_page(
        &self,
        at: u64,
        from: &[u8],
        may: impl Fn(u64, u64, bool) -> Result<(), ObjectError>,
    ) -> Result<(), ObjectError> {
        let (index, end) = (at / PAGE, at + from.len() as u64);
        if index >= MAX_PAGES {
            return Err(ObjectError::BeyondEnd);
        }
        let size = self.size();
        may(size, end.max(size), false)?;
        let mut new = None;
        loop {
            if new.is_none() && !self.is_present(index) {
                new = Some(self.page_with(at, from)?);
                self.index.prepare(index).map_err(ObjectError::OutOfMemory)?;
            }
            let _locked = self.lock();
            let size = self.size();
            // With the lock held, only a panic leaves a page that goes.
            if let Slot::Going(_) = self.index.get(index) {
                return Err(ObjectError::Failed);
            }
            match (self.index.hold(index), &new) {
                (Ok(frame), _) => {
                    // SAFETY: `hold` took this reference.
                    let page = unsafe { Reference::new(&self.machine, frame) };
                    may(size, end.max(size), true)?;
                    self.store(&page, at, from);
                }
                (Err(ObjectError::Absent), Some(page)) => {
                    may(size, end.max(size), true)?;
                    // A fault may be first, within the size: then nothing was promised.
                    if !self.put(index, page) {
                        continue;
                    }
                    new.take().map(Reference::keep);
                }
                (Err(ObjectError::Absent), None) => continue,
                (Err(error), _) => return Err(error),
            }
            if end > size {
                // Release: pairs with `size`.
                self.size.store(end, Ordering::Release);
            }
            return Ok(());
        }
    }

    /// A new page of zeros with these bytes.
    fn page_with(&self, at: u64, from: &[u8]) -> Result<Reference<'_, M>, ObjectError> {
        let page = self.new_page()?;
        zero(&self.machine, page.frame()).map_err(ObjectError::OutOfMemory)?;
        self.store(&page, at, from);
        Ok(page)
    }

    /// Stores the bytes of one page.
    fn store(&self, page: &Reference<'_, M>, at: u64, from: &[u8]) {
        let bytes = self.bytes_of(page, at..at + from.len() as u64).unwrap_or_default();
        for (byte, from) in bytes.iter().zip(from) {
            // Relaxed: as in `clear`.
            byte.store(*from, Ordering::Relaxed);
        }
    }

    /// The bytes of a page that a range within it names.
    fn bytes_of<'p>(
        &self,
        page: &'p Reference<'_, M>,
        bytes: Range<u64>,
    ) -> Option<&'p [AtomicU8]> {
        let first = self.machine.frame_ptr(page.frame())?.cast::<AtomicU8>();
        let (within, len) = ((bytes.start % PAGE) as usize, (bytes.end - bytes.start) as usize);
        debug_assert!(within + len <= PAGE_SIZE, "the range leaves the page");
        // SAFETY: the bytes lie in the page, which the reference keeps. Other users access it by
        // translations or by atomic bytes.
        Some(unsafe { core::slice::from_raw_parts(first.add(within).as_ptr(), len) })
    }

    /// Puts a page where there is none, without its reference. The nodes are there. Returns whether
    /// it did.
    fn put(&self, index: u64, page: &Reference<'_, M>) -> bool {
        self.index.insert(index, page.frame()) == Ok(Slot::Page(page.frame()))
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
        while self.is_absent(index)? {
            let new = self.new_page()?;
            zero(&self.machine, new.frame()).map_err(ObjectError::OutOfMemory)?;
            self.index.prepare(index).map_err(ObjectError::OutOfMemory)?;
            if self.put(index, &new) {
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
        }
        Ok(())
    }

    /// As [`Object::bring_in`](crate::Object::bring_in), for pages that `read` fills. What it has
    /// read counts only if no page was cut off or evicted meanwhile: it may be what was there
    /// before.
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
                Slot::Page(_) => return Ok(false),
                // The page goes in a moment.
                Slot::Going(_) => self.machine.relax(),
                Slot::Absent => return Ok(true),
            }
        }
    }

    /// As [`Object::fill`](crate::Object::fill), if `may` allows it.
    ///
    /// The page goes in with the object's lock held, and with that of the entry's table. So what
    /// takes pages back comes before, or waits for the table, and finds the entry. Others take
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
