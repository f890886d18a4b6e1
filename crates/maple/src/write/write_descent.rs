//! The way of a write down the tree: no more than a write within one leaf needs.

use super::quick::Holes;
use crate::layout::{INNER_SLOTS, MAX_HEIGHT};
use crate::node::{Body, Inner, Leaf, Link, Search};
use core::hint;
use core::mem::MaybeUninit;

/// The nodes from the root to a leaf, and the slot taken in each.
///
/// What they cover is not worked out on the way: most writes need one bound of the leaf's own, if
/// any.
///
/// On the stack, and without cells: what is read of it stays in registers. That of the writer's
/// last write is another ([`super::finger`]).
pub(crate) struct WriteDescent {
    height: usize,
    leaf: Link,
    /// The inner nodes of levels from 1 to below `height`.
    steps: [MaybeUninit<(Link, usize)>; MAX_HEIGHT],
}

impl WriteDescent {
    /// A way to nowhere.
    #[inline(always)]
    pub(super) const fn new() -> WriteDescent {
        // Not as one expression, which would be a constant and copied.
        let mut trail = MaybeUninit::<WriteDescent>::uninit();
        let place = trail.as_mut_ptr();
        // SAFETY: the steps need no value.
        unsafe {
            (&raw mut (*place).height).write(0);
            (&raw mut (*place).leaf).write(Link::NULL);
            trail.assume_init()
        }
    }

    /// Whether it is the same way as another.
    pub(super) fn is_same(&self, other: &WriteDescent) -> bool {
        // SAFETY: `walk` or `follow` has written these levels of either.
        let step = |trail: &WriteDescent, level: usize| unsafe { trail.steps[level].assume_init() };
        self.height() == other.height()
            && self.leaf() == other.leaf()
            && (1..self.height()).all(|level| step(self, level) == step(other, level))
    }

    /// Becomes the same way as another.
    #[inline(always)]
    pub(super) fn follow(&mut self, other: &WriteDescent) {
        let height = other.height();
        (self.height, self.leaf) = (height, other.leaf);
        for level in 1..height {
            self.steps[level] = other.steps[level];
        }
    }

    /// Levels of the tree.
    #[inline(always)]
    pub(super) fn height(&self) -> usize {
        // SAFETY: `walk` sets it, to the height of a tree, and none is higher; `follow` takes it
        // over.
        unsafe { hint::assert_unchecked(self.height <= MAX_HEIGHT) }
        self.height
    }

    #[inline(always)]
    pub(super) fn leaf(&self) -> Link {
        self.leaf
    }

    /// Another leaf has taken the place of the one on the way.
    #[inline(always)]
    pub(super) fn set_leaf(&mut self, leaf: Link) {
        self.leaf = leaf;
    }

    /// Walks, and tells whether a node on the way belongs to another tree, too, if that is asked
    /// for. From the top down: see [`crate::node`], `refs`.
    ///
    /// # Safety
    /// As for [`crate::descent::Descent::walk`]; the root is not null.
    #[inline(always)]
    pub(super) unsafe fn walk<S: Search>(
        &mut self,
        search: S,
        root: Link,
        index: usize,
        check: bool,
    ) -> bool {
        let height = root.level() + 1;
        // SAFETY: no tree is higher.
        unsafe { hint::assert_unchecked(height <= MAX_HEIGHT) }
        self.height = height;
        let (mut link, mut shared) = (root, false);
        for level in (1..height).rev() {
            // SAFETY: the caller's promise.
            let inner = unsafe { link.as_inner() };
            inner.prefetch();
            if check {
                shared |= inner.refs().shared();
            }
            // SAFETY: as above.
            let slot = search.inner_soon(unsafe { inner.seps() }, index);
            self.steps[level].write((link, slot));
            link = inner.child(slot);
            inner.prefetch_gap(slot);
        }
        // All of it will be read, and the header first.
        link.prefetch();
        self.leaf = link;
        // SAFETY: as above.
        shared | (check && unsafe { link.as_leaf() }.refs.shared())
    }

