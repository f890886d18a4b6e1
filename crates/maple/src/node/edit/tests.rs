//! Edits, as they change slots.

use super::*;
use crate::Index;
use crate::node::leaf::{LeafSlot, word};
use crate::node::pack::{is_packable, pack};
use core::ptr;
use std::vec::Vec;

const MAX: Index = 0xffff_ffff;
const UNIT: Index = 0x1000;

fn slots(body: &Body, max: Index) -> Vec<LeafSlot> {
    (0..body.len()).map(|slot| body.slot(slot, max)).collect()
}

/// Leaves of `n` slots, with many patterns of holes.
fn leaves(n: usize) -> impl Iterator<Item = Vec<LeafSlot>> {
    (0..if cfg!(miri) { 3 } else { 1usize << n.min(6) }).filter_map(move |pattern| {
        let mut slots = Vec::<LeafSlot>::new();
        for i in 0..n {
            let may = slots.last().is_none_or(|slot| !slot.word.is_null());
            let hole = pattern >> (i % 6) & 1 == 1 && may;
            let end = if i + 1 == n { MAX } else { (i as Index + 1) * 4 * UNIT - 1 };
            slots.push(LeafSlot { end, word: word(if hole { 0 } else { 100 + i }) });
        }
        let entry = slots.iter().any(|slot| !slot.word.is_null());
        (entry && is_packable(&slots)).then_some(slots)
    })
}

fn most() -> usize {
    if cfg!(miri) { 3 } else { NARROW.full / 3 }
}

/// Compares every change of many leaves with the same change of a list.
#[test]
fn as_with_a_list() {
    for old in (1..=most()).flat_map(leaves) {
        for from in 0..old.len() {
            for to in from..old.len() {
                for rests in 0..4 {
                    for new in [word(0), word(7)] {
                        one(&old, from, to, rests, new);
                    }
                }
            }
        }
    }
}

fn one(old: &[LeafSlot], from: usize, to: usize, rests: usize, new: *mut ()) {
    let (left, right) = (rests & 1 == 1, rests & 2 == 2);
    let first = from as Index * 4 * UNIT + if left { UNIT } else { 0 };
    let last = if right { to as Index * 4 * UNIT + 2 * UNIT - 1 } else { old[to].end };
    let mut body = pack(old);
    let edit = Edit::new(&body, (from, to), (left, right), (first, last), new);
    if edit.fit(&body, true) != Fit::Fits {
        return;
    }
    let (rank, gone) = edit.removed();
    let removed = (rank..rank + gone).map(|rank| {
        // SAFETY: the room is initialised.
        unsafe { body.cell(rank).read() }
    });
    let covered = old[from + usize::from(left)
        ..(to + 1).saturating_sub(usize::from(right)).max(from + usize::from(left))]
        .iter()
        .map(|slot| slot.word)
        .filter(|word| !word.is_null());
    assert_eq!(removed.collect::<Vec<_>>(), covered.collect::<Vec<_>>(), "{edit:?} of {old:?}");
    let copy = word(55);
    let split = edit.splits();
    edit.change(&body).apply(&mut body, copy);
    let mut expected = old[..from].to_vec();
    if left {
        expected.push(LeafSlot { end: first - 1, word: old[from].word });
    }
    expected.push(LeafSlot { end: last, word: new });
    if right {
        expected.push(LeafSlot { end: old[to].end, word: if split { copy } else { old[to].word } });
    }
    expected.extend(&old[to + 1..]);
    assert_eq!(slots(&body, MAX), expected, "{edit:?} of {old:?}");
}

#[test]
fn a_leaf_in_two() {
    for old in (2..=most()).flat_map(leaves) {
        for at in 1..old.len() {
            let (mut left, mut right) = (pack(&old), pack(&old));
            Change::rest(&left, at).apply(&mut right, ptr::null_mut());
            left.truncate(at);
            assert_eq!(slots(&left, old[at - 1].end), old[..at]);
            assert_eq!(slots(&right, MAX), old[at..]);
        }
    }
}
