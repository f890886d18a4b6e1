//! The back of an iterator: leaf after leaf towards the front, each unpacked when it is reached.
//!
//! As for the front, a step within a leaf is a few instructions, and a leaf costs one unpacking.

use super::front::open;
use crate::descent::{Descent, Pick};
use crate::node::{Link, Unpacked};

/// See the module.
pub(super) struct Back {
    pub(super) run: Unpacked,
    /// The descent to the leaf.
    path: Descent,
}

impl Back {
    /// Before the last leaf.
    #[inline(always)]
    pub(super) fn new() -> Self {
        Back { run: Unpacked::new(), path: Descent::new() }
    }

    /// Goes to the previous leaf, or to the one that holds `hi` if there was none yet. False if
    /// there is none that ends at or after `lo`. The leaf may have no entry to come.
    ///
    /// Cost: a search for the first leaf; then mostly two separators and a child of the same
    /// parent.
    ///
    /// # Safety
    /// As for [`Descent::walk`]; the root is not null.
    #[inline(never)]
    pub(super) unsafe fn turn(&mut self, root: Link, lo: usize, hi: usize) -> bool {
        if self.path.height() == 0 {
            let pick = if hi == usize::MAX { Pick::Last } else { Pick::Index(hi) };
            // SAFETY: the caller's promise.
            unsafe { self.path.walk(root, pick) };
        } else if self.path.step(0).min <= lo || self.path.prev_node().is_none() {
            return false;
        }
        // SAFETY: the path's invariant.
        unsafe { open(&mut self.run, self.path.step(0), 0) };
        true
    }

    /// Nothing is to come any more.
    pub(super) fn finish(&mut self) {
        self.run.clear();
    }
}