    /// The inner node at a level, and the slot taken in it.
    ///
    /// # Safety
    /// The promise of [`WriteDescent::walk`] still holds, and the level is one of the inner nodes'.
    #[inline(always)]
    pub(super) unsafe fn step<'n>(&self, level: usize) -> (&'n Inner, usize) {
        debug_assert!(0 < level && level < self.height());
        // SAFETY: the caller's promise; `walk` has written these levels, or `follow`; and a slot is
        // one of a node's.
        unsafe {
            let (link, slot) = self.steps[level].assume_init();
            hint::assert_unchecked(slot < INNER_SLOTS);
            (link.as_inner(), slot)
        }
    }

    /// # Safety
    /// As for [`WriteDescent::step`].
    #[inline(always)]
    pub(super) unsafe fn link(&self, level: usize) -> Link {
        // SAFETY: the caller's promise.
        unsafe { self.steps[level].assume_init() }.0
    }

    /// The first index of the node at a level: 0 for the leaf.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[inline(never)]
    pub(super) unsafe fn min(&self, level: usize) -> usize {
        for level in level + 1..self.height() {
            // SAFETY: the caller's promise.
            let (inner, slot) = unsafe { self.step(level) };
            if slot > 0 {
                // SAFETY: as above.
                return unsafe { inner.seps() }.bounds[slot - 1] + 1;
            }
        }
        0
    }

    /// The last index of the node at a level: 0 for the leaf.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[inline(never)]
    pub(super) unsafe fn max(&self, level: usize) -> usize {
        for level in level + 1..self.height() {
            // SAFETY: the caller's promise.
            let (inner, slot) = unsafe { self.step(level) };
            // SAFETY: as above.
            let seps = unsafe { inner.seps() };
            if slot + 1 < seps.len() {
                return seps.bounds[slot];
            }
        }
        usize::MAX
    }

    /// As [`WriteDescent::max`] of the leaf, where it cannot be foretold which child it is: no
    /// branch but for the last child of a full node.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[inline(always)]
    pub(super) unsafe fn leaf_end(&self) -> usize {
        if self.height() == 1 {
            return usize::MAX;
        }
        // SAFETY: the caller's promise. The bound of a last child is the node's end, if it is
        // stored.
        unsafe {
            let (parent, slot) = self.step(1);
            if slot + 1 < INNER_SLOTS { parent.seps().bounds[slot] } else { self.max(1) }
        }
    }

    /// The leaf after the one on the way (or before it), if there is one.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[inline(never)]
    pub(super) unsafe fn neighbour<'n>(&self, after: bool) -> Option<&'n Leaf> {
        for level in 1..self.height() {
            // SAFETY: the caller's promise.
            let (inner, slot) = unsafe { self.step(level) };
            // SAFETY: as above.
            let len = unsafe { inner.seps() }.len();
            let beside = if after { slot + 1 } else { slot.wrapping_sub(1) };
            if beside < len {
                let mut link = inner.child(beside);
                while link.level() > 0 {
                    // SAFETY: as above.
                    let inner = unsafe { link.as_inner() };
                    // SAFETY: as above.
                    let last = unsafe { inner.seps() }.len() - 1;
                    link = inner.child(if after { 0 } else { last });
                }
                // SAFETY: as above.
                return Some(unsafe { link.as_leaf() });
            }
        }
        None
    }

    /// What the largest gap of the leaf's parent will be when some of its children, bit `i` for
    /// child `i`, have gaps of `gap` at the most. Nobody asks for that of a root.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`]; the parent is as it was.
    #[inline(always)]
    pub(super) unsafe fn parent_gap_after<S: Search>(
        &self,
        search: S,
        changed: u32,
        gap: usize,
    ) -> usize {
        if self.height() == 2 {
            return 0;
        }
        // SAFETY: the caller's promise.
        search.max_gap_with(unsafe { self.step(1) }.0, (changed, gap), usize::MAX)
    }

    /// Brings the gaps above the leaf's parent up to date, of which the largest is `gap` now.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[inline(always)]
    pub(super) unsafe fn settle_parent_gap<S: Search>(&self, search: S, gap: usize) {
        if self.height() > 2 {
            // SAFETY: the caller's promise.
            unsafe { self.raise_gap(search, 2, gap) }
        }
    }

    /// What the largest gap of the leaf on the way will be after a change, found before the change:
    /// of the leaf as it is all is known, and nothing still on its way to memory. Nobody asks for
    /// that of a root.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`]; the leaf is as it was.
    #[inline(always)]
    pub(super) unsafe fn gap_after<S: Search>(
        &self,
        search: S,
        body: &Body,
        holes: Holes,
    ) -> usize {
        if self.height() == 1 {
            return 0;
        }
        let Holes { gone, before, after, measure, .. } = holes;
        // SAFETY: the caller's promise.
        unsafe {
            let (parent, slot) = self.step(1);
            let gap = parent.gap(slot);
            if gone == 0 {
                return gap.max(after);
            }
            // The hole at the very end is longer than all before it: nothing needs to be counted.
            if holes.is_tail() {
                return after;
            }
            if !(S::MEASURES && measure) && before != gap {
                return gap.max(after);
            }
            let others = body.holes() & !gone;
            // Where the leaf begins and ends matters only for holes that do.
            let min = if others & 1 != 0 { self.min(0) } else { 0 };
            let max = if S::MEASURES || others >> (body.len() - 1) != 0 {
                self.leaf_end()
            } else {
                usize::MAX
            };
            search.gap(body, others, (min, max), gap).max(after)
        }
    }

    /// Whether a change leaves the largest gap of the leaf as it is: the hole that it takes is
    /// shorter, and what it makes is not longer. It may say no if it does.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[inline(always)]
    pub(super) unsafe fn is_gap_safe(&self, holes: Holes) -> bool {
        if self.height() == 1 {
            return true;
        }
        // SAFETY: the caller's promise.
        let (parent, slot) = unsafe { self.step(1) };
        let gap = parent.gap(slot);
        holes.after <= gap && (holes.gone == 0 || holes.before < gap)
    }

    /// Brings the gaps up to date after a change of the last leaf ([`Holes::is_tail`]) that leaves
    /// or makes a hole of `gap`, longer than all that comes before the change: so it is the largest
    /// on every level.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[inline(never)]
    pub(super) unsafe fn settle_tail(&self, gap: usize) {
        for level in 1..self.height() {
            // SAFETY: the caller's promise.
            let (inner, slot) = unsafe { self.step(level) };
            inner.set_gap(slot, gap);
        }
    }

    /// Brings the gaps up to date after a change of the leaf, of which the largest is `gap` now.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[inline(always)]
    pub(super) unsafe fn settle_gap<S: Search>(&self, search: S, gap: usize) {
        if self.height() == 1 {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe {
            let (parent, slot) = self.step(1);
            // One in six changes the largest gap of the parent, which cannot be foretold, and to
            // find that takes less by vectors.
            if S::MEASURES && self.height() > 2 {
                let (above, place) = self.step(2);
                let before = above.gap(place);
                let largest = search.max_gap_with(parent, (1 << slot, gap), usize::MAX);
                parent.set_gap(slot, gap);
                let seldom = self.height() > 3 && {
                    let (top, at) = self.step(3);
                    largest.max(before) >= top.gap(at)
                };
                if seldom {
                    self.raise_gap(search, 2, largest);
                } else {
                    above.set_gap(place, largest);
                }
                return;
            }
            let largest = if self.height() > 2 {
                let (above, place) = self.step(2);
                above.gap(place)
            } else {
                usize::MAX
            };
            // Whether it has changed at all cannot be foretold; whether that matters further up,
            // nearly always.
            if gap.max(parent.gap(slot)) < largest {
                parent.set_gap(slot, gap);
            } else {
                self.raise_gap(search, 1, gap);
            }
        }
    }

    /// Brings the gaps from `level` upwards up to date after the child on the way got the gap
    /// `gap`.
    ///
    /// Stops where nothing changes: usually at once, or one level up. A node's gaps are searched
    /// only if the largest of them has become smaller, and no further than to another that is as
    /// large.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[inline(always)]
    pub(super) unsafe fn raise_gap<S: Search>(&self, search: S, level: usize, gap: usize) {
        // SAFETY: the caller's promise.
        let step = |level| unsafe { self.step(level) };
        let max_gap = |inner: &Inner, changed, limit| search.max_gap_with(inner, changed, limit);
        super::publish::raise_gap(level, self.height(), gap, step, max_gap);
    }
}
