//! The sizes of nodes, and the limits of the tree.
//!
//! On a 64-bit machine a leaf has 256 bytes (four cache lines) and an inner node 384 bytes (six).
//! An inner node has up to 16 children.
//!
//! A leaf has 232 bytes for bounds and entries together. A bound takes four bytes, or eight in a
//! *wide* leaf, whose bounds do not fit 32 bits. An entry takes eight more. So a leaf holds 14
//! entries with holes between them, or 19 entries that touch.
//!
//! Under loom, in fuzzing, and with `--cfg samara_small_nodes` a leaf holds two or three entries
//! and an inner node four children, so a few entries produce every shape. With `--cfg
//! samara_wide_nodes` every leaf is wide.

use crate::node::{Inner, Leaf};
use core::alloc::Layout;

const SMALL: bool = cfg!(any(loom, fuzzing, samara_small_nodes));

/// Whether leaves are wide even if their bounds fit 32 bits.
pub(crate) const ALWAYS_WIDE: bool = cfg!(samara_wide_nodes);

/// The weight of slots in a leaf, and the capacity of a leaf. The bound of the last slot is not
/// stored, so the capacity includes one bound more than the memory does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scale {
    pub(crate) hole: usize,
    pub(crate) entry: usize,
    pub(crate) full: usize,
    /// Leaves are not joined if less than this would be free. Otherwise an entry that comes and
    /// goes would split and join them each time. Room for two entries with holes.
    pub(crate) slack: usize,
}

/// A leaf with bounds of 32 bits. The unit is four bytes.
pub(crate) const NARROW: Scale = Scale {
    hole: 1,
    entry: 3,
    full: if SMALL { 10 } else { 59 },
    slack: if SMALL { 0 } else { 8 },
};
/// A leaf with bounds of a word. The unit is eight bytes.
pub(crate) const WIDE: Scale =
    Scale { hole: 1, entry: 2, full: if SMALL { 6 } else { 30 }, slack: if SMALL { 0 } else { 6 } };
/// A leaf below this weight, on the narrow scale, is joined with a sibling at the next write to it,
/// if that leaves [slack](Scale::slack). Otherwise it gets a part of the sibling.
pub(crate) const LEAF_LOW: usize = if SMALL { 5 } else { 16 };
/// The weight that a split leaves for the leaf at the end of a sequential run of writes. The run
/// continues in that leaf.
pub(crate) const LEAF_TAIL: usize = 4;
/// Cells of eight bytes, for bounds and words.
pub(crate) const LEAF_CELLS: usize = 29;
/// The most slots that a leaf can have: holes and entries in turn.
pub(crate) const LEAF_SLOTS: usize = 2 * (LEAF_CELLS / 2) + 1;

/// Children of an inner node.
pub(crate) const INNER_SLOTS: usize = if SMALL { 4 } else { 16 };
/// The least number of children of an inner node that is not the root (the root has two).
pub(crate) const INNER_MIN: usize = if SMALL { 2 } else { 4 };

/// The most levels of a tree. With at least four children a node, 20 levels need more than 2^36
/// inner nodes: more than fits into memory. A write that would need more levels is refused.
pub(crate) const MAX_HEIGHT: usize = 20;

/// The most new nodes that one write needs on one level.
pub(crate) const MAX_PER_LEVEL: usize = 6;

/// A leaf's memory.
pub(crate) const LEAF_BLOCK: Layout = Layout::new::<Leaf>();
/// An inner node's memory.
pub(crate) const INNER_BLOCK: Layout = Layout::new::<Inner>();

// Parts of two inner nodes, and the new children between them, fit into at most three nodes.
const _: () = assert!(2 * (INNER_SLOTS - 1) + MAX_PER_LEVEL <= 3 * INNER_SLOTS);
// An even cut into two or three keeps every node at its minimum.
const _: () = assert!(INNER_SLOTS / 2 >= INNER_MIN && (2 * INNER_SLOTS + 1) / 3 >= INNER_MIN);
// A node below its minimum and a full sibling make at most two.
const _: () = assert!(INNER_MIN >= 2 && INNER_MIN - 1 + INNER_SLOTS <= 2 * INNER_SLOTS);
// The scales match the cells.
const _: () = assert!(4 * (NARROW.full - 1) <= 8 * LEAF_CELLS && WIDE.full - 1 <= LEAF_CELLS);
const _: () = assert!(LEAF_SLOTS < 32, "a mask of 32 bits needs a bit for each slot");
#[cfg(all(not(loom), target_pointer_width = "64"))]
const _: () = assert!(LEAF_BLOCK.size() == 256);
#[cfg(all(not(any(loom, fuzzing, samara_small_nodes)), target_pointer_width = "64"))]
const _: () = assert!(INNER_BLOCK.size() == 384);

impl Scale {
    /// The weight of `slots` slots, of which `entries` are entries.
    #[inline(always)]
    pub(crate) const fn weigh(&self, slots: usize, entries: usize) -> usize {
        self.hole * slots + (self.entry - self.hole) * entries
    }
}

/// Cuts `total` children into the sizes of one, two or three inner nodes.
///
/// `before` and `after` count the children on either side of the written range. A write at an end
/// cuts unevenly, so that a sequential run of writes leaves full nodes behind it.
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
