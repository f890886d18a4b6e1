//! A way down the tree: one step a level, from the root to a leaf's slot.
//!
//! Every walk, forwards or back, is made of the same moves: descend to an index, step to the next
//! or previous slot, step to the next or previous node of a level. Nothing recurses and nothing
//! allocates; the steps are a fixed array, written only as far as the tree is high.
//!
//! # Beside a writer
//!
//! A path keeps the nodes it came through and goes on from them, though a writer may have replaced
//! them since. No dead-node check and no restart is needed, because:
//!
//! - *Memory.* A node on the path was reachable at some moment under the guard, so it is retired
//!   later than the guard began and is not freed before the guard ends.
//! - *Live or frozen.* A writer stores only into nodes that are reachable. So when a child is
//!   loaded from a node that has been replaced meanwhile, that child was its child at the moment of
//!   the replacement, which is after the path reached the node: the child, too, was part of the
//!   tree at some moment under the guard. By induction this holds for every node a path steps to.
//! - *Each index once.* The range that a node gives each of its children never changes, nor how it
//!   divides its own. A child is only ever replaced by a subtree for the same range. (The same node
//!   may get another range from another parent: its first slot or its last is longer there. A path
//!   goes by its own parents.) So the steps of a path partition the index range, whichever version
//!   of each child is met: no index is skipped, none is met twice.
//! - *No torn range.* A leaf is never changed where readers may look. Each slot met is a range that
//!   the tree held at some moment under the guard.
//!
//! So a walk sees, for each index, what the tree held there at some moment under the guard (I1):
//! not one moment for all, which would need a snapshot. Holes may look divided where two leaves are
//! met at different moments.

use crate::layout::MAX_HEIGHT;
use crate::node::{self, Job, Link, Search};
use core::mem::MaybeUninit;

/// One node on the way, with the range it covers and the slot taken in it.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) link: Link,
    pub(crate) slot: usize,
    pub(crate) min: usize,
    pub(crate) max: usize,
}

impl Step {
    /// Slots in the node.
    pub(crate) fn len(&self) -> usize {
        // SAFETY: the invariant of the path that the step is from.
        unsafe { self.link.len() }
    }
}

/// A range of the tree and its word: null for a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) min: usize,
    pub(crate) max: usize,
    pub(crate) word: *mut (),
}

/// Which slot to take in each node on the way down.
#[derive(Clone, Copy)]
pub(crate) enum Pick {
    /// The one that holds the index.
    Index(usize),
    First,
    Last,
}

/// The steps from the root (the highest) to the lowest level reached.
///
/// Invariant: all its links stay allocated, and their leaves and separators unchanged, until the
/// path is next built; whoever calls [`Descent::walk`] promises it.
pub(crate) struct Descent {
    /// Steps `floor..height` are initialised; after [`Descent::walk_to_leaf`], until they are
    /// completed, only their nodes and slots.
    floor: usize,
    height: usize,
    steps: [MaybeUninit<Step>; MAX_HEIGHT],
}

impl Clone for Descent {
    fn clone(&self) -> Self {
        let mut copy = Descent::new();
        copy.clone_from(self);
        copy
    }

    /// In place: only the steps in use are copied.
    fn clone_from(&mut self, source: &Self) {
        (self.floor, self.height) = (source.floor, source.height);
        for level in self.floor..self.height {
            self.steps[level] = source.steps[level];
        }
    }
}

impl Descent {
    /// A path through nothing.
    #[inline(always)]
    pub(crate) fn new() -> Self {
        // Not `[const { MaybeUninit::uninit() }; _]`: that is a constant, which the compiler
        // copies. SAFETY: an array of what may be uninitialised may be so, too.
        let steps = unsafe { MaybeUninit::uninit().assume_init() };
        Descent { floor: 0, height: 0, steps }
    }

    /// To a path through nothing.
    pub(crate) fn clear(&mut self) {
        self.height = 0;
    }

    /// Levels of the tree that was walked; 0 for an empty tree.
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

