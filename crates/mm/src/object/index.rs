//! The pages of an object in memory: a radix tree of frames, read and filled without a lock.
//!
//! A node is a frame of 512 words. A word of the lowest level is a *slot*: it holds the frame of a
//! page. A word above leads to a node. The root says how high the tree is; it grows when a larger
//! index is used. Nodes stay until the index is dropped, so that a reader needs no guard.
//!
//! A slot changes in three ways, each one compare-exchange or swap: from absent to a page (a
//! fault), from a page to the same page *going* (its object takes it back), from going to absent.
//! The last two are the holder's of the object's lock.
//!
//! Cost of a lookup: one load for each level; 512 pages have one level, 1 GiB has two.

#[cfg(not(loom))]
use core::sync::atomic::AtomicU64 as Word;
#[cfg(not(loom))]
use core::sync::atomic::fence;
use core::{ops::Range, sync::atomic::Ordering};

#[cfg(loom)]
use loom::sync::atomic::fence;
#[cfg(loom)]
use machine::word::{MemoryWord as Word, Word as _};
use machine::{Access, ENTRIES, Frame, FrameError, Machine, Owner, after_update};

use crate::{ObjectError, fault::reference::Reference, fault::zero::zero};

/// Marks a slot that has a page, or a root and an inner word that lead to a node.
const PRESENT: u64 = 1;
/// Marks a page that is being taken back.
const GOING: u64 = 2;
/// Marks a page that was written and not synced.
const DIRTY: u64 = 4;
/// Marks a page that is being synced.
const SYNCING: u64 = 8;
const NUMBER: u32 = 12;
/// Bits of an index for each level.
const BITS: u32 = 9;
/// The most levels: 2^36 pages, 2^48 bytes.
const LEVELS: u32 = 4;

/// A slot's value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Slot {
    Absent,
    Page(Frame),
    /// The page is being taken back.
    Going(Frame),
}

impl Slot {
    fn decode(word: u64) -> Slot {
        match Frame::new(word >> NUMBER) {
            Some(frame) if word & GOING != 0 => Slot::Going(frame),
            Some(frame) if word & PRESENT != 0 => Slot::Page(frame),
            _ => Slot::Absent,
        }
    }

    pub(crate) fn frame(self) -> Option<Frame> {
        match self {
            Slot::Absent => None,
            Slot::Page(frame) | Slot::Going(frame) => Some(frame),
        }
    }
}

/// The number of pages that an index can hold.
pub(crate) const MAX_PAGES: u64 = 1 << (BITS * LEVELS);

/// The pages of an object. Each holds a reference to its frame.
pub(crate) struct PageIndex<M: Machine> {
    machine: M,
    /// The highest node, and the number of levels in the bits below it; 0 if there is none.
    root: Word,
}

impl<M: Machine> PageIndex<M> {
    pub(crate) fn new(machine: M) -> Self {
        PageIndex { machine, root: Word::new(0) }
    }

    fn load(&self, word: &Word) -> u64 {
        self.machine.step(Access::Shared);
        // Acquire: pairs with the Release of `swap_in`: what the word leads to is filled.
        word.load(Ordering::Acquire)
    }

