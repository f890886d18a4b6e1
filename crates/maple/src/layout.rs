//! The sizes of the tree, in one place.
//!
//! On a 64-bit machine a leaf is 256 bytes (four cache lines) and an inner node 384 (six). What a
//! leaf holds depends on what is in it: a bound costs four bytes (eight in a *wide* leaf, whose
//! bounds do not fit 32 bits), an entry eight more, and 232 bytes are there for both. That is 14
//! entries with holes between them, or 19 that touch. An inner node has up to 16 children.
//!
//! Under loom, in fuzzing, and with `--cfg samara_small_nodes` a leaf holds two or three entries
//! and an inner node four children, so that few entries make every shape. With `--cfg
//! samara_wide_nodes` every leaf is wide.

use crate::node::{Inner, Leaf};
use core::alloc::Layout;

const SMALL: bool = cfg!(any(loom, fuzzing, samara_small_nodes));

/// Whether leaves are wide even where their bounds would fit 32 bits.
pub(crate) const ALWAYS_WIDE: bool = cfg!(samara_wide_nodes);

/// What slots weigh in a leaf, and how much it carries. The bound of its last slot is not stored,
/// so one bound is for free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scale {
    pub(crate) hole: usize,
    pub(crate) entry: usize,
    pub(crate) full: usize,
}

/// A leaf with bounds of 32 bits, in units of four bytes.
pub(crate) const NARROW: Scale = Scale { hole: 1, entry: 3, full: if SMALL { 10 } else { 59 } };
/// A leaf with bounds of a word, in units of eight bytes.
pub(crate) const WIDE: Scale = Scale { hole: 1, entry: 2, full: if SMALL { 6 } else { 30 } };
/// A leaf that weighs less, on the narrow scale, is joined with a sibling when it is next written
/// to.
pub(crate) const LEAF_LOW: usize = if SMALL { 5 } else { 16 };
/// What a run of writes in one direction leaves for the leaf that takes the next of them.
pub(crate) const LEAF_TAIL: usize = 4;
/// Cells of eight bytes for bounds and words.
pub(crate) const LEAF_CELLS: usize = 29;
/// Slots that a leaf can have at the most: holes and entries in turn.
pub(crate) const LEAF_SLOTS: usize = 2 * (LEAF_CELLS / 2) + 1;

/// Children of an inner node.
pub(crate) const INNER_SLOTS: usize = if SMALL { 4 } else { 16 };
/// The least number of children of an inner node that is not the root (the root has two).
pub(crate) const INNER_MIN: usize = if SMALL { 2 } else { 4 };

/// Levels a tree may have. With at least four children a node, 20 levels need more than 2^36 inner
/// nodes: more memory than there is. A write that would go beyond is refused.
pub(crate) const MAX_HEIGHT: usize = 20;

/// New nodes that one level of one write may need.
pub(crate) const MAX_PER_LEVEL: usize = 6;

/// A leaf's memory.
pub(crate) const LEAF_BLOCK: Layout = Layout::new::<Leaf>();
/// An inner node's memory.
pub(crate) const INNER_BLOCK: Layout = Layout::new::<Inner>();

// Two inner nodes in part, and what comes between, are cut in at most three.
const _: () = assert!(2 * (INNER_SLOTS - 1) + MAX_PER_LEVEL <= 3 * INNER_SLOTS);
// An even cut in two or in three keeps every node at its minimum.
const _: () = assert!(INNER_SLOTS / 2 >= INNER_MIN && (2 * INNER_SLOTS + 1) / 3 >= INNER_MIN);
// A node below its minimum and a full sibling make at most two.
const _: () = assert!(INNER_MIN >= 2 && INNER_MIN - 1 + INNER_SLOTS <= 2 * INNER_SLOTS);
// The scales say what fits into the cells.
const _: () = assert!(4 * (NARROW.full - 1) <= 8 * LEAF_CELLS && WIDE.full - 1 <= LEAF_CELLS);
const _: () = assert!(LEAF_SLOTS < 32, "a slot is a bit of 32");
#[cfg(all(not(loom), target_pointer_width = "64"))]
const _: () = assert!(LEAF_BLOCK.size() == 256);
#[cfg(all(not(any(loom, fuzzing, samara_small_nodes)), target_pointer_width = "64"))]
const _: () = assert!(INNER_BLOCK.size() == 384);

impl Scale {
    /// The weight of some slots, of which so many are entries.
    #[inline(always)]
    pub(crate) const fn weigh(&self, slots: usize, entries: usize) -> usize {
        self.hole * slots + (self.entry - self.hole) * entries
    }
}

/// Cuts `total` children into the sizes of one, two or three inner nodes.
///
/// `before` and `after` count the children on either side of what was written. A write at an end
/// cuts unevenly, so that a run of writes in one direction leaves full nodes behind it.
pub(crate) fn cut(total: usize, before: usize, after: usize) -> ([u8; MAX_PER_LEVEL], usize) {
    const SLOTS: usize = INNER_SLOTS;
    const MIN: usize = INNER_MIN;
    let (sizes, count) = match total.div_ceil(SLOTS) {
        0 | 1 => ([total, 0, 0], 1),
        2 => {
            let first = if after <= 1 {
                SLOTS.min(total - MIN)
            } else if before <= 1 {
                MIN.max(total - SLOTS)
            } else {
                total / 2
            };
            ([first, total - first, 0], 2)
        }
        _ => {
            let (first, second) = (total / 3, (total - total / 3) / 2);
            ([first, second, total - first - second], 3)
        }
    };
    (core::array::from_fn(|i| if i < 3 { sizes[i] as u8 } else { 0 }), count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "long, and plain arithmetic")]
    fn every_cut_keeps_the_bounds() {
        for total in 1..=3 * INNER_SLOTS {
            for before in 0..total {
                for after in 0..total - before {
                    let (sizes, n) = cut(total, before, after);
                    assert_eq!(sizes.iter().map(|&size| usize::from(size)).sum::<usize>(), total);
                    assert!(sizes[n..].iter().all(|&size| size == 0));
                    for &size in &sizes[..n] {
                        let size = usize::from(size);
                        assert!(size <= INNER_SLOTS && (n == 1 || size >= INNER_MIN), "{total}");
                    }
                }
            }
        }
    }
}