    /// Walks from the root to the leaf slot that `pick` chooses. Cost: one node a level.
    ///
    /// # Safety
    /// `root` was loaded from a tree, and until the path is built anew every node reachable from it
    /// now or later stays allocated with its leaves and separators unchanged: the caller holds a
    /// guard or the writer's right, and uses the path no longer than that.
    pub(crate) unsafe fn walk(&mut self, root: Link, pick: Pick) {
        self.height = 0;
        if !root.is_null() {
            // SAFETY: the caller's promise; a root covers every index.
            unsafe { self.walk_part(root, 0, usize::MAX, 0, pick) }
        }
    }

    /// Walks from the root, which is not null, to the leaf that holds an index. Returns the leaf,
    /// and where it ends (or begins, if not `UP`). Its slot is the first; steps have no range until
    /// they are [completed](Descent::complete).
    ///
    /// # Safety
    /// As for [`Descent::walk`].
    #[inline(always)]
    pub(crate) unsafe fn walk_to_leaf<const UP: bool, S: Search>(
        &mut self,
        search: S,
        root: Link,
        index: usize,
    ) -> (Link, usize) {
        let (mut link, mut far) = (root, if UP { usize::MAX } else { 0 });
        let top = root.level();
        assert!(top < MAX_HEIGHT);
        (self.height, self.floor) = (top + 1, 0);
        let mut level = top;
        while level > 0 {
            #[cfg(test)]
            crate::testing::visit();
            // SAFETY: the caller's promise.
            let inner = unsafe { link.as_inner() };
            inner.prefetch();
            // SAFETY: as above.
            let seps = unsafe { inner.seps() };
            let slot = search.inner(seps, index);
            self.set_place(level, link, slot);
            far = if UP { seps.end_of(slot, far) } else { seps.start_of(slot, far) };
            link = inner.child(slot);
            level -= 1;
        }
        #[cfg(test)]
        crate::testing::visit();
        self.set_place(0, link, 0);
        (link, far)
    }

    /// Writes the node and the slot of a step, which has no range yet.
    #[inline(always)]
    fn set_place(&mut self, level: usize, link: Link, slot: usize) {
        let step = self.steps[level].as_mut_ptr();
        // SAFETY: the place is there.
        unsafe {
            (&raw mut (*step).link).write(link);
            (&raw mut (*step).slot).write(slot);
        }
    }

    /// Gives each step its range, by the slots of those above it.
    pub(crate) fn complete(&mut self) {
        let (mut min, mut max) = (0, usize::MAX);
        for level in (0..self.height).rev() {
            let step = self.steps[level].as_mut_ptr();
            // SAFETY: its node and its slot are written.
            let (link, slot) =
                unsafe { ((&raw const (*step).link).read(), (&raw const (*step).slot).read()) };
            self.steps[level].write(Step { link, slot, min, max });
            if level > 0 {
                // SAFETY: the path's invariant.
                let seps = unsafe { link.as_inner().seps() };
                (min, max) = (seps.start(slot, min), seps.end(slot, max));
            }
        }
    }

    /// Walks from the top of a subtree that covers `min..=max` to a node of the level `floor`.
    ///
    /// # Safety
    /// As for [`Descent::walk`].
    pub(crate) unsafe fn walk_part(
        &mut self,
        top: Link,
        min: usize,
        max: usize,
        floor: usize,
        pick: Pick,
    ) {
        let level = top.level();
        debug_assert!(floor <= level);
        self.height = level + 1;
        // The invariant of `steps` holds again once `enter` has written down to `floor`.
        self.floor = floor;
        self.enter(top, min, max, pick);
    }

    /// Writes the steps from `link` down to the floor.
    #[inline]
    fn enter(&mut self, link: Link, min: usize, max: usize, pick: Pick) {
        node::run(Enter { path: self, link, min, max, pick });
    }

