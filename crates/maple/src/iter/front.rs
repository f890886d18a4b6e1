//! The front end of an iterator: it visits leaf after leaf and unpacks each as a whole.
//!
//! A leaf has about nine entries, and a step within a leaf takes a few instructions. So the cost
//! per leaf matters as much as the cost per entry. Within one parent, [`Front::advance`] therefore
//! reads only the next child and the separator behind it, and does not update the path. At the
//! parent's last child, and near the end of the bounds, [`Front::turn`] takes over and uses the
//! path.
//!
//! Many callers take only an entry or two. So the first entry is opened alone: it is read from the
//! packed leaf where the descent ends, and the leaf is unpacked when another entry is asked for. An
//! iteration from index 0, which is over everything as a rule, unpacks the first leaf at once.
//!
//! Correctness: the separators of a published node do not change, and a child is only replaced by a
//! subtree for the same range. So the next child of the parent covers the indices after this leaf.
//! The rest of the first leaf is read from that leaf, which does not change, and not from the tree,
//! where another version may have replaced it.

use crate::Index;
use crate::descent::{self, AtOrAfter, Descent, Pick, Spot, Step, Unpacked};
use crate::node::{self, Inner, Job, Link, Search};
use core::ptr;

/// The front end of an iterator; see the module.
#[derive(Clone)]
pub(super) struct Front {
    pub(super) run: Unpacked<true>,
    /// The leaf's place in its parent.
    place: LeafPlace,
    /// The last index of the leaf.
    max: Index,
    /// Whether only the entry at `spot` is open, and not the rest of its leaf.
    alone: bool,
    spot: Spot,
    /// The path to the leaf. Its slot in the parent may be older than that of `place`.
    path: Descent,
}

/// The place of a leaf in its parent.
#[derive(Clone, Copy)]
pub(super) struct LeafPlace {
    pub(super) parent: *const Inner,
    /// The slot of the leaf, and that of the parent's last child. Both are 0 if there is no parent,
    /// or no leaf yet, or if only an entry of the leaf is open.
    pub(super) slot: usize,
    pub(super) last: usize,
}

impl LeafPlace {
    pub(super) const NONE: LeafPlace = LeafPlace { parent: ptr::null(), slot: 0, last: 0 };

    /// The place of the leaf that a path leads to.
    pub(super) fn to(path: &Descent) -> LeafPlace {
        path.parent().map_or(LeafPlace::NONE, |(parent, slot)| {
            // SAFETY: the invariant of the path.
            let last = unsafe { parent.seps() }.len() - 1;
            LeafPlace { parent, slot, last }
        })
    }

    /// Notes the place in the path, which may lead to another child of the same parent.
    pub(super) fn note_in(&self, path: &mut Descent) {
        if self.last > 0 {
            path.set_slot(1, self.slot);
        }
    }
}

