//! The path from the root to a slot of a leaf: one step per level.
//!
//! Every walk uses the same moves: descend to an index, step to the next or previous slot, step to
//! the next or previous node of a level. Nothing recurses and nothing allocates. The steps are an
//! array of fixed size, of which only the tree's height is used.
//!
//! # Readers concurrent with a writer
//!
//! A path keeps the nodes that it came through and continues from them, although a writer may have
//! replaced them. It needs no check for dead nodes and no restart:
//!
//! - *Memory.* A node on the path was reachable at some moment under the guard. So it is retired
//!   after the guard began, and is not freed before the guard ends.
//! - *Live or frozen.* A writer stores only into reachable nodes. Suppose that a path loads a child
//!   from a node that was replaced meanwhile. Then that child was in the node at the moment of the
//!   replacement, which is after the path reached the node. So the child, too, was part of the tree
//!   at some moment under the guard. By induction this holds for every node that a path steps to.
//! - *Each index once.* The range that a node gives to a child never changes, nor does the way in
//!   which the node divides its own range. A child is replaced only by a subtree for the same
//!   range. (The same node may have a longer range under another parent, whose first or last slot
//!   is longer. A path uses the parents that it came through.) So the steps of a path partition the
//!   index range, whichever version of each child they meet. No index is skipped, and none is met
//!   twice.
//! - *No torn range.* A leaf that readers can reach is never changed. Each slot on the path is a
//!   range that the tree held at some moment under the guard.
//!
//! So a walk sees, for each index, what the tree held there at some moment under the guard (I1).
//! The moments of different indices may differ: a walk is not a snapshot. A hole may appear divided
//! where the walk met two leaves at different moments.

mod partial;
mod seek;
mod span;
mod spot;
mod step;
#[cfg(test)]
mod tests;
mod unpack;

pub(crate) use seek::{at_or_after, at_or_before, lookup, walk, walk_open};
pub(crate) use span::Span;
pub(crate) use spot::{After, Aim, At, AtOrAfter, AtOrBefore, Before, Spot};
pub(crate) use step::{Pick, Step};
pub(crate) use unpack::Unpacked;

use crate::Index;
use crate::layout::MAX_HEIGHT;
use crate::node::{self, Job, Link, Search};
use core::mem::MaybeUninit;

/// The steps from the root (the highest level) to the lowest level reached.
///
/// Invariant: all its nodes stay allocated, and their leaves and separators unchanged, until the
/// path is built again. The caller of [`Descent::walk`] promises it.
pub(crate) struct Descent {
    /// Steps `floor..height` are initialised. If it is [`PARTIAL`], only the nodes and slots of
    /// steps `0..height` are.
    floor: usize,
    height: usize,
    steps: [MaybeUninit<Step>; MAX_HEIGHT],
}

/// The floor of a path without ranges: see [`partial`]. No level is at or above it.
const PARTIAL: usize = usize::MAX;

impl Clone for Descent {
    fn clone(&self) -> Self {
        let mut copy = Descent::new();
        copy.clone_from(self);
        copy
    }

    /// In place: only the steps in use are copied.
    fn clone_from(&mut self, source: &Self) {
        (self.floor, self.height) = (source.floor, source.height);
        let floor = if self.is_partial() { 0 } else { self.floor };
        for level in floor..self.height {
            self.steps[level] = source.steps[level];
        }
    }
}

