//! The path of a write from the root to a leaf, with the minimum that a write within one leaf
//! needs.

use crate::Index;
use crate::layout::{INNER_SLOTS, MAX_HEIGHT};
use crate::node::{Inner, Leaf, Link, Search};
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
    #[cfg_attr(not(unoptimized), inline(always))]
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
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(in crate::write) unsafe fn walk<S: Search>(
        &mut self,
        search: S,
        root: Link,
        index: Index,
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
    #[cfg_attr(not(unoptimized), inline(always))]
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
    pub(in crate::write) unsafe fn min(&self, level: usize) -> Index {
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
    pub(in crate::write) unsafe fn max(&self, level: usize) -> Index {
        for level in level + 1..self.height() {
            // SAFETY: the caller's promise.
            let (inner, slot) = unsafe { self.step(level) };
            // SAFETY: as above.
            let seps = unsafe { inner.seps() };
            if slot + 1 < seps.len() {
                return seps.bounds[slot];
            }
        }
        Index::MAX
    }

    /// As [`WriteDescent::max`] of the leaf, without a branch on which child the leaf is, which
    /// would mispredict. Only the last child of a full node takes a branch.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(in crate::write) unsafe fn leaf_end(&self) -> Index {
        if self.height() == 1 {
            return Index::MAX;
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
    pub(in crate::write) unsafe fn end(&self, level: usize) -> Index {
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
            let neighbour = if after { slot + 1 } else { slot.wrapping_sub(1) };
            if neighbour < len {
                let mut link = inner.child(neighbour);
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
}
