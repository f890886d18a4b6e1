//! The path of a write from the root to a leaf, with the minimum that a write within one leaf
//! needs.

use crate::layout::{INNER_SLOTS, MAX_HEIGHT};
use crate::node::{Body, Inner, Leaf, Link, Search};
use crate::write::leaf::quick::Holes;
use core::hint;
use core::mem::MaybeUninit;

/// The nodes from the root to a leaf, and the slot taken in each.
///
/// The ranges of the nodes are not computed: most writes need at most one bound of the leaf.
///
/// It is a local variable without cells, so the compiler keeps its values in registers. The path of
/// the writer's last write is kept separately ([`crate::write::leaf::finger`]).
pub(crate) struct WriteDescent {
    height: usize,
    leaf: Link,
    /// The inner nodes of levels 1 to `height - 1`.
    steps: [MaybeUninit<(Link, usize)>; MAX_HEIGHT],
}

impl WriteDescent {
    /// An empty path.
    #[inline(always)]
    pub(in crate::write) const fn new() -> WriteDescent {
        // Not as one expression: the compiler would copy it from a constant.
        let mut descent = MaybeUninit::<WriteDescent>::uninit();
        let place = descent.as_mut_ptr();
        // SAFETY: the steps need not be initialised.
        unsafe {
            (&raw mut (*place).height).write(0);
            (&raw mut (*place).leaf).write(Link::NULL);
            descent.assume_init()
        }
    }

    /// Whether both are the same path.
    pub(in crate::write) fn is_same(&self, other: &WriteDescent) -> bool {
        // SAFETY: `walk` or `follow` has written these levels of both.
        let step =
            |descent: &WriteDescent, level: usize| unsafe { descent.steps[level].assume_init() };
        self.height() == other.height()
            && self.leaf() == other.leaf()
            && (1..self.height()).all(|level| step(self, level) == step(other, level))
    }

    /// Copies another path.
    #[inline(always)]
    pub(in crate::write) fn follow(&mut self, other: &WriteDescent) {
        let height = other.height();
        (self.height, self.leaf) = (height, other.leaf);
        for level in 1..height {
            self.steps[level] = other.steps[level];
        }
    }

    /// The number of levels of the tree.
    #[inline(always)]
    pub(in crate::write) fn height(&self) -> usize {
        // SAFETY: `walk` sets it to the height of a tree, and `follow` copies it. No tree is
        // higher.
        unsafe { hint::assert_unchecked(self.height <= MAX_HEIGHT) }
        self.height
    }

    #[inline(always)]
    pub(in crate::write) fn leaf(&self) -> Link {
        self.leaf
    }

    /// Sets the leaf at the end of the path.
    #[inline(always)]
    pub(in crate::write) fn set_leaf(&mut self, leaf: Link) {
        self.leaf = leaf;
    }

    /// Descends. If `check`, returns whether a node on the path is shared with another tree. The
    /// check goes from the top down: see [`crate::node`], `refs`.
    ///
    /// # Safety
    /// As for [`crate::descent::Descent::walk`]; the root is not null.
    #[inline(always)]
    pub(in crate::write) unsafe fn walk<S: Search>(
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
        // The whole leaf will be read, the header first.
        link.prefetch();
        self.leaf = link;
        // SAFETY: as above.
        shared | (check && unsafe { link.as_leaf() }.refs.shared())
    }

