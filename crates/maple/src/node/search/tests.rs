//! The scalar searches at every fill of a node.

use super::*;
use crate::Index;
use crate::node::leaf::{LeafSlot, word};
use crate::node::pack::{is_packable, pack};
use crate::node::{Job, Search, run};
use std::vec::Vec;

struct Child<'s>(&'s Seps, Index);

impl Job for Child<'_> {
    type Out = usize;

    fn run<S: Search>(self, search: S) -> usize {
        search.inner(self.0, self.1)
    }
}

struct InLeaf<'b>(&'b Body, Index);

impl Job for InLeaf<'_> {
    type Out = usize;

    fn run<S: Search>(self, search: S) -> usize {
        search.leaf(self.0, self.1)
    }
}

struct Soon<'s>(&'s Seps, Index);

impl Job for Soon<'_> {
    type Out = usize;

    fn run<S: Search>(self, search: S) -> usize {
        search.inner_soon(self.0, self.1)
    }
}

#[test]
#[cfg_attr(miri, ignore = "long, and plain arithmetic")]
fn children_at_every_fill() {
    for len in 1..=INNER_SLOTS {
        let mut seps = Seps::empty();
        for i in 0..len - 1 {
            seps.bounds[i] = 10 * i as Index + 3;
        }
        seps.len = len as u8;
        for index in (0..10 * len as Index + 2).chain([Index::MAX]) {
            let smaller = seps.bounds[..len - 1].iter().filter(|&&bound| bound < index).count();
            assert_eq!(inner_scalar(&seps, index), smaller, "{index} of {len}");
            assert_eq!(run(Child(&seps, index)), smaller, "{index} of {len}");
            assert_eq!(run(Soon(&seps, index)), smaller, "{index} of {len}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "long, and plain arithmetic")]
fn slots_at_every_fill() {
    for size in [10, 0x1000, (1 << 58) + 1] {
        for len in 1..if size > 1 << 50 { 16 } else { 30 } {
            let slots = (0..len).map(|i| LeafSlot {
                end: if i + 1 == len { Index::MAX } else { (i as Index + 1) * size - 1 },
                word: word(if i % 2 == 0 { i + 1 } else { 0 }),
            });
            let slots = slots.collect::<Vec<_>>();
            if !is_packable(&slots) {
                continue;
            }
            let body = pack(&slots);
            for index in
                (0..len as Index).flat_map(|i| [i * size, i * size + size - 1, i * size + 1])
            {
                let smaller = slots[..len - 1].iter().filter(|slot| slot.end < index).count();
                assert_eq!(leaf_scalar(&body, index), smaller, "{index:#x} of {len}");
                assert_eq!(run(InLeaf(&body, index)), smaller, "{index:#x} of {len}");
            }
            assert_eq!(
                (run(InLeaf(&body, Index::MAX)), leaf_scalar(&body, Index::MAX)),
                (len - 1, len - 1)
            );
        }
    }
}
