//! The back end of an iterator: it visits leaf after leaf, towards the front, and unpacks each as a
//! whole.
//!
//! Cost: as for the front, a few instructions per entry, and one unpacking per leaf.

use super::front::open;
use crate::descent::{Descent, Pick};
use crate::node::{Link, Unpacked};

/// The back end of an iterator; see the module.
pub(super) struct Back {
    pub(super) run: Unpacked,
    /// The path to the leaf.
    path: Descent,
}

impl Back {
    /// A back end before its first leaf.
    #[inline(always)]
    pub(super) fn new() -> Self {
        Back { run: Unpacked::new(), path: Descent::new() }
    }

    /// Moves to the previous leaf, or to the leaf that holds `hi` if there was none yet. Returns
    /// false if no further leaf ends at or after `lo`. The leaf may have no entry to come.
    ///
    /// Cost: a descent for the first leaf; then mostly two separators and a child of the same
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
        // SAFETY: the invariant of the path.
        unsafe { open(&mut self.run, self.path.step(0), 0) };
        true
    }

    /// Drops all entries to come.
    pub(super) fn finish(&mut self) {
        self.run.clear();
    }
}