impl Front {
    /// A front end before its first leaf.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(super) fn new() -> Self {
        Front {
            run: Unpacked::new(),
            place: LeafPlace::NONE,
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

    /// Opens the first entry alone: the one that holds `lo`, or the next one in the same leaf.
    /// Returns false if the leaf has none. Either way, [`Front::turn`] continues from there.
    ///
    /// # Safety
    /// As for [`Front::turn`]; there was no leaf yet.
    #[inline(always)]
    pub(super) unsafe fn open_one(&mut self, root: Link, lo: Index) -> bool {
        let Front { run, spot, path, .. } = self;
        // SAFETY: the caller's promise.
        let found = unsafe { descent::walk_open::<AtOrAfter, true>(root, lo, path, spot, run) };
        self.max = self.spot.max();
        self.alone = found;
        found
    }

    /// Moves to the parent's next leaf. Returns true if that leaf has entries. Does not move if the
    /// leaf would be the parent's last child, or if the bounds end in it. If the result is false,
    /// [`Front::turn`] continues from wherever this stopped.
    ///
    /// Cost: a separator, a child, and the leaf; prefetches the leaf after it.
    ///
    /// # Safety
    /// As for [`Descent::walk`], since the last call of [`Front::turn`].
    #[inline(always)]
    pub(super) unsafe fn advance(&mut self, hi: Index) -> bool {
        node::run(Advance(self, hi))
    }

    /// Moves to the next leaf, or to the leaf that holds `lo` if there was none yet. Returns false
    /// if no further leaf begins at or before `hi`. The leaf may have no entry to come.
    ///
    /// # Safety
    /// As for [`Descent::walk`]; the root is not null.
    #[inline(never)]
    pub(super) unsafe fn turn(&mut self, root: Link, lo: Index, hi: Index) -> bool {
        if self.alone {
            self.alone = false;
            if self.spot.has_next() {
                // The rest of the leaf.
                self.place = LeafPlace::to(&self.path);
                let step = self.spot.step();
                // SAFETY: the invariant of the path.
                unsafe { open(&mut self.run, &step, step.slot) };
                self.run.skip();
                return true;
            }
        }
        if self.is_new() {
            // Index 0 is in the first leaf, so no search is needed.
            let pick = if lo == 0 { Pick::First } else { Pick::Index(lo) };
            // SAFETY: the caller's promise.
            unsafe { self.path.walk(root, pick) };
        } else {
            if self.max >= hi {
                return false;
            }
            self.place.note_in(&mut self.path);
            if !self.path.next_leaf() {
                return false;
            }
        }
        self.place = LeafPlace::to(&self.path);
        let step = self.path.step(0);
        self.max = step.max;
        // SAFETY: the path's invariant.
        unsafe { open(&mut self.run, step, step.slot) };
        true
    }

    /// Whether [`Front::advance`] is possible. It is not in a new front, or while an entry is open
    /// alone.
    #[inline(always)]
    pub(super) fn has_way(&self) -> bool {
        self.place.last != 0
    }

    /// The last index of the leaf.
    #[inline(always)]
    pub(super) fn max(&self) -> Index {
        self.max
    }

    /// Drops all entries to come.
    pub(super) fn finish(&mut self) {
        self.place = LeafPlace::NONE;
        self.run.clear();
    }
}

/// The job of [`Front::advance`].
struct Advance<'f>(&'f mut Front, Index);

impl Job for Advance<'_> {
    type Out = bool;

    #[cfg_attr(not(unoptimized), inline(always))]
    fn run<S: Search>(self, search: S) -> bool {
        let Advance(front, hi) = self;
        let slot = front.place.slot + 1;
        if slot >= front.place.last {
            return false;
        }
        // SAFETY: there is a parent, since it has a last child; the invariant of the path.
        let (inner, seps) = unsafe { (&*front.place.parent, (*front.place.parent).seps()) };
        let max = seps.bounds[slot];
        if max >= hi {
            return false;
        }
        inner.child(slot + 1).prefetch();
        let min = front.max + 1;
        (front.place.slot, front.max) = (slot, max);
        // SAFETY: the invariant of the path.
        unsafe { front.run.open(search, inner.child(slot).as_leaf().body(), 0, (min, max)) };
        !front.run.is_empty()
    }
}

/// Opens the leaf of a step, at its entries from `slot` on.
///
/// # Safety
/// As for [`Unpacked::open`].
#[inline(always)]
pub(super) unsafe fn open<const UP: bool>(run: &mut Unpacked<UP>, step: &Step, slot: usize) {
    node::run(Open(run, step, slot));
}

struct Open<'a, const UP: bool>(&'a mut Unpacked<UP>, &'a Step, usize);

impl<const UP: bool> Job for Open<'_, UP> {
    type Out = ();

    #[inline(always)]
    fn run<S: Search>(self, search: S) {
        let Open(run, step, slot) = self;
        // SAFETY: the promise of `open`.
        unsafe { run.open(search, step.link.as_leaf().body(), slot, (step.min, step.max)) };
    }
}
