//! The sizes of the tree, in one place.
//!
//! A node is 256 bytes (four cache lines) on a 64-bit machine: a leaf holds 16 slots (15 stored
//! bounds, a count, 16 words), an inner node 10 children (9 separators, a count, 10 pointers, 10
//! gaps). Under loom and with the feature `small-nodes` a node holds four, so that few entries make
//! every shape.

use crate::node::{Inner, Leaf};
use core::alloc::Layout;

const SMALL: bool = cfg!(any(loom, feature = "small-nodes"));

/// Slots of a leaf, entries and holes together.
pub(crate) const LEAF_SLOTS: usize = if SMALL { 4 } else { 16 };
/// The least number of slots of a leaf that is not the root.
pub(crate) const LEAF_MIN: usize = if SMALL { 2 } else { 4 };
/// Children of an inner node.
pub(crate) const INNER_SLOTS: usize = if SMALL { 4 } else { 10 };
/// The least number of children of an inner node that is not the root (the root has two).
pub(crate) const INNER_MIN: usize = if SMALL { 2 } else { 4 };

/// Levels a tree may have. With at least four children a node, 24 levels need more than 2^44 nodes
/// of 2^8 bytes: more memory than x86-64 can address. A write that would go beyond is refused.
pub(crate) const MAX_HEIGHT: usize = 24;

/// New nodes that one level of one write may need.
pub(crate) const MAX_PER_LEVEL: usize = 3;

/// Every node is a block of this form.
pub(crate) const BLOCK: Layout = {
    let leaf = Layout::new::<Leaf>();
    let inner = Layout::new::<Inner>();
    let size = if leaf.size() > inner.size() { leaf.size() } else { inner.size() };
    assert!(leaf.align() == 64 && inner.align() == 64);
    match Layout::from_size_align(size, 64) {
        Ok(layout) => layout,
        Err(_) => panic!("a node's size fits"),
    }
};

const fn check(slots: usize, min: usize) {
    // Two leaves (or inner nodes) in part, and the three slots (or nodes) between: cut in at most three.
    assert!(2 * (slots - 1) + 3 <= MAX_PER_LEVEL * slots);
    // An even cut in two or in three keeps every node at its minimum.
    assert!(slots.div_ceil(2) >= min && (2 * slots + 1) / 3 >= min);
    // A node below its minimum and a full sibling make at most two.
    assert!(min >= 2 && min - 1 + slots <= 2 * slots);
}

const _: () = check(LEAF_SLOTS, LEAF_MIN);
const _: () = check(INNER_SLOTS, INNER_MIN);
#[cfg(all(not(loom), not(feature = "small-nodes"), target_pointer_width = "64"))]
const _: () = assert!(BLOCK.size() == 256);

/// Cuts `total` slots into the sizes of one, two or three nodes.
///
/// `before` and `after` count the slots on either side of what was written. A write at an end cuts
/// unevenly, so that a run of writes in one direction leaves full nodes behind it.
pub(crate) fn cut(
    total: usize,
    before: usize,
    after: usize,
    slots: usize,
    min: usize,
) -> ([usize; MAX_PER_LEVEL], usize) {
    match total.div_ceil(slots) {
        0 | 1 => ([total, 0, 0], 1),
        2 => {
            let first = if after <= 1 {
                slots.min(total - min)
            } else if before <= 1 {
                min.max(total - slots)
            } else {
                total / 2
            };
            ([first, total - first, 0], 2)
        }
        _ => {
            let (first, second) = (total / 3, (total - total / 3) / 2);
            ([first, second, total - first - second], 3)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "long, and plain arithmetic")]
    fn every_cut_keeps_the_bounds() {
        for (slots, min) in [(LEAF_SLOTS, LEAF_MIN), (INNER_SLOTS, INNER_MIN), (16, 6), (10, 4)] {
            for total in 1..=2 * slots + 1 {
                for before in 0..total {
                    for after in 0..total - before {
                        let (sizes, n) = cut(total, before, after, slots, min);
                        assert_eq!(sizes.iter().sum::<usize>(), total);
                        assert!(sizes[n..].iter().all(|&size| size == 0));
                        for &size in &sizes[..n] {
                            assert!(size <= slots && (n == 1 || size >= min), "{total} {sizes:?}");
                        }
                    }
                }
            }
        }
    }
}