impl Descent {
    /// An empty path.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        // Not `[const { MaybeUninit::uninit() }; _]`, which the compiler copies from a constant.
        // SAFETY: an array of `MaybeUninit` may be uninitialised.
        let steps = unsafe { MaybeUninit::uninit().assume_init() };
        Descent { floor: 0, height: 0, steps }
    }

    /// Makes the path empty.
    pub(crate) fn clear(&mut self) {
        (self.floor, self.height) = (0, 0);
    }

    /// The number of levels of the tree that was walked; 0 for an empty tree.
    pub(crate) fn height(&self) -> usize {
        self.height
    }

    /// The step at a level.
    #[inline(always)]
    pub(crate) fn step(&self, level: usize) -> &Step {
        assert!(self.floor <= level && level < self.height);
        // SAFETY: steps `floor..height` are initialised.
        unsafe { self.steps[level].assume_init_ref() }
    }

    #[inline(always)]
    fn step_mut(&mut self, level: usize) -> &mut Step {
        assert!(self.floor <= level && level < self.height);
        // SAFETY: steps `floor..height` are initialised.
        unsafe { self.steps[level].assume_init_mut() }
    }

    /// Walks from the root to the leaf slot that `pick` selects. Cost: one node per level.
    ///
    /// # Safety
    /// `root` was loaded from a tree. Every node reachable from it, now or later, stays allocated
    /// with its leaves and separators unchanged until the path is built again. That is so if the
    /// caller holds a guard or is the writer, and uses the path no longer than that.
    pub(crate) unsafe fn walk(&mut self, root: Link, pick: Pick) {
        self.clear();
        if !root.is_null() {
            // SAFETY: the caller's promise; a root covers every index.
            unsafe { self.walk_part(root, 0, Index::MAX, 0, pick) }
        }
    }

    /// Walks from the top of a subtree that covers `min..=max` to a node of level `floor`.
    ///
    /// # Safety
    /// As for [`Descent::walk`].
    pub(crate) unsafe fn walk_part(
        &mut self,
        top: Link,
        min: Index,
        max: Index,
        floor: usize,
        pick: Pick,
    ) {
        let level = top.level();
        debug_assert!(floor <= level);
        self.height = level + 1;
        // The invariant of `steps` holds again when `enter` has written the steps down to `floor`.
        self.floor = floor;
        self.enter(top, min, max, pick);
    }

    /// Writes the steps from `link` down to `floor`.
    #[inline]
    fn enter(&mut self, link: Link, min: Index, max: Index, pick: Pick) {
        node::run(Enter { path: self, link, min, max, pick });
    }

    /// Goes to another child of the node at `level`, and from there down to `floor`.
    #[inline]
    pub(crate) fn turn(&mut self, level: usize, slot: usize, pick: Pick) {
        let step = self.step_mut(level);
        step.slot = slot;
        let (min, max, link) = {
            // SAFETY: the path's invariant.
            let inner = unsafe { step.link.as_inner() };
            // SAFETY: the path's invariant.
            let seps = unsafe { inner.seps() };
            (seps.start(slot, step.min), seps.end(slot, step.max), inner.child(slot))
        };
        let slot = match pick {
            // One level down, without a search: no descent needed.
            Pick::First if level == self.floor + 1 => 0,
            // SAFETY: the path's invariant.
            Pick::Last if level == self.floor + 1 => (unsafe { link.len() }) - 1,
            _ => return self.enter(link, min, max, pick),
        };
        #[cfg(test)]
        crate::testing::visit();
        self.steps[level - 1].write(Step { link, slot, min, max });
    }

    /// Sets the slot at a level. The steps below it become stale.
    pub(crate) fn set_slot(&mut self, level: usize, slot: usize) {
        debug_assert!((self.is_partial() || self.floor <= level) && level < self.height);
        // SAFETY: the level is inside the array; the step need not be complete.
        unsafe { (&raw mut (*self.steps[level].as_mut_ptr()).slot).write(slot) }
    }

    /// Keeps the steps down to `floor` only. After lowering the floor, the caller must call
    /// [`Descent::turn`] at a level above the new steps.
    pub(crate) fn set_floor(&mut self, floor: usize) {
        debug_assert!(floor < self.height);
        self.floor = floor;
    }

    /// The range and the word at the leaf's slot.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) fn span(&self) -> Span {
        let step = self.step(0);
        // SAFETY: the path's invariant.
        let body = unsafe { step.link.as_leaf().body() };
        Span {
            min: body.start(step.slot, step.min),
            max: body.end(step.slot, step.max),
            word: body.word(step.slot),
        }
    }

    /// Steps to the next slot, across leaves. At the end of the tree it returns false and does not
    /// move.
    #[inline]
    pub(crate) fn next_slot(&mut self) -> bool {
        let step = self.step_mut(0);
        if step.slot + 1 < step.len() {
            step.slot += 1;
            return true;
        }
        self.next_node().is_some()
    }

    /// Steps to the previous slot, across leaves. At the beginning of the tree it returns false and
    /// does not move.
    #[inline]
    pub(crate) fn prev_slot(&mut self) -> bool {
        let step = self.step_mut(0);
        if step.slot > 0 {
            step.slot -= 1;
            return true;
        }
        self.prev_node().is_some()
    }

    /// Steps to the next leaf, at its first slot. At the end of the tree it returns false and does
    /// not move. The floor must be 0.
    ///
    /// Cost: usually two separators and a child of the same parent. The leaf after the next is
    /// prefetched.
    #[inline]
    pub(crate) fn next_leaf(&mut self) -> bool {
        if self.height < 2 {
            return false;
        }
        if self.is_partial() {
            self.complete();
        }
        debug_assert!(self.floor == 0);
        let step = self.step_mut(1);
        // SAFETY: the path's invariant.
        let inner = unsafe { step.link.as_inner() };
        // SAFETY: as above.
        let seps = unsafe { inner.seps() };
        let slot = step.slot + 1;
        if slot == seps.len() {
            return self.next_node().is_some();
        }
        step.slot = slot;
        let (min, max) = (seps.start(slot, step.min), seps.end(slot, step.max));
        if slot + 1 < seps.len() {
            inner.child(slot + 1).prefetch();
        }
        self.steps[0].write(Step { link: inner.child(slot), slot: 0, min, max });
        true
    }

    /// Steps to the previous leaf, at its last slot. At the beginning of the tree it returns false
    /// and does not move. The floor must be 0. Cost: as for [`Descent::next_leaf`].
    #[inline]
    pub(crate) fn prev_leaf(&mut self) -> bool {
        if self.height < 2 {
            return false;
        }
        if self.is_partial() {
            self.complete();
        }
        debug_assert!(self.floor == 0);
        let step = self.step_mut(1);
        if step.slot == 0 {
            return self.prev_node().is_some();
        }
        let slot = step.slot - 1;
        step.slot = slot;
        // SAFETY: the path's invariant.
        let inner = unsafe { step.link.as_inner() };
        // SAFETY: as above.
        let seps = unsafe { inner.seps() };
        // The child is not the last one.
        let (min, max) = (seps.start(slot, step.min), seps.bounds[slot]);
        if slot > 0 {
            inner.child(slot - 1).prefetch();
        }
        let link = inner.child(slot);
        // SAFETY: the path's invariant.
        let slot = unsafe { link.len() } - 1;
        self.steps[0].write(Step { link, slot, min, max });
        true
    }

    /// Steps to the next node of the lowest level kept, at its first slot. Returns the level of the
    /// lowest node that both paths have in common. At the end it returns `None` and does not move.
    pub(crate) fn next_node(&mut self) -> Option<usize> {
        if self.is_partial() {
            self.complete();
        }
        for level in self.floor + 1..self.height {
            let slot = self.step(level).slot + 1;
            if slot < self.step(level).len() {
                self.turn(level, slot, Pick::First);
                return Some(level);
            }
        }
        None
    }

    /// Steps to the previous node of the lowest level kept, at its last slot. Returns the level of
    /// the lowest node that both paths have in common. At the beginning it returns `None` and does
    /// not move.
    pub(crate) fn prev_node(&mut self) -> Option<usize> {
        if self.is_partial() {
            self.complete();
        }
        for level in self.floor + 1..self.height {
            let slot = self.step(level).slot;
            if slot > 0 {
                self.turn(level, slot - 1, Pick::Last);
                return Some(level);
            }
        }
        None
    }
}