    /// The inner node at a level, and the slot taken in it.
    ///
    /// # Safety
    /// The promise of [`WriteDescent::walk`] still holds, and there is an inner node at this level.
    #[inline(always)]
    pub(in crate::write) unsafe fn step<'n>(&self, level: usize) -> (&'n Inner, usize) {
        debug_assert!(0 < level && level < self.height());
        // SAFETY: the caller's promise; `walk` or `follow` has written these levels, and a slot is
        // less than the number of slots.
        unsafe {
            let (link, slot) = self.steps[level].assume_init();
            hint::assert_unchecked(slot < INNER_SLOTS);
            (link.as_inner(), slot)
        }
    }

    /// # Safety
    /// As for [`WriteDescent::step`].
    #[inline(always)]
    pub(in crate::write) unsafe fn link(&self, level: usize) -> Link {
        // SAFETY: the caller's promise.
        unsafe { self.steps[level].assume_init() }.0
    }

    /// The first index of the node at a level; level 0 is the leaf.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[inline(never)]
    pub(in crate::write) unsafe fn min(&self, level: usize) -> usize {
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

    /// The last index of the node at a level; level 0 is the leaf.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[inline(never)]
    pub(in crate::write) unsafe fn max(&self, level: usize) -> usize {
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

    /// As [`WriteDescent::max`] of the leaf, without a branch on which child the leaf is, which
    /// would mispredict. Only the last child of a full node takes a branch.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[inline(always)]
    pub(in crate::write) unsafe fn leaf_end(&self) -> usize {
        if self.height() == 1 {
            return usize::MAX;
        }
        // SAFETY: the caller's promise. The bound of the last child, where it is stored, is the end
        // of the node.
        unsafe {
            let (parent, slot) = self.step(1);
            if slot + 1 < INNER_SLOTS { parent.seps().bounds[slot] } else { self.max(1) }
        }
    }

    /// The last index of an inner node. One load, unless the node is full.
    ///
    /// # Safety
    /// As for [`WriteDescent::step`].
    #[inline(always)]
    pub(in crate::write) unsafe fn end(&self, level: usize) -> usize {
        // SAFETY: the caller's promise. As in `leaf_end`.
        unsafe {
            let seps = self.step(level).0.seps();
            if seps.len() < INNER_SLOTS { seps.bounds[seps.len() - 1] } else { self.max(level) }
        }
    }

    /// The leaf after the one on the path (or before it), if there is one.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[inline(never)]
    pub(in crate::write) unsafe fn neighbour<'n>(&self, after: bool) -> Option<&'n Leaf> {
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

    /// The largest gap of the leaf's parent after a change of some of its children: bit `i` for
    /// child `i`. Their largest gap is then `gap`. For a root the result is not used.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`]; the parent has not changed yet.
    #[inline(always)]
    pub(in crate::write) unsafe fn parent_gap_after<S: Search>(
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

    /// Updates the gaps above the leaf's parent, whose largest gap is now `gap`.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[inline(always)]
    pub(in crate::write) unsafe fn settle_parent_gap<S: Search>(&self, search: S, gap: usize) {
        if self.height() > 2 {
            // SAFETY: the caller's promise.
            unsafe { self.raise_gap(search, 2, gap) }
        }
    }

    /// The largest gap of the leaf on the path after a change, computed before the change: then the
    /// old leaf can be loaded without waiting for pending stores. For a root the result is not
    /// used.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`]; the leaf has not changed yet.
    #[inline(always)]
    pub(in crate::write) unsafe fn gap_after<S: Search>(
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
            // The hole at the very end is longer than everything before it, so no other is
            // measured.
            if holes.is_tail() {
                return after;
            }
            if !(S::MEASURES && measure) && before != gap {
                return gap.max(after);
            }
            let others = body.holes() & !gone;
            // The ends of the leaf matter only for holes at its ends.
            let min = if others & 1 != 0 { self.min(0) } else { 0 };
            let max = if S::MEASURES || others >> (body.len() - 1) != 0 {
                self.leaf_end()
            } else {
                usize::MAX
            };
            search.gap(body, others, (min, max), gap).max(after)
        }
    }

    /// Whether a change certainly keeps the largest gap of the leaf: the hole that it removes is
    /// shorter, and the hole that it makes is not longer. May return false although the gap stays.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[inline(always)]
    pub(in crate::write) unsafe fn is_gap_safe(&self, holes: Holes) -> bool {
        if self.height() == 1 {
            return true;
        }
        // SAFETY: the caller's promise.
        let (parent, slot) = unsafe { self.step(1) };
        let gap = parent.gap(slot);
        holes.after <= gap && (holes.gone == 0 || holes.before < gap)
    }

    /// Updates the gaps after a change of the last leaf ([`Holes::is_tail`]) that leaves or makes a
    /// hole of `gap` indices, longer than everything before the change. So that hole is the largest
    /// on every level.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[inline(never)]
    pub(in crate::write) unsafe fn settle_tail(&self, gap: usize) {
        for level in 1..self.height() {
            // SAFETY: the caller's promise.
            let (inner, slot) = unsafe { self.step(level) };
            inner.set_gap(slot, gap);
        }
    }

    /// Updates the gaps after a change of the leaf, whose largest gap is now `gap`.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[inline(always)]
    pub(in crate::write) unsafe fn settle_gap<S: Search>(&self, search: S, gap: usize) {
        if self.height() == 1 {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe {
            let (parent, slot) = self.step(1);
            // One write in six changes the largest gap of the parent. A branch on that mispredicts,
            // and SIMD computes the gap in less time.
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
            // Whether the leaf's gap changed is unpredictable. Whether that matters further up is
            // predictable: it rarely does.
            if gap.max(parent.gap(slot)) < largest {
                parent.set_gap(slot, gap);
            } else {
                self.raise_gap(search, 1, gap);
            }
        }
    }

    /// Updates the gaps from `level` upwards, after the gap of the child on the path became `gap`.
    ///
    /// Stops where nothing changes: usually at once, or one level up. The gaps of a node are
    /// searched only if the largest of them became smaller, and only until another gap is as large.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[inline(always)]
    pub(in crate::write) unsafe fn raise_gap<S: Search>(
        &self,
        search: S,
        level: usize,
        gap: usize,
    ) {
        // SAFETY: the caller's promise.
        let step = |level| unsafe { self.step(level) };
        let max_gap = |inner: &Inner, changed, limit| search.max_gap_with(inner, changed, limit);
        crate::write::plan::publish::raise_gap(level, self.height(), gap, step, max_gap);
    }
}
