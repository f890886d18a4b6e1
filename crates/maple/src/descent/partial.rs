//! Paths without ranges: descents note only the nodes and the slots that they go through.
//!
//! Most callers take one or two entries from the leaf that they come to, so the ranges of the nodes
//! above are computed only when a move leaves the leaf ([`Descent::complete`]). They follow from
//! the separators, which do not change.
//!
//! # Skipping the walk
//!
//! A cursor that is set to another index of its leaf need not walk from the root, if
//! [`Descent::leads_from`] finds each node of its path still in its place. A walk would load the
//! root's link and, from each node, the link of the child that covers the index. The index lies in
//! the range of the path's leaf, so in each node the walk would take the path's slot: separators do
//! not change. So `leads_from` loads the same links, in the same order, each with Acquire. If they
//! are equal to those of the path, the walk would have gone through the same nodes to the same
//! leaf; under a guard no node is freed, so an equal link is the same node. So the result is that
//! of a walk at this moment, with every write in it that happened before. If a writer has replaced
//! a node of the path, a link differs, and the cursor walks.
//!
//! A writer's cursor drops its path before it writes: the write may free nodes of the path, or
//! change them in place.

use super::{Descent, PARTIAL, Step};
use crate::Index;
use crate::layout::MAX_HEIGHT;
use crate::node::{Inner, Link, Search};

impl Descent {
    /// Whether the steps have no ranges yet.
    #[inline(always)]
    pub(super) fn is_partial(&self) -> bool {
        self.floor == PARTIAL
    }

    /// Walks from a root that is not null to the leaf that holds an index. Returns the leaf and its
    /// last index, or its first if not `UP`. The path is at the leaf's first slot. Steps have no
    /// range until [`Descent::complete`].
    ///
    /// # Safety
    /// As for [`Descent::walk`].
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) unsafe fn walk_to_leaf<const UP: bool, S: Search>(
        &mut self,
        search: S,
        root: Link,
        index: Index,
    ) -> (Link, Index) {
        let (mut link, mut far) = (root, if UP { Index::MAX } else { 0 });
        self.begin_partial(root);
        let mut level = root.level();
        while level > 0 {
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
        self.set_place(0, link, 0);
        (link, far)
    }

    /// Begins a path from a root that is not null. The caller then calls [`Descent::set_place`] for
    /// each level.
    #[inline(always)]
    pub(crate) fn begin_partial(&mut self, root: Link) {
        let top = root.level();
        assert!(top < MAX_HEIGHT);
        (self.height, self.floor) = (top + 1, PARTIAL);
    }

    /// Writes the node and the slot of a step, but not its range.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) fn set_place(&mut self, level: usize, link: Link, slot: usize) {
        #[cfg(test)]
        crate::testing::visit();
        let step = self.steps[level].as_mut_ptr();
        // SAFETY: the level is inside the array.
        unsafe {
            (&raw mut (*step).link).write(link);
            (&raw mut (*step).slot).write(slot);
        }
    }

    /// Computes the range of each step from the slots of the steps above it.
    #[inline(never)]
    pub(crate) fn complete(&mut self) {
        if self.is_partial() {
            self.floor = 0;
        }
        let (mut min, mut max) = (0, Index::MAX);
        for level in (0..self.height).rev() {
            let step = self.steps[level].as_mut_ptr();
            // SAFETY: the node and the slot of the step are initialised.
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

    /// Steps to the next leaf if it is a child of the same parent, but not the last one. Then its
    /// range needs only the end of this leaf, `max`, and a separator. Otherwise does not move. The
    /// floor must be 0.
    #[inline]
    pub(crate) fn next_sibling(&mut self, max: Index) -> Option<Step> {
        let (parent, slot) = self.parent()?;
        // SAFETY: the path's invariant.
        let seps = unsafe { parent.seps() };
        let slot = slot + 1;
        if slot + 1 >= seps.len() {
            return None;
        }
        parent.child(slot + 1).prefetch();
        let step = Step { link: parent.child(slot), slot: 0, min: max + 1, max: seps.bounds[slot] };
        self.set_slot(1, slot);
        self.steps[0].write(step);
        Some(step)
    }

    /// Steps to the previous leaf, which ends before `min`, if it is a child of the same parent,
    /// but not the first one. Otherwise does not move. The floor must be 0.
    #[inline]
    pub(crate) fn prev_sibling(&mut self, min: Index) -> Option<Step> {
        let (parent, slot) = self.parent()?;
        if slot < 2 {
            return None;
        }
        // SAFETY: the path's invariant.
        let seps = unsafe { parent.seps() };
        let slot = slot - 1;
        parent.child(slot - 1).prefetch();
        let begin = seps.bounds[slot - 1] + 1;
        let step = Step { link: parent.child(slot), slot: 0, min: begin, max: min - 1 };
        self.set_slot(1, slot);
        self.steps[0].write(step);
        Some(step)
    }

    /// Whether a walk from `root` to an index of this path's leaf would lead to the leaf: whether
    /// each node of the path is still a child of the one above it. The floor must be 0.
    ///
    /// Cost: a load and a comparison per level. Unlike those of a walk, the loads do not wait for
    /// each other.
    #[inline]
    pub(crate) fn leads_from(&self, root: Link) -> bool {
        debug_assert!(self.floor == 0 || self.is_partial());
        let mut wanted = root;
        for level in (0..self.height).rev() {
            let step = self.steps[level].as_ptr();
            // SAFETY: the node and the slot of the step are initialised, also in a partial path.
            let (link, slot) =
                unsafe { ((&raw const (*step).link).read(), (&raw const (*step).slot).read()) };
            if link != wanted {
                return false;
            }
            if level > 0 {
                // SAFETY: the path's invariant.
                wanted = unsafe { link.as_inner() }.child(slot);
            }
        }
        self.height > 0
    }

    /// The leaf's parent, and the leaf's slot in it; `None` if the root is a leaf. The floor must
    /// be 0.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) fn parent(&self) -> Option<(&Inner, usize)> {
        if self.height < 2 {
            return None;
        }
        let step = self.steps[1].as_ptr();
        // SAFETY: the node and the slot of the step are initialised, also in a partial path; the
        // path's invariant.
        unsafe {
            Some(((&raw const (*step).link).read().as_inner(), (&raw const (*step).slot).read()))
        }
    }
}
