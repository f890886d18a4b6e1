//! The search within a node.
//!
//! All count how many bounds lie below an index. They have no branch that depends on the data, so there is
//! nothing to mispredict: a count by vectors where there are some (`super::simd`), else a binary search of as many
//! steps each time in leaves, and two short counts in inner nodes.

use super::inner::Seps;
use super::leaf::Body;
use super::load::Search;
use super::simd::Vectors;
use crate::layout::{INNER_SLOTS, LEAF_CELLS};

/// The slot of a leaf that holds `index`.
#[cfg(test)]
pub(super) fn leaf(body: &Body, index: usize) -> usize {
    if let Some(vectors) = Vectors::get() {
        return vectors.leaf(body, index);
    }
    leaf_scalar(body, index)
}

/// The child of an inner node that holds `index`.
#[inline(always)]
pub(super) fn inner(seps: &Seps, index: usize) -> usize {
    if let Some(vectors) = Vectors::get() {
        return vectors.inner(seps, index);
    }
    inner_scalar(seps, index)
}

/// Cost: one or two cache lines, five loads in a row, no branch but for the leaf's form.
#[inline(always)]
pub(super) fn leaf_scalar(body: &Body, index: usize) -> usize {
    let n = body.len() - 1;
    if body.wide {
        // SAFETY: inside the room.
        lower(n, |i| unsafe { *body.words_wide().add(i.min(LEAF_CELLS - 1)) } < index)
    } else {
        let units = body.units(index);
        // SAFETY: as above.
        lower(n, |i| unsafe { *body.narrow().add(i) } < units)
    }
}

/// How many of `n` ascending things, at most 31, are below, by halves. As many steps whatever `n` is, and none
/// that is a branch: how far a search goes cannot be foretold. Also asks for things beyond `n`, up to the 31st.
#[inline(always)]
fn lower(n: usize, below: impl Fn(usize) -> bool) -> usize {
    const { assert!(2 * LEAF_CELLS > 31) }
    let mut at = 0;
    for step in [16, 8, 4, 2, 1] {
        let next = at + step;
        at += step * usize::from((next <= n) & below(next - 1));
    }
    at
}

/// Two short counts instead of one long one: the last separators of all groups but the last tell which
/// group, then its own are counted. For 15 separators that is seven comparisons, each with an `adc`.
///
/// Cost: one or two cache lines, two loads in a row.
#[inline(always)]
pub(super) fn inner_scalar(seps: &Seps, index: usize) -> usize {
    const GROUP: usize = 3;
    const N: usize = INNER_SLOTS - 1;
    const { assert!(N.is_multiple_of(GROUP), "groups of equal size") }
    let mut group = 0;
    for before in seps.bounds[..N - GROUP].chunks_exact(GROUP) {
        group += usize::from(before[GROUP - 1] < index);
    }
    let first = group * GROUP;
    let mut rank = first;
    for &bound in &seps.bounds[first..first + GROUP] {
        rank += usize::from(bound < index);
    }
    rank
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::leaf::{Slot, word};
    use crate::node::pack::{is_packable, pack};
    use std::vec::Vec;

    #[test]
    #[cfg_attr(miri, ignore = "long, and plain arithmetic")]
    fn children_at_every_fill() {
        for len in 1..=INNER_SLOTS {
            let mut seps = Seps::empty();
            for i in 0..len - 1 {
                seps.bounds[i] = 10 * i + 3;
            }
            seps.len = len as u8;
            for index in (0..10 * len + 2).chain([usize::MAX]) {
                let smaller = seps.bounds[..len - 1].iter().filter(|&&bound| bound < index).count();
                assert_eq!(inner_scalar(&seps, index), smaller, "{index} of {len}");
                assert_eq!(inner(&seps, index), smaller, "{index} of {len}");
            }
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "long, and plain arithmetic")]
    fn slots_at_every_fill() {
        for size in [10, 0x1000, (1 << 58) + 1] {
            for len in 1..if size > 1 << 50 { 16 } else { 30 } {
                let slots = (0..len).map(|i| Slot {
                    end: if i + 1 == len { usize::MAX } else { (i + 1) * size - 1 },
                    word: word(if i % 2 == 0 { i + 1 } else { 0 }),
                });
                let slots = slots.collect::<Vec<_>>();
                if !is_packable(&slots) {
                    continue;
                }
                let body = pack(&slots);
                for index in (0..len).flat_map(|i| [i * size, i * size + size - 1, i * size + 1]) {
                    let smaller = slots[..len - 1].iter().filter(|slot| slot.end < index).count();
                    assert_eq!(leaf_scalar(&body, index), smaller, "{index:#x} of {len}");
                    assert_eq!(leaf(&body, index), smaller, "{index:#x} of {len}");
                }
                assert_eq!(
                    (leaf(&body, usize::MAX), leaf_scalar(&body, usize::MAX)),
                    (len - 1, len - 1)
                );
            }
        }
    }
}
