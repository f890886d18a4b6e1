//! The pages of an object in memory: a radix tree of slots, read and filled without a lock.
//!
//! A slot holds the frame of a page. It changes in three ways, each one compare-exchange or swap:
//! from absent to a page (a fault), from a page to the same page *going* (its object takes it
//! back), from going to absent. The last two are the holder's of the object's lock. `radix` has the
//! tree.
//!
//! Cost of a lookup: one load for each level; 512 pages have one level, 1 GiB has two.

#[cfg(not(loom))]
use core::sync::atomic::fence;
use core::{ops::Range, sync::atomic::Ordering};

#[cfg(loom)]
use loom::sync::atomic::fence;
#[cfg(loom)]
use machine::word::Word as _;
use machine::{Frame, FrameError, Machine, SharedAccess, after_update};

use crate::{
    ObjectError,
    fault::frame_ref::Reference,
    object::radix::{MAX_SLOTS, NUMBER, PRESENT, RadixTree},
    thresholds::PIN_LOOKS,
};

/// Marks a page that is being taken back.
const GOING: u64 = 2;
/// Marks a page that was written and not synced.
const DIRTY: u64 = 4;
/// Marks a page that is being synced.
const SYNCING: u64 = 8;

/// The number of pages that an index can hold: 2^48 bytes.
pub(crate) const MAX_PAGES: u64 = MAX_SLOTS;

/// A slot's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PageSlot {
    Absent,
    Page(Frame),
    /// The page is being taken back.
    Going(Frame),
}

impl PageSlot {
    fn decode(word: u64) -> PageSlot {
        match Frame::new(word >> NUMBER) {
            Some(frame) if word & GOING != 0 => PageSlot::Going(frame),
            Some(frame) if word & PRESENT != 0 => PageSlot::Page(frame),
            _ => PageSlot::Absent,
        }
    }

    pub(crate) fn frame(self) -> Option<Frame> {
        match self {
            PageSlot::Absent => None,
            PageSlot::Page(frame) | PageSlot::Going(frame) => Some(frame),
        }
    }
}

/// The pages of an object. Each holds a reference to its frame.
pub(crate) struct PageIndex<M: Machine> {
    /// A slot for each page.
    tree: RadixTree<M>,
}

impl<M: Machine> PageIndex<M> {
    pub(crate) fn new(machine: M) -> Self {
        PageIndex { tree: RadixTree::new(machine) }
    }

    /// The page with this index.
    pub(crate) fn get(&self, index: u64) -> PageSlot {
        self.tree
            .slot(index)
            .map_or(PageSlot::Absent, |slot| PageSlot::decode(self.tree.load(slot)))
    }

    /// Takes a reference to the frame of a page that is present and not going.
    ///
    /// # Errors
    /// [`ObjectError::Absent`]; [`ObjectError::OutOfMemory`]: the frame has too many references.
    pub(crate) fn hold(&self, index: u64) -> Result<Frame, ObjectError> {
        self.hold_if(
            index,
            |slot| if let PageSlot::Page(frame) = slot { Some(frame) } else { None },
        )
    }

    /// As [`hold`](Self::hold), also of a page that is going.
    ///
    /// # Errors
    /// As for [`hold`](Self::hold).
    pub(crate) fn hold_going(&self, index: u64) -> Result<Frame, ObjectError> {
        self.hold_if(index, PageSlot::frame)
    }

    fn hold_if(
        &self,
        index: u64,
        fits: impl Fn(PageSlot) -> Option<Frame>,
    ) -> Result<Frame, ObjectError> {
        let slot = self.tree.slot(index).ok_or(ObjectError::Absent)?;
        let frame = fits(PageSlot::decode(self.tree.load(slot))).ok_or(ObjectError::Absent)?;
        self.tree.machine.step(SharedAccess::Other);
        let held = self.tree.machine.info(frame).is_some_and(machine::FrameInfo::try_get);
        // Pairs with the fence of `mark_clean`: this CPU sees the mark, or that one the reference.
        after_update();
        let still = fits(PageSlot::decode(self.tree.load(slot))) == Some(frame);
        match (held, still) {
            (true, true) => return Ok(frame),
            // The index has a reference, so the frame is not free.
            (false, true) => {
                let (refs, pins) = (u32::MAX, 0);
                return Err(ObjectError::OutOfMemory(FrameError::InUse { frame, refs, pins }));
            }
            (false, false) => return Err(ObjectError::Absent),
            (true, false) => {}
        }
        // The page went meanwhile. The frame may be another user's by now.
        // SAFETY: this reference was just taken.
        drop(unsafe { Reference::new(&self.tree.machine, frame) });
        Err(ObjectError::Absent)
    }

    /// Makes `frame` the page, with its reference, if there is none. Returns what is there then.
    pub(crate) fn insert(&self, index: u64, frame: Frame) -> Result<PageSlot, FrameError> {
        let new = frame.number() << NUMBER | PRESENT;
        let slot = self.tree.make_slot(index)?;
        Ok(PageSlot::decode(self.tree.swap_in(slot, 0, new)))
    }

    /// Makes the nodes on the way to a page below [`MAX_PAGES`]: [`insert`](Self::insert) allocates
    /// nothing afterwards.
    pub(crate) fn prepare(&self, index: u64) -> Result<(), FrameError> {
        self.tree.make_slot(index).map(drop)
    }

