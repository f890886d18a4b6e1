//! The back end of an iterator: it visits leaf after leaf, towards the front, and unpacks each as a
//! whole.
//!
//! It is the front's mirror image: within one parent, [`Back::advance`] reads only the next child
//! and the separator before it. See [`front`](super::front) for the cost and for why that is
//! correct.

use super::front::{LeafPlace, open};
use crate::Index;
use crate::descent::{self, AtOrBefore, Descent, Pick, Spot, Unpacked};
use crate::node::{self, Job, LANES, Link, Search};

/// The back end of an iterator; see the module.
#[derive(Clone)]
pub(super) struct Back {
    pub(super) run: Unpacked<false>,
    /// The leaf's place in its parent.
    place: LeafPlace,
    /// The first and the last index of the leaf. If an entry at its end was open alone, `max` is
    /// the last index before that.
    min: Index,
    max: Index,
    /// Whether only the entry at `spot` is open, and not the rest of its leaf.
    alone: bool,
    spot: Spot,
    /// The path to the leaf. Its slot in the parent may be newer than that of `place`.
    path: Descent,
}

impl Back {
    /// A back end before its first leaf.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(super) fn new() -> Self {
        Back {
            run: Unpacked::new(),
            place: LeafPlace::NONE,
            min: 0,
            max: 0,
            alone: false,
            spot: Spot::EMPTY,
            path: Descent::new(),
        }
    }

    /// Whether there was no leaf yet.
    #[inline(always)]
    pub(super) fn is_new(&self) -> bool {
        self.path.height() == 0
    }

    /// The last index of the part of the leaf that is open.
    #[inline(always)]
    pub(super) fn max(&self) -> Index {
        self.max
    }

    /// Opens the last entry alone: the one that holds `hi`, or the one before it in the same leaf.
    /// Returns false if the leaf has none. Either way, [`Back::turn`] continues from there.
    ///
    /// # Safety
    /// As for [`Back::turn`]; there was no leaf yet.
    #[inline(always)]
    pub(super) unsafe fn open_one(&mut self, root: Link, hi: Index) -> bool {
        let Back { run, spot, path, .. } = self;
        // SAFETY: the caller's promise.
        let found = unsafe { descent::walk_open::<AtOrBefore, false>(root, hi, path, spot, run) };
        (self.min, self.max) = (self.spot.min(), self.spot.max());
        self.alone = found;
        found
    }

    /// Whether [`Back::advance`] may be possible. It is not in a new back, or while an entry is
    /// open alone.
    #[inline(always)]
    pub(super) fn has_way(&self) -> bool {
        self.place.last != 0
    }

    /// Moves to the parent's previous leaf. Returns true if that leaf has entries. Does not move if
    /// the leaf would be the parent's first child, or if the bounds begin in it. If the result is
    /// false, [`Back::turn`] continues from wherever this stopped.
    ///
    /// # Safety
    /// As for [`Descent::walk`], since the last call of [`Back::turn`].
    #[inline(always)]
    pub(super) unsafe fn advance(&mut self, lo: Index) -> bool {
        node::run(Advance(self, lo))
    }

    /// Moves to the previous leaf, or to the leaf that holds `hi` if there was none yet. Returns
    /// false if no further leaf ends at or after `lo`. The leaf may have no entry to come, and may
    /// have entries that were returned.
    ///
    /// # Safety
    /// As for [`Descent::walk`]; the root is not null.
    #[inline(never)]
    pub(super) unsafe fn turn(&mut self, root: Link, lo: Index, hi: Index) -> bool {
        if self.alone {
            self.alone = false;
            if self.spot.has_prev() {
                // The rest of the leaf.
                self.place = LeafPlace::to(&self.path);
                self.max = hi;
                let step = self.spot.step();
                // SAFETY: the invariant of the path.
                unsafe { open(&mut self.run, &step, step.slot) };
                return true;
            }
        }
        if self.is_new() {
            let pick = if hi == Index::MAX { Pick::Last } else { Pick::Index(hi) };
            // SAFETY: the caller's promise.
            unsafe { self.path.walk(root, pick) };
        } else {
            if self.min <= lo {
                return false;
            }
            self.place.note_in(&mut self.path);
            if !self.path.prev_leaf() {
                return false;
            }
        }
        self.place = LeafPlace::to(&self.path);
        let step = self.path.step(0);
        (self.min, self.max) = (step.min, step.max);
        // SAFETY: the invariant of the path.
        unsafe { open(&mut self.run, step, LANES) };
        true
    }

    /// Drops all entries to come.
    pub(super) fn finish(&mut self) {
        self.place = LeafPlace::NONE;
        self.run.clear();
    }
}

/// The job of [`Back::advance`].
struct Advance<'b>(&'b mut Back, Index);

impl Job for Advance<'_> {
    type Out = bool;

    #[cfg_attr(not(unoptimized), inline(always))]
    fn run<S: Search>(self, search: S) -> bool {
        let Advance(back, lo) = self;
        if back.place.slot < 2 {
            return false;
        }
        let slot = back.place.slot - 1;
        // SAFETY: there is a parent, since the slot is not 0; the invariant of the path.
        let (inner, seps) = unsafe { (&*back.place.parent, (*back.place.parent).seps()) };
        let min = seps.bounds[slot - 1] + 1;
        if min <= lo {
            return false;
        }
        inner.child(slot - 1).prefetch();
        let max = back.min - 1;
        (back.place.slot, back.min, back.max) = (slot, min, max);
        // SAFETY: the invariant of the path.
        unsafe { back.run.open(search, inner.child(slot).as_leaf().body(), LANES, (min, max)) };
        !back.run.is_empty()
    }
}