    /// Goes to another child of the node at `level` and on down to the floor.
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
            // One level, and nothing to search for: no way down.
            Pick::First if level == self.floor + 1 => 0,
            // SAFETY: the path's invariant.
            Pick::Last if level == self.floor + 1 => (unsafe { link.len() }) - 1,
            _ => return self.enter(link, min, max, pick),
        };
        #[cfg(test)]
        crate::testing::visit();
        self.steps[level - 1].write(Step { link, slot, min, max });
    }

    /// Sets the slot at a level, leaving the steps below it stale.
    pub(crate) fn set_slot(&mut self, level: usize, slot: usize) {
        debug_assert!(self.floor <= level && level < self.height);
        // SAFETY: the place is there; the step need not be complete.
        unsafe { (&raw mut (*self.steps[level].as_mut_ptr()).slot).write(slot) }
    }

    /// Keeps steps down to `floor` only. Lowering it must be followed by a [`Descent::turn`] at a
    /// level above what is new.
    pub(crate) fn set_floor(&mut self, floor: usize) {
        debug_assert!(floor < self.height);
        self.floor = floor;
    }

    /// The range at the leaf's slot.
    #[inline(always)]
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

    /// Steps to the next entry of the same leaf if it begins at or before `limit`; `None`, and no
    /// move, else. Holes do not touch, so this looks at two slots at the most.
    #[inline]
    pub(crate) fn next_entry(&mut self, limit: usize) -> Option<Span> {
        if self.height == 0 {
            return None;
        }
        let step = self.step_mut(0);
        // SAFETY: the path's invariant.
        let body = unsafe { step.link.as_leaf().body() };
        // Bit 31 is no slot, so that the shift has a meaning after the last.
        let rest = body.entries() >> (step.slot + 1);
        if rest == 0 {
            return None;
        }
        let slot = step.slot + 1 + rest.trailing_zeros() as usize;
        let min = body.start(slot, step.min);
        if min > limit {
            return None;
        }
        step.slot = slot;
        Some(Span { min, max: body.end(slot, step.max), word: body.word(slot) })
    }

    /// Steps to the previous entry of the same leaf if it ends at or after `limit`; `None`, and no
    /// move, else.
    #[inline]
    pub(crate) fn prev_entry(&mut self, limit: usize) -> Option<Span> {
        if self.height == 0 {
            return None;
        }
        let step = self.step_mut(0);
        // SAFETY: the path's invariant.
        let body = unsafe { step.link.as_leaf().body() };
        let slot = (body.entries() & ((1 << step.slot) - 1)).checked_ilog2()? as usize;
        let max = body.end(slot, step.max);
        if max < limit {
            return None;
        }
        step.slot = slot;
        Some(Span { min: body.start(slot, step.min), max, word: body.word(slot) })
    }

    /// Steps to the next slot of the leaves; false, and no move, at the end.
    #[inline]
    pub(crate) fn next_slot(&mut self) -> bool {
        let step = self.step_mut(0);
        if step.slot + 1 < step.len() {
            step.slot += 1;
            return true;
        }
        self.next_node().is_some()
    }

    /// Steps to the previous slot of the leaves; false, and no move, at the beginning.
    #[inline]
    pub(crate) fn prev_slot(&mut self) -> bool {
        let step = self.step_mut(0);
        if step.slot > 0 {
            step.slot -= 1;
            return true;
        }
        self.prev_node().is_some()
    }

    /// Steps to the next leaf, at its first slot; false, and no move, at the end. The floor is the
    /// leaves.
    ///
    /// Cost: mostly two separators and a child of the same parent; the leaf after it is brought
    /// near.
    #[inline]
    pub(crate) fn next_leaf(&mut self) -> bool {
        debug_assert!(self.floor == 0);
        if self.height < 2 {
            return false;
        }
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

    /// Steps to the next node of the lowest level kept, at its first slot, and returns the level
    /// where the way turned; `None`, and no move, at the end.
    pub(crate) fn next_node(&mut self) -> Option<usize> {
        for level in self.floor + 1..self.height {
            let slot = self.step(level).slot + 1;
            if slot < self.step(level).len() {
                self.turn(level, slot, Pick::First);
                return Some(level);
            }
        }
        None
    }

    /// Steps to the previous node of the lowest level kept, at its last slot, and returns the level
    /// where the way turned; `None`, and no move, at the beginning.
    pub(crate) fn prev_node(&mut self) -> Option<usize> {
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

/// The way from a node down to the floor of a path.
struct Enter<'p> {
    path: &'p mut Descent,
    link: Link,
    min: usize,
    max: usize,
    pick: Pick,
}

impl Job for Enter<'_> {
    type Out = ();

    #[inline(always)]
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

#[cfg(test)]
mod tests;