/// The part of a descent from a node down to the floor of a path.
struct Enter<'p> {
    path: &'p mut Descent,
    link: Link,
    min: Index,
    max: Index,
    pick: Pick,
}

impl Job for Enter<'_> {
    type Out = ();

    #[cfg_attr(not(unoptimized), inline(always))]
    fn run<S: Search>(self, search: S) {
        let Enter { path, mut link, mut min, mut max, pick } = self;
        let mut level = link.level();
        while level > path.floor {
            #[cfg(test)]
            crate::testing::visit();
            // SAFETY: the path's invariant.
            let inner = unsafe { link.as_inner() };
            // SAFETY: the path's invariant.
            let seps = unsafe { inner.seps() };
            let slot = match pick {
                Pick::Index(index) => search.inner(seps, index),
                Pick::First => 0,
                Pick::Last => seps.len() - 1,
            };
            path.steps[level].write(Step { link, slot, min, max });
            (min, max) = (seps.start(slot, min), seps.end(slot, max));
            link = inner.child(slot);
            level -= 1;
        }
        #[cfg(test)]
        crate::testing::visit();
        // SAFETY: the path's invariant.
        let slot = match pick {
            Pick::Index(index) if level == 0 => {
                // SAFETY: the path's invariant.
                search.leaf(unsafe { link.as_leaf().body() }, index)
            }
            // SAFETY: as above.
            Pick::Index(index) => search.inner(unsafe { link.as_inner().seps() }, index),
            Pick::First => 0,
            // SAFETY: as above.
            Pick::Last => (unsafe { link.len() }) - 1,
        };
        path.steps[level].write(Step { link, slot, min, max });
    }
}