    /// Marks a page as written, if its frame is this one. The caller holds the frame. A page that
    /// is going gets the mark, too: its object may find that it is held, and let it stay.
    pub(crate) fn set_dirty(&self, index: u64, frame: Frame) {
        let Some(slot) = self.tree.slot(index) else { return };
        let mut value = self.tree.load(slot);
        while PageSlot::decode(value).frame() == Some(frame) && value & DIRTY == 0 {
            value = self.tree.swap_in(slot, value, value | DIRTY);
        }
    }

    /// Marks the written pages of a range as being synced instead. Returns whether there are any.
    /// No other sync is under way: a page that is being synced is left from one that has panicked.
    pub(crate) fn start_sync(&self, pages: Range<u64>) -> bool {
        let mut any = false;
        self.tree.each(pages, |_, slot| {
            let mut value = self.tree.load(slot);
            any |= value & (DIRTY | SYNCING) != 0;
            while value & DIRTY != 0 {
                value = self.tree.swap_in(slot, value, value & !DIRTY | SYNCING);
            }
        });
        any
    }

    /// Calls `write` for each page of a range that is being synced. No map has the right to write
    /// it. If the write fails, or a pin may write to the page meanwhile, it is marked as written
    /// again.
    pub(crate) fn sync<E>(
        &self,
        pages: Range<u64>,
        mut write: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut done = Ok(());
        self.tree.each(pages, |index, slot| {
            let mut value = self.tree.load(slot);
            if value & SYNCING == 0 {
                return;
            }
            // Before the copy, which has what was written by pins that have ended.
            let pinned = self.is_pinned(value);
            let written = write(index);
            let mark = if pinned || written.is_err() { DIRTY } else { 0 };
            value = self.tree.load(slot);
            // It may have gone meanwhile.
            while value & SYNCING != 0 {
                value = self.tree.swap_in(slot, value, value & !SYNCING | mark);
            }
            if done.is_ok() {
                done = written;
            }
        });
        done
    }

    /// Whether the page of a slot is pinned, for reading or writing.
    fn is_pinned(&self, slot: u64) -> bool {
        // SeqCst: pairs with the fence of a pin (`after_update`). Either this CPU sees the pin, or
        // the pin sees that its entry has lost the right to write.
        fence(Ordering::SeqCst);
        let frame = PageSlot::decode(slot).frame();
        // Writes through a pin that has ended are seen: its end is a Release.
        frame.and_then(|frame| self.tree.machine.info(frame)).is_some_and(|info| info.pins() != 0)
    }

    /// Marks the pages of a range as going. Called with the object's lock held.
    pub(crate) fn mark(&self, pages: Range<u64>) {
        self.tree.each(pages, |_, slot| {
            // Relaxed: only the holder of the lock changes a page.
            if slot.load(Ordering::Relaxed) & (PRESENT | GOING) == PRESENT {
                self.tree.machine.step(SharedAccess::Other);
                // Release: earlier stores, such as that of the size, are seen with it.
                slot.fetch_or(GOING, Ordering::Release);
            }
        });
    }

    /// Whether a page is pinned, for reading or writing, at each of some looks. As in Linux, a pin
    /// that ends soon, such as that of a copy, is waited for.
    pub(crate) fn stays_pinned(&self) -> bool {
        (0..PIN_LOOKS).all(|_| {
            let mut any = false;
            self.tree.each(0..MAX_PAGES, |_, slot| {
                any = any || self.is_pinned(self.tree.load(slot));
            });
            self.tree.machine.relax();
            any
        })
    }

    /// Marks a page as going. A page that was written stays as it is, so that no fault waits for
    /// it; `remove_clean` decides. Called with the object's lock held.
    pub(crate) fn mark_clean(&self, index: u64) -> bool {
        let Some(slot) = self.tree.slot(index) else { return false };
        let value = self.tree.load(slot);
        let clean = value & (PRESENT | GOING | DIRTY | SYNCING) == PRESENT;
        let marked = clean && self.tree.swap_in(slot, value, value | GOING) == value | GOING;
        // SeqCst: pairs with `after_update` in `hold`. The caller looks at the references next.
        fence(Ordering::SeqCst);
        marked
    }

    /// A page that was marked as going stays. Called with the object's lock held.
    pub(crate) fn unmark(&self, index: u64) {
        if let Some(slot) = self.tree.slot(index) {
            self.tree.machine.step(SharedAccess::Other);
            // Release: as `mark`.
            slot.fetch_and(!GOING, Ordering::Release);
        }
    }

    /// Removes a page that is going and was not written, and drops its reference. Called with the
    /// object's lock held, when nothing else has a reference. Returns whether it did.
    pub(crate) fn remove_clean(&self, index: u64) -> bool {
        let Some(slot) = self.tree.slot(index) else { return false };
        let value = self.tree.load(slot);
        let PageSlot::Going(frame) = PageSlot::decode(value) else { return false };
        // A holder that has gone by now may have written the page, and marked it.
        let removed = value & (DIRTY | SYNCING) == 0 && self.tree.swap_in(slot, value, 0) == 0;
        if removed {
            self.tree.free(frame);
        }
        removed
    }

    /// Removes the pages of a range that are going, and drops their references. Called with the
    /// object's lock held, when no CPU has a translation of them.
    pub(crate) fn remove_marked(&self, pages: Range<u64>) {
        self.tree.each(pages, |_, slot| {
            // Relaxed: only the holder of the lock changes a page.
            if let PageSlot::Going(frame) = PageSlot::decode(slot.load(Ordering::Relaxed)) {
                self.tree.machine.step(SharedAccess::Other);
                // Release: a fault that fills the slot comes after the removal.
                slot.store(0, Ordering::Release);
                self.tree.free(frame);
            }
        });
    }
}