    /// Stores `new` if the word is `old`; returns what it is then.
    fn swap_in(&self, word: &Word, old: u64, new: u64) -> u64 {
        self.machine.step(Access::Shared);
        // AcqRel: Release pairs with `load`; Acquire, also on failure, as in `load`.
        match word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(now) => now,
        }
    }

    fn word(&self, node: Frame, index: usize) -> Option<&Word> {
        let words = self.machine.frame_ptr(node)?.cast::<Word>();
        // SAFETY: the node is a frame of this index, 512 aligned words that are only used as
        // atomics, and stays until the index is dropped. The number is masked.
        Some(unsafe { words.add(index % ENTRIES).as_ref() })
    }

    /// The slot of a page, if there is a node for it.
    fn slot(&self, index: u64) -> Option<&Word> {
        let root = self.load(&self.root);
        let (mut node, levels) = (Frame::new(root >> NUMBER)?, root as u32 & 7);
        if levels == 0 || index >> (BITS * levels) != 0 {
            return None;
        }
        for level in (1..levels).rev() {
            let word = self.word(node, (index >> (BITS * level)) as usize)?;
            let value = self.load(word);
            if value & PRESENT == 0 {
                return None;
            }
            node = Frame::new(value >> NUMBER)?;
        }
        self.word(node, index as usize)
    }

    /// The page with this index.
    pub(crate) fn get(&self, index: u64) -> Slot {
        self.slot(index).map_or(Slot::Absent, |slot| Slot::decode(self.load(slot)))
    }

    /// Takes a reference to the frame of a page that is present and not going.
    ///
    /// # Errors
    /// [`ObjectError::Absent`]; [`ObjectError::OutOfMemory`]: the frame has too many references.
    pub(crate) fn hold(&self, index: u64) -> Result<Frame, ObjectError> {
        self.hold_if(index, |slot| if let Slot::Page(frame) = slot { Some(frame) } else { None })
    }

    /// As [`hold`](Self::hold), also of a page that is going.
    ///
    /// # Errors
    /// As for [`hold`](Self::hold).
    pub(crate) fn hold_going(&self, index: u64) -> Result<Frame, ObjectError> {
        self.hold_if(index, Slot::frame)
    }

    fn hold_if(
        &self,
        index: u64,
        fits: impl Fn(Slot) -> Option<Frame>,
    ) -> Result<Frame, ObjectError> {
        let slot = self.slot(index).ok_or(ObjectError::Absent)?;
        let frame = fits(Slot::decode(self.load(slot))).ok_or(ObjectError::Absent)?;
        self.machine.step(Access::Shared);
        let held = self.machine.info(frame).is_some_and(machine::FrameInfo::try_get);
        // Pairs with the fence of `mark_clean`: this CPU sees the mark, or that one the reference.
        after_update();
        let still = fits(Slot::decode(self.load(slot))) == Some(frame);
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
        drop(unsafe { Reference::new(&self.machine, frame) });
        Err(ObjectError::Absent)
    }

    /// Makes `frame` the page, with its reference, if there is none. Returns what is there then.
    pub(crate) fn insert(&self, index: u64, frame: Frame) -> Result<Slot, FrameError> {
        let new = frame.number() << NUMBER | PRESENT;
        let slot = self.make_slot(index)?;
        Ok(Slot::decode(self.swap_in(slot, 0, new)))
    }

    /// Makes the nodes on the way to a page below [`MAX_PAGES`]: [`insert`](Self::insert) allocates
    /// nothing afterwards.
    pub(crate) fn prepare(&self, index: u64) -> Result<(), FrameError> {
        self.make_slot(index).map(drop)
    }

    /// The slot of a page below [`MAX_PAGES`]; makes the nodes on the way.
    fn make_slot(&self, index: u64) -> Result<&Word, FrameError> {
        let none = FrameError::NotOurs(Frame::default());
        let (mut node, levels) = loop {
            let root = self.load(&self.root);
            let levels = root as u32 & 7;
            if levels > 0 && index >> (BITS * levels) == 0 {
                break (Frame::new(root >> NUMBER).ok_or(none)?, levels);
            }
            let new = self.new_node()?;
            if levels > 0
                && let Some(first) = self.word(new, 0)
            {
                // Relaxed: the node is ours alone; `swap_in` publishes it.
                first.store(root & !0xfff | PRESENT, Ordering::Relaxed);
            }
            let higher = new.number() << NUMBER | u64::from(levels + 1);
            if self.swap_in(&self.root, root, higher) != higher {
                self.free(new);
            }
        };
        for level in (1..levels).rev() {
            let word = self.word(node, (index >> (BITS * level)) as usize).ok_or(none)?;
            let mut value = self.load(word);
            if value == 0 {
                let new = self.new_node()?;
                let leads = new.number() << NUMBER | PRESENT;
                value = self.swap_in(word, 0, leads);
                if value != leads {
                    self.free(new);
                }
            }
            node = Frame::new(value >> NUMBER).ok_or(none)?;
        }
        self.word(node, index as usize).ok_or(none)
    }

    /// Marks a page as written, if its frame is this one. The caller holds the frame. A page that
    /// is going gets the mark, too: its object may find that it is held, and let it stay.
    pub(crate) fn set_dirty(&self, index: u64, frame: Frame) {
        let Some(slot) = self.slot(index) else { return };
        let mut value = self.load(slot);
        while Slot::decode(value).frame() == Some(frame) && value & DIRTY == 0 {
            value = self.swap_in(slot, value, value | DIRTY);
        }
    }

    /// Marks the written pages of a range as being synced instead. Returns whether there are any.
    /// No other sync is under way: a page that is being synced is left from one that has panicked.
    pub(crate) fn start_sync(&self, pages: Range<u64>) -> bool {
        let mut any = false;
        self.each(pages, |_, slot| {
            let mut value = self.load(slot);
            any |= value & (DIRTY | SYNCING) != 0;
            while value & DIRTY != 0 {
                value = self.swap_in(slot, value, value & !DIRTY | SYNCING);
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
        self.each(pages, |index, slot| {
            let mut value = self.load(slot);
            if value & SYNCING == 0 {
                return;
            }
            // Before the copy, which has what was written by pins that have ended.
            let pinned = self.is_pinned(value);
            let written = write(index);
            let mark = if pinned || written.is_err() { DIRTY } else { 0 };
            value = self.load(slot);
            // It may have gone meanwhile.
            while value & SYNCING != 0 {
                value = self.swap_in(slot, value, value & !SYNCING | mark);
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
        let frame = Slot::decode(slot).frame();
        // What was written through a pin that has ended is seen: its end is a Release.
        frame.and_then(|frame| self.machine.info(frame)).is_some_and(|info| info.pins() != 0)
    }

    fn new_node(&self) -> Result<Frame, FrameError> {
        let new = Reference::alloc(&self.machine, Owner::Kernel)?;
        zero(&self.machine, new.frame())?;
        Ok(new.keep())
    }

    /// Drops the index's reference to a node or a page.
    fn free(&self, frame: Frame) {
        // SAFETY: nothing of the index leads to it any more.
        drop(unsafe { Reference::new(&self.machine, frame) });
    }

    /// Marks the pages of a range as going. Called with the object's lock held.
    pub(crate) fn mark(&self, pages: Range<u64>) {
        self.each(pages, |_, slot| {
            // Relaxed: only the holder of the lock changes a page.
            if slot.load(Ordering::Relaxed) & (PRESENT | GOING) == PRESENT {
                self.machine.step(Access::Shared);
                // Release: what was stored before, such as the size, is seen with it.
                slot.fetch_or(GOING, Ordering::Release);
            }
        });
    }

    /// Whether a page is pinned, for reading or writing.
    pub(crate) fn has_pinned_page(&self) -> bool {
        let mut any = false;
        self.each(0..MAX_PAGES, |_, slot| {
            any |= self.is_pinned(self.load(slot));
        });
        any
    }

    /// Marks a page as going, if it was not written. Called with the object's lock held.
    pub(crate) fn mark_clean(&self, index: u64) -> bool {
        let Some(slot) = self.slot(index) else { return false };
        let value = self.load(slot);
        let clean = value & (PRESENT | GOING | DIRTY | SYNCING) == PRESENT;
        let marked = clean && self.swap_in(slot, value, value | GOING) == value | GOING;
        // SeqCst: pairs with `after_update` in `hold`. The caller looks at the references next.
        fence(Ordering::SeqCst);
        marked
    }

    /// A page that was marked as going stays. Called with the object's lock held.
    pub(crate) fn unmark(&self, index: u64) {
        if let Some(slot) = self.slot(index) {
            self.machine.step(Access::Shared);
            // Release: as `mark`.
            slot.fetch_and(!GOING, Ordering::Release);
        }
    }

    /// Removes a page that is going and was not written, and drops its reference. Called with the
    /// object's lock held, when nothing else has a reference. Returns whether it did.
    pub(crate) fn remove_clean(&self, index: u64) -> bool {
        let Some(slot) = self.slot(index) else { return false };
        let value = self.load(slot);
        let Slot::Going(frame) = Slot::decode(value) else { return false };
        // A holder that has gone by now may have written the page, and marked it.
        let removed = value & (DIRTY | SYNCING) == 0 && self.swap_in(slot, value, 0) == 0;
        if removed {
            self.free(frame);
        }
        removed
    }

    /// Removes the pages of a range that are going, and drops their references. Called with the
    /// object's lock held, when no CPU has a translation of them.
    pub(crate) fn remove_marked(&self, pages: Range<u64>) {
        self.each(pages, |_, slot| {
            // Relaxed: only the holder of the lock changes a page.
            if let Slot::Going(frame) = Slot::decode(slot.load(Ordering::Relaxed)) {
                self.machine.step(Access::Shared);
                // Release: a fault that fills the slot comes after the removal.
                slot.store(0, Ordering::Release);
                self.free(frame);
            }
        });
    }

    /// Calls `each` for the slots of a range that have nodes.
    fn each(&self, pages: Range<u64>, mut each: impl FnMut(u64, &Word)) {
        let root = self.load(&self.root);
        let levels = root as u32 & 7;
        let end = pages.end.min(1u64 << (BITS * levels));
        if let (Some(node), true) = (Frame::new(root >> NUMBER), levels > 0 && pages.start < end) {
            self.each_below(node, levels - 1, 0, &(pages.start..end), &mut each);
        }
    }

    fn each_below(
        &self,
        node: Frame,
        level: u32,
        base: u64,
        pages: &Range<u64>,
        each: &mut impl FnMut(u64, &Word),
    ) {
        let span = 1u64 << (BITS * level);
        let first = pages.start.saturating_sub(base) / span;
        let end = pages.end.saturating_sub(base).div_ceil(span).min(ENTRIES as u64);
        for number in first..end {
            let Some(word) = self.word(node, number as usize) else { return };
            let at = base + number * span;
            if level == 0 {
                each(at, word);
            } else if let value = self.load(word)
                && value & PRESENT != 0
                && let Some(below) = Frame::new(value >> NUMBER)
            {
                self.each_below(below, level - 1, at, pages, each);
            }
        }
    }

    /// Drops the references of the pages below a node, and the nodes.
    fn end(&mut self, node: Frame, level: u32) {
        for number in 0..ENTRIES {
            let Some(word) = self.word(node, number) else { return };
            // Relaxed: the index is ours alone.
            let value = word.load(Ordering::Relaxed);
            match Frame::new(value >> NUMBER).filter(|_| value & PRESENT != 0) {
                Some(frame) if level == 0 => self.free(frame),
                Some(below) => self.end(below, level - 1),
                None => {}
            }
        }
        self.free(node);
    }
}

impl<M: Machine> Drop for PageIndex<M> {
    fn drop(&mut self) {
        // Relaxed: the index is ours alone.
        let root = self.root.load(Ordering::Relaxed);
        if let (Some(node), 1..) = (Frame::new(root >> NUMBER), root & 7) {
            self.end(node, (root as u32 & 7) - 1);
        }
    }
}
