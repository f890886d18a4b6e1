//! All kinds of vectors against none.

use super::*;
use crate::node::leaf::{Slot, word};
use crate::node::pack::{is_packable, pack};
use crate::node::search::{inner_scalar, leaf_scalar};
use crate::node::unpack::Unpacked;
use std::vec::Vec;

/// What a job finds in a leaf, or an inner node, for some indices.
struct Look<'a>(&'a Body, &'a Seps, &'a [usize], usize);

impl Job for Look<'_> {
    type Out = (Vec<(usize, usize)>, Vec<(usize, usize, *mut ())>);

    #[inline(always)]
    fn run<S: Search>(self, search: S) -> Self::Out {
        let Look(body, seps, indices, from) = self;
        let slots =
            indices.iter().map(|&i| (search.leaf(body, i), search.inner(seps, i))).collect();
        let mut run = Unpacked::new();
        // SAFETY: the leaf is here.
        unsafe { run.open(search, body, from, (3, usize::MAX)) };
        (
            slots,
            run.fold(Vec::new(), |mut all, entry| {
                all.push(entry);
                all
            }),
        )
    }
}

/// Each kind that this processor has, and not only the one that is chosen.
#[test]
fn all_vectors_agree_with_none() {
    let mut found = Vec::new();
    if let Some(best) = Vectors::get() {
        found.push(best);
        // A processor that has the larger ones has the smaller ones.
        found.push(Vectors::Avx2);
    }
    for (size, holes) in [10, 0x1000, 0x3000, (1 << 40) + 1, (1 << 58) + 1]
        .into_iter()
        .flat_map(|s| [(s, 2), (s, 3), (s, 99)])
    {
        for len in 1..30usize {
            let Some(slots) = (0..len)
                .map(|i| {
                    let end =
                        if i + 1 == len { usize::MAX } else { (i + 1).checked_mul(size)? - 1 };
                    Some(Slot { end, word: word(if i % holes == 1 { 0 } else { i + 1 }) })
                })
                .collect::<Option<Vec<_>>>()
            else {
                continue;
            };
            if !is_packable(&slots) {
                continue;
            }
            let body = pack(&slots);
            let mut seps = Seps::empty();
            for (bound, slot) in seps.bounds.iter_mut().zip(&slots[..len - 1]) {
                *bound = slot.end;
            }
            let indices: Vec<usize> = (0..len)
                .flat_map(|i| [i * size, i * size + size / 2, i * size + (size - 1)])
                .chain([usize::MAX])
                .collect();
            for from in 0..len {
                let mut start = 3;
                let mut entries = Vec::new();
                for (i, slot) in slots.iter().enumerate() {
                    if i >= from && !slot.word.is_null() {
                        entries.push((start, slot.end, slot.word));
                    }
                    start = slot.end.wrapping_add(1);
                }
                let places: Vec<_> = indices
                    .iter()
                    .map(|&i| (leaf_scalar(&body, i), inner_scalar(&seps, i)))
                    .collect();
                for &vectors in &found {
                    let (places_found, entries_found) =
                        vectors.run(Look(&body, &seps, &indices, from));
                    assert_eq!(places_found, places, "{size:#x}, {len} slots");
                    assert_eq!(entries_found, entries, "{size:#x}, {len} slots");
                }
            }
        }
    }
}
