//! The front of an iterator: leaf after leaf, each unpacked when it is reached.
//!
//! A leaf has nine entries or so, and a step within it is a few instructions: so what a leaf costs
//! counts as much as what its entries do. It is kept small by going along one parent without a look
//! at the path: its next child, and the separator after that. At the last child, and where the end
//! of what is to be visited is near, the path takes over.
//!
//! # What the steps gave
//!
//! Nanoseconds an entry by AVX-512, with `for`, at 100 / 1,000 / 10,000 ranges with holes, Xeon of
//! 3 GHz; in the same runs `brie_tree` took 0.9 / 0.9 / 1.4.
//!
//! | step | ns |
//! |---|---|
//! | each entry by itself from the packed leaf; the path for each leaf | 3.3 / 3.1 / 3.6 |
//! | all slots of a leaf unpacked at once | 2.4 / 2.3 / 2.5 |
//! | to whole cache lines; along the parent without the path | 1.9 / 1.7 / 1.7 |
//! | one word is all that a step changes, and stays in a register | 1.7 / 1.6 / 1.6 |
//! | made where it stays (1,800 bytes less to copy); the first leaf of all without a search | 1.6 / 1.5 / 1.5 |

use crate::descent::{Descent, Pick, Step};
use crate::node::{self, Inner, Job, Link, Search, Unpacked};
use core::ptr;

/// See the module.
pub(super) struct Front {
    pub(super) run: Unpacked,
    /// The leaf's parent, and which of its children the leaf is.
    parent: *const Inner,
    slot: usize,
    /// The parent's last child; 0 if there is no parent, or no leaf yet.
    last: usize,
    /// The last index of the leaf.
    max: usize,
    /// The way to the leaf. At the parent, its slot may be behind.
    path: Descent,
}

impl Front {
    /// Before the first leaf.
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

    /// Goes on to the next leaf of the parent, if neither that is the last nor what is to be
    /// visited ends there. True if it has entries; if false, [`Front::turn`] goes on from wherever
    /// this came to.
    ///
    /// Cost: a separator, a child, and the leaf; the leaf after it is brought near.
    ///
    /// # Safety
    /// As for [`Descent::walk`], from [`Front::turn`] on.
    #[inline(always)]
    pub(super) unsafe fn advance(&mut self, hi: usize) -> bool {
        node::run(Advance(self, hi))
    }

    /// Goes to the next leaf, or to the one that holds `lo` if there was none yet; false if there
    /// is none that begins at or before `hi`. Such a leaf may have no entry to come.
    ///
    /// # Safety
    /// As for [`Descent::walk`]; the root is not null.
    #[inline(never)]
    pub(super) unsafe fn turn(&mut self, root: Link, lo: usize, hi: usize) -> bool {
        if self.path.height() == 0 {
            // From the very first, there is nothing to search for, and to wait for.
            let pick = if lo == 0 { Pick::First } else { Pick::Index(lo) };
            // SAFETY: the caller's promise.
            unsafe { self.path.walk(root, pick) };
        } else {
            if self.max >= hi {
                return false;
            }
            // The leaf is not the last of all, so there is a parent.
            self.path.set_slot(1, self.slot);
            if !self.path.next_leaf() {
                return false;
            }
        }
        if self.path.height() > 1 {
            let step = self.path.step(1);
            // SAFETY: the path's invariant.
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

    /// Nothing is to come any more.
    pub(super) fn finish(&mut self) {
        self.last = 0;
        self.run.clear();
    }
}

/// [`Front::advance`].
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
        // SAFETY: there is a parent, for it has a last child; the path's invariant.
        let (inner, seps) = unsafe { (&*front.parent, (*front.parent).seps()) };
        let max = seps.bounds[slot];
        if max >= hi {
            return false;
        }
        inner.child(slot + 1).prefetch();
        let min = front.max + 1;
        (front.slot, front.max) = (slot, max);
        // SAFETY: the path's invariant.
        unsafe { front.run.open(search, inner.child(slot).as_leaf().body(), 0, (min, max)) };
        !front.run.is_empty()
    }
}

/// Unpacks the leaf of a step from a slot on.
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
