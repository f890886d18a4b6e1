//! Leaves: consecutive ranges and their words.
//!
//! A leaf covers the range its parent gives it. Slot `i` ends at bound `i` and begins after bound
//! `i - 1` (or where the leaf begins); the last slot ends where the leaf ends. A null word is a hole.
//! A leaf that readers can reach is never changed: a write makes a new one.

use super::search::rank;
use crate::layout::LEAF_SLOTS;
use crate::sync::Frozen;
use core::ptr;

/// A leaf node.
#[repr(C, align(64))]
pub(crate) struct Leaf {
    body: Frozen<Body>,
}

/// The contents of a leaf.
#[derive(Clone)]
#[repr(C)]
pub(crate) struct Body {
    /// Last indices of the slots. Those at `len` and above are `usize::MAX`; that of slot
    /// `LEAF_SLOTS - 1` is not stored: it is the leaf's end.
    pub(crate) bounds: [usize; LEAF_SLOTS - 1],
    /// Slots in use.
    pub(crate) len: usize,
    /// The words. Those at `len` and above are null.
    pub(crate) slots: [*mut (); LEAF_SLOTS],
}

impl Leaf {
    pub(crate) fn new(body: Body) -> Self {
        Leaf { body: Frozen::new(body) }
    }

    /// # Safety
    /// Nobody changes the leaf while the reference lives: it is published, or the caller's own.
    #[inline(always)]
    pub(crate) unsafe fn body(&self) -> &Body {
        // SAFETY: the caller's promise.
        unsafe { self.body.get() }
    }

    /// # Safety
    /// Nobody else looks at the leaf while the reference lives.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn body_mut(&self) -> &mut Body {
        // SAFETY: the caller's promise.
        unsafe { self.body.get_mut() }
    }
}

impl Body {
    pub(crate) const EMPTY: Body =
        Body { bounds: [usize::MAX; LEAF_SLOTS - 1], len: 0, slots: [ptr::null_mut(); LEAF_SLOTS] };

    /// The slot that holds `index`, which lies in the leaf.
    #[inline(always)]
    pub(crate) fn find(&self, index: usize) -> usize {
        rank(&self.bounds, index)
    }

    /// The first index of a slot, in a leaf that begins at `min`.
    #[inline(always)]
    pub(crate) fn start(&self, slot: usize, min: usize) -> usize {
        if slot == 0 { min } else { self.bounds[slot - 1] + 1 }
    }

    /// The last index of a slot, in a leaf that ends at `max`.
    #[inline(always)]
    pub(crate) fn end(&self, slot: usize, max: usize) -> usize {
        if slot + 1 < self.len { self.bounds[slot] } else { max }
    }

    /// Appends a slot that ends at `end`. There must be room.
    pub(crate) fn push(&mut self, end: usize, word: *mut ()) {
        if self.len < LEAF_SLOTS - 1 {
            self.bounds[self.len] = end;
        }
        self.slots[self.len] = word;
        self.len += 1;
    }

    /// Appends the slots `from..to` of another leaf, but not its last, whose end may not be stored.
    /// There must be room.
    pub(crate) fn copy(&mut self, source: &Body, from: usize, to: usize) {
        if from == to {
            return;
        }
        let at = self.len;
        let n = to - from;
        self.slots[at..at + n].copy_from_slice(&source.slots[from..to]);
        let n = n.min(LEAF_SLOTS - 1 - at);
        self.bounds[at..at + n].copy_from_slice(&source.bounds[from..from + n]);
        self.len += to - from;
    }

    /// The length of the longest hole, in a leaf from `min` to `max`.
    pub(crate) fn gap(&self, min: usize, max: usize) -> usize {
        let mut gap = 0;
        let mut start = min;
        for slot in 0..self.len {
            let end = self.end(slot, max);
            // A leaf has an entry, so a hole is shorter than the whole index range.
            let length = if self.slots[slot].is_null() { end - start + 1 } else { 0 };
            gap = gap.max(length);
            start = end.wrapping_add(1);
        }
        gap
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::LEAF_SLOTS;

    fn word(n: usize) -> *mut () {
        ptr::without_provenance_mut(n)
    }

    #[test]
    fn a_full_leaf_reads_back() {
        let mut body = Body::EMPTY;
        for i in 0..LEAF_SLOTS {
            body.push(100 + i * 10 + 9, if i == 1 { word(0) } else { word(i + 1) });
        }
        let max = 100 + LEAF_SLOTS * 10 - 1;
        for index in 100..=max {
            let slot = body.find(index);
            assert_eq!(slot, (index - 100) / 10);
            assert_eq!(body.start(slot, 100), 100 + slot * 10);
            assert_eq!(body.end(slot, max), 109 + slot * 10);
        }
        assert_eq!(body.gap(100, max), 10);
    }

    #[test]
    fn copies_keep_bounds_and_padding() {
        let mut full = Body::EMPTY;
        for i in 0..LEAF_SLOTS {
            full.push(i, word(i + 1));
        }
        for from in 0..LEAF_SLOTS {
            for to in from..LEAF_SLOTS {
                let mut copy = Body::EMPTY;
                copy.copy(&full, from, to);
                let mut pushed = Body::EMPTY;
                for i in from..to {
                    pushed.push(i, word(i + 1));
                }
                assert_eq!(copy.len, pushed.len);
                assert_eq!(copy.slots, pushed.slots);
                assert_eq!(copy.bounds, pushed.bounds);
            }
        }
    }

    #[test]
    fn the_largest_index_and_the_largest_gap() {
        let mut body = Body::EMPTY;
        body.push(0, word(1));
        body.push(usize::MAX, word(0));
        assert_eq!(body.find(usize::MAX), 1);
        assert_eq!(body.gap(0, usize::MAX), usize::MAX);
        assert_eq!(body.end(1, usize::MAX), usize::MAX);
    }
}
