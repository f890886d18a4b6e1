//! A radix tree of words in frames, read and grown without a lock.
//!
//! A node is a frame of 512 words. A word of the lowest level is a *slot*, which the user of the
//! tree changes; a word above leads to a node. The root says how high the tree is; it grows when a
//! larger index is used. Nodes stay until the tree is dropped, so that a reader needs no guard.

#[cfg(not(loom))]
use core::sync::atomic::AtomicU64 as Word;
use core::{ops::Range, sync::atomic::Ordering};

#[cfg(loom)]
use machine::word::{MemoryWord as Word, Word as _};
use machine::{ENTRIES, Frame, FrameError, Machine, Owner, SharedAccess};

use crate::{fault::frame_ref::Reference, fault::zero_page::zero};

/// Marks a word that leads to a node; and a slot that holds a reference to a frame, which the tree
/// drops at its end.
pub(super) const PRESENT: u64 = 1;
/// The lowest bit of the frame's number in a word.
pub(super) const NUMBER: u32 = 12;
/// Bits of an index for each level.
const BITS: u32 = 9;
/// The most levels.
const LEVELS: u32 = 4;
/// The number of slots that a tree can have: 2^36.
pub(super) const MAX_SLOTS: u64 = 1 << (BITS * LEVELS);

/// A tree of slots; at first all are 0.
pub(super) struct RadixTree<M: Machine> {
    pub(super) machine: M,
    /// The highest node, and the number of levels in the bits below it; 0 if there is none.
    root: Word,
}

impl<M: Machine> RadixTree<M> {
    pub(super) fn new(machine: M) -> Self {
        RadixTree { machine, root: Word::new(0) }
    }

    /// The value of a word.
    pub(super) fn load(&self, word: &Word) -> u64 {
        self.machine.step(SharedAccess::Other);
        // Acquire: pairs with the Release of `swap_in`: the target of the word is filled.
        word.load(Ordering::Acquire)
    }

    /// Stores `new` if the word is `old`; returns what it is then.
    pub(super) fn swap_in(&self, word: &Word, old: u64, new: u64) -> u64 {
        self.machine.step(SharedAccess::Other);
        // AcqRel: Release pairs with `load`; Acquire, also on failure, as in `load`.
        match word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => new,
            Err(now) => now,
        }
    }

    /// A word of a node.
    fn word(&self, node: Frame, index: usize) -> Option<&Word> {
        let words = self.machine.frame_ptr(node)?.cast::<Word>();
        // SAFETY: the node is a frame of this tree, 512 aligned words that are only used as
        // atomics, and stays until the tree is dropped. The number is masked.
        Some(unsafe { words.add(index % ENTRIES).as_ref() })
    }

    /// The slot with this index, if there is a node for it.
    pub(super) fn slot(&self, index: u64) -> Option<&Word> {
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

    /// The slot with an index below [`MAX_SLOTS`]; makes the nodes on the way.
    pub(super) fn make_slot(&self, index: u64) -> Result<&Word, FrameError> {
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

    /// A node of absent words.
    fn new_node(&self) -> Result<Frame, FrameError> {
        let new = Reference::alloc(&self.machine, Owner::Kernel)?;
        zero(&self.machine, new.frame())?;
        Ok(new.keep())
    }

    /// Drops the tree's reference to a node, or to the frame of a slot.
    pub(super) fn free(&self, frame: Frame) {
        // SAFETY: nothing of the tree leads to it any more.
        drop(unsafe { Reference::new(&self.machine, frame) });
    }

    /// Calls `each` for the slots of a range that have nodes.
    pub(super) fn each(&self, range: Range<u64>, mut each: impl FnMut(u64, &Word)) {
        let root = self.load(&self.root);
        let levels = root as u32 & 7;
        let end = range.end.min(1u64 << (BITS * levels));
        if let (Some(node), true) = (Frame::new(root >> NUMBER), levels > 0 && range.start < end) {
            self.each_below(node, levels - 1, 0, &(range.start..end), &mut each);
        }
    }

    fn each_below(
        &self,
        node: Frame,
        level: u32,
        base: u64,
        range: &Range<u64>,
        each: &mut impl FnMut(u64, &Word),
    ) {
        let span = 1u64 << (BITS * level);
        let first = range.start.saturating_sub(base) / span;
        let end = range.end.saturating_sub(base).div_ceil(span).min(ENTRIES as u64);
        for number in first..end {
            let Some(word) = self.word(node, number as usize) else { return };
            let at = base + number * span;
            if level == 0 {
                each(at, word);
            } else if let value = self.load(word)
                && value & PRESENT != 0
                && let Some(below) = Frame::new(value >> NUMBER)
            {
                self.each_below(below, level - 1, at, range, each);
            }
        }
    }

    /// Drops the references of the slots below a node, and the nodes.
    fn end(&mut self, node: Frame, level: u32) {
        for number in 0..ENTRIES {
            let Some(word) = self.word(node, number) else { return };
            // Relaxed: the tree is ours alone.
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

impl<M: Machine> Drop for RadixTree<M> {
    fn drop(&mut self) {
        // Relaxed: the tree is ours alone.
        let root = self.root.load(Ordering::Relaxed);
        if let (Some(node), 1..) = (Frame::new(root >> NUMBER), root & 7) {
            self.end(node, (root as u32 & 7) - 1);
        }
    }
}
