//! The narrow form that a leaf gets, and packed leaves.

use super::*;
use crate::Index;
use crate::node::leaf::word;
use std::vec::Vec;

fn check(slots: &[LeafSlot], min: Index) {
    let body = pack(slots);
    let max = slots[slots.len() - 1].end;
    assert_eq!(body.len(), slots.len());
    let mut start = min;
    for (i, slot) in slots.iter().enumerate() {
        assert_eq!((body.start(i, min), body.slot(i, max)), (start, *slot));
        for index in [start, start + (slot.end - start) / 2, slot.end] {
            assert_eq!(crate::node::search::leaf_scalar(&body, index), i, "{index:#x}");
        }
        start = slot.end.wrapping_add(1);
    }
}

/// `n` ranges of `size`, one after the other. Every other one is a hole unless `touching`.
fn run(n: usize, from: Index, size: Index, touching: bool) -> Vec<LeafSlot> {
    let mut slots = Vec::new();
    for i in 0..n {
        let end = from + (i as Index + 1) * size - 1;
        let hole = !touching && i % 2 == 0;
        slots.push(LeafSlot { end, word: word(if hole { 0 } else { i + 1 }) });
    }
    slots
}

#[test]
fn every_form_reads_back() {
    for size in [1, 3, 0x1000, 0x20_0000, 1 << 34, (1 << 40) + 1, 1 << 57] {
        for touching in [false, true] {
            let scale = if narrow(&run(9, 0, size, touching)).is_some() { NARROW } else { WIDE };
            for n in (1..LEAF_SLOTS).step_by(if cfg!(miri) { 7 } else { 1 }) {
                let slots = run(n, 0, size, touching);
                if weight(&slots, scale) <= scale.full
                    && (n as Index - 1).checked_mul(size).is_some()
                {
                    check(&slots, 0);
                }
            }
        }
    }
}

#[test]
fn bounds_far_up_and_at_the_end() {
    let mut slots = run(5, 0x7fff_0000_0000, 0x1000, false);
    check(&slots, 0x7000_0000_0000);
    slots.push(LeafSlot { end: Index::MAX, word: word(0) });
    assert_eq!(narrow(&slots).is_none(), ALWAYS_WIDE);
    check(&slots, 0);
    let top = [
        LeafSlot { end: Index::MAX - 0x2000, word: word(0) },
        LeafSlot { end: Index::MAX - 0x1000, word: word(1) },
        LeafSlot { end: Index::MAX, word: word(2) },
    ];
    check(&top, 0);
    check(&[LeafSlot { end: 0, word: word(1) }, LeafSlot { end: Index::MAX, word: word(0) }], 0);
    check(&[LeafSlot { end: Index::MAX, word: word(1) }], 0);
    // Two regions of pages with a huge hole between them do not fit the narrow form.
    let mut far = run(3, 0, 0x1000, true);
    far.push(LeafSlot { end: 0x7fff_ffff_efff, word: word(0) });
    far.push(LeafSlot { end: 0x7fff_ffff_ffff, word: word(7) });
    far.push(LeafSlot { end: Index::MAX, word: word(0) });
    assert!(narrow(&far).is_none());
    check(&far, 0);
}

#[test]
fn the_limits_of_the_packed_form() {
    let body = pack(&run(6, 0x40_0000, 0x1000, true));
    assert!(body.takes(0x40_2fff) && body.takes(0x3f_ffff) && body.takes(0x1_0000_0fff));
    assert!(body.wide || (!body.takes(0x40_2ffe) && !body.takes(Index::MAX)));
    assert!(body.wide || !body.takes(1 << 60));
}

#[test]
#[cfg_attr(miri, ignore = "long, and plain arithmetic")]
fn every_cut_fits() {
    for size in [0x1000, (1 << 50) + 1] {
        for touching in [false, true] {
            for n in 2..(2 * LEAF_SLOTS + 3).min(MOST) {
                if (n as u128 * size as u128) >> 64 != 0 {
                    continue;
                }
                let slots = run(n, 0, size, touching);
                if weight(&slots, NARROW) > 2 * NARROW.full + 7 {
                    continue;
                }
                for (before, after) in [(0, n - 1), (n - 1, 0), (n / 2, n - 1 - n / 2)] {
                    let (sizes, count) = cut(&slots, before, after, false);
                    let mut rest = &slots[..];
                    for &size in &sizes[..count] {
                        let (part, more) = rest.split_at(usize::from(size));
                        assert!(part.iter().any(|slot| !slot.word.is_null()));
                        let body = pack(part);
                        assert!(weight(part, body.scale()) <= body.scale().full);
                        rest = more;
                    }
                    assert!(rest.is_empty());
                }
            }
        }
    }
}
