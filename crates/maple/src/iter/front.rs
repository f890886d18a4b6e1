//! The front end of an iterator: it visits leaf after leaf and unpacks each as a whole.
//!
//! A leaf has about nine entries, and a step within a leaf takes a few instructions. So the cost
//! per leaf matters as much as the cost per entry. Within one parent, [`Front::advance`] therefore
//! reads only the next child and the separator behind it, and does not update the path. At the
//! parent's last child, and near the end of the bounds, [`Front::turn`] takes over and uses the
//! path.
//!
//! Correctness: the separators of a published node do not change, and a child is only replaced by a
//! subtree for the same range. So the next child of the parent covers the indices after this leaf.

use crate::descent::{Descent, Pick, Step};
use crate::node::{self, Inner, Job, Link, Search, Unpacked};
use core::ptr;

/// The front end of an iterator; see the module.
pub(super) struct Front {
    pub(super) run: Unpacked,
    /// The leaf's parent, and the leaf's slot in it.
    parent: *const Inner,
    slot: usize,
    /// The slot of the parent's last child; 0 if there is no parent, or no leaf yet.
    last: usize,
    /// The last index of the leaf.
    max: usize,
    /// The path to the leaf. Its slot in the parent may be older than `slot`.
    path: Descent,
}

impl Front {
    /// A front end before its first leaf.
    #[inline(always)]
    pub(super) fn new() -> Self {
        Front {
            run: Unpacked::new(),
            parent: ptr::null(),
            slot: 0,
            last: 0,
            max: 0,
            path: Descent::new(),
        }
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
    pub(super) unsafe fn advance(&mut self, hi: usize) -> bool {
        node::run(Advance(self, hi))
    }

    /// Moves to the next leaf, or to the leaf that holds `lo` if there was none yet. Returns false
    /// if no further leaf begins at or before `hi`. The leaf may have no entry to come.
    ///
    /// # Safety
    /// As for [`Descent::walk`]; the root is not null.
    #[inline(never)]
    pub(super) unsafe fn turn(&mut self, root: Link, lo: usize, hi: usize) -> bool {
        if self.path.height() == 0 {
            // Index 0 is in the first leaf, so no search is needed.
            let pick = if lo == 0 { Pick::First } else { Pick::Index(lo) };
            // SAFETY: the caller's promise.
            unsafe { self.path.walk(root, pick) };
        } else {
            if self.max >= hi {
                return false;
            }
            // The leaf is not the last of the tree, so it has a parent.
            self.path.set_slot(1, self.slot);
            if !self.path.next_leaf() {
                return false;
            }
        }
        if self.path.height() > 1 {
            let step = self.path.step(1);
            // SAFETY: the invariant of the path.
            self.parent = unsafe { step.link.as_inner() };
            (self.slot, self.last) = (step.slot, step.len() - 1);
        }
        let step = self.path.step(0);
        self.max = step.max;
        // SAFETY: the path's invariant.
        unsafe { open(&mut self.run, step, step.slot) };
        true
    }

    /// The last index of the leaf.
    #[inline(always)]
    pub(super) fn max(&self) -> usize {
        self.max
    }

    /// Drops all entries to come.
    pub(super) fn finish(&mut self) {
        self.last = 0;
        self.run.clear();
    }
}

/// The job of [`Front::advance`].
struct Advance<'f>(&'f mut Front, usize);

impl Job for Advance<'_> {
    type Out = bool;

    #[inline(always)]
    fn run<S: Search>(self, search: S) -> bool {
        let Advance(front, hi) = self;
        let slot = front.slot + 1;
        if slot >= front.last {
            return false;
        }
        // SAFETY: there is a parent, since it has a last child; the invariant of the path.
        let (inner, seps) = unsafe { (&*front.parent, (*front.parent).seps()) };
        let max = seps.bounds[slot];
        if max >= hi {
            return false;
        }
        inner.child(slot + 1).prefetch();
        let min = front.max + 1;
        (front.slot, front.max) = (slot, max);
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
pub(super) unsafe fn open(run: &mut Unpacked, step: &Step, slot: usize) {
    node::run(Open(run, step, slot));
}

struct Open<'a>(&'a mut Unpacked, &'a Step, usize);

impl Job for Open<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Search>(self, search: S) {
        let Open(run, step, slot) = self;
        // SAFETY: the promise of `open`.
        unsafe { run.open(search, step.link.as_leaf().body(), slot, (step.min, step.max)) };
    }
}
