//! Compares the search and the unpacking with the scalar ones.

use super::*;
use crate::Index;
use crate::node::leaf::{LeafSlot, word};
use crate::node::pack::{is_packable, pack};
use core::mem::MaybeUninit;
use std::vec::Vec;

/// The first indices of all slots but the first.
fn starts(search: impl Search, body: &Body) -> Vec<usize> {
    // SAFETY: it consists of memory that need not be initialised.
    let mut starts: Starts = unsafe { MaybeUninit::uninit().assume_init() };
    search.unpack(body, &mut starts);
    // SAFETY: these were written.
    (1..body.len()).map(|slot| unsafe { starts.get(slot) }).collect()
}

#[test]
fn neon_agrees_with_no_vectors() {
    let mut forms = [0, 0];
    for size in [10, 0x1000, 0x3000, (1 << 40) + 1, (1 << 58) + 1, Index::MAX / 30] {
        for len in 1..30usize {
            let end = |i: usize| match i + 1 == len {
                true => Some(Index::MAX),
                false => Some((i + 1).checked_mul(size)? - 1),
            };
            let slot = |i: usize| {
                let entry = if i % 3 == 1 { 0 } else { i + 1 };
                Some(LeafSlot { end: end(i)?, word: word(entry) })
            };
            let Some(slots) = (0..len).map(slot).collect::<Option<Vec<_>>>() else { continue };
            if !is_packable(&slots) {
                continue;
            }
            let body = pack(&slots);
            forms[usize::from(body.wide)] += 1;
            let mut seps = Seps::empty();
            for (bound, slot) in seps.bounds.iter_mut().zip(&slots[..len - 1]) {
                *bound = slot.end;
            }
            assert_eq!(starts(Neon, &body), starts(Scalar, &body), "{size:#x}, {len} slots");
            for index in slots.iter().flat_map(|slot| {
                [slot.end, slot.end.wrapping_add(1), slot.end - size.min(slot.end) / 2]
            }) {
                let found = (Neon.below(&body, index), Neon.word(&body, index));
                let expected = (Scalar.below(&body, index), Scalar.word(&body, index));
                assert_eq!(found, expected, "{size:#x}, {len} slots, {index:#x}");
                assert_eq!(Neon.inner(&seps, index), Scalar.inner(&seps, index), "{index:#x}");
            }
        }
    }
    assert!(forms.iter().all(|count| *count > 20), "{forms:?}");
}
