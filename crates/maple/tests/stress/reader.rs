//! The reader of the stress test: its checks.

use crate::Tree;
use crate::space::{Dice, FIXED, FREE, GROUPS, Group, TAIL};
use crate::tag::Tag;
use maple::Index;
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};

/// The number of checks of each kind.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    fixed: u64,
    never: u64,
    covered: u64,
    toggled_found: u64,
    toggled_free: u64,
    tail: u64,
    walks: u64,
    walked: u64,
    gaps: u64,
}

impl Reads {
    pub(crate) fn plus(self, other: Self) -> Self {
        Reads {
            fixed: self.fixed + other.fixed,
            never: self.never + other.never,
            covered: self.covered + other.covered,
            toggled_found: self.toggled_found + other.toggled_found,
            toggled_free: self.toggled_free + other.toggled_free,
            tail: self.tail + other.tail,
            walks: self.walks + other.walks,
            walked: self.walked + other.walked,
            gaps: self.gaps + other.gaps,
        }
    }

    /// The count of the rarest check. Under Miri there are few, so checks that depend on chance are
    /// left out.
    pub(crate) fn least(&self) -> u64 {
        let sure = self.fixed.min(self.never).min(self.covered).min(self.tail).min(self.walks);
        if cfg!(miri) {
            return sure;
        }
        sure.min(self.toggled_found).min(self.toggled_free).min(self.walked).min(self.gaps)
    }
}

/// Reads until told to stop.
pub(crate) fn run(tree: &Tree, stop: &AtomicBool, mut dice: Dice) -> Reads {
    let mut reads = Reads::default();
    // The newest version seen at an index: an older one must not return.
    let mut newest = HashMap::new();
    // Acquire: pairs with the Release that sets the flag.
    while reads.walks == 0 || !stop.load(Ordering::Acquire) {
        for _ in 0..if cfg!(miri) { 2 } else { 200 } {
            points(tree, &mut dice, &mut reads, &mut newest);
        }
        let from = dice.roll(GROUPS);
        let to = GROUPS.min(from + 1 + dice.roll(4));
        walk(tree, from, to, dice.roll(4), &mut reads);
        gaps(tree, &mut reads);
    }
    reads
}

fn points(tree: &Tree, dice: &mut Dice, reads: &mut Reads, newest: &mut HashMap<Index, u64>) {
    let guard = tree.pin();
    let group = dice.group();

    let fixed = group.fixed(dice.roll(1 << 16));
    let (range, tag) =
        tree.lookup(&guard, fixed.start() + dice.roll(FIXED)).expect("a fixed entry is missing");
    tag.check_whole(&range);
    assert_eq!(range, fixed);
    assert!(
        tree.load(&guard, fixed.end() + 1 + dice.roll(FIXED)).is_none(),
        "an entry is where none may be"
    );
    reads.fixed += 1;

    let never = group.never();
    let index = never.start() + dice.roll(never.end() - never.start() + 1);
    assert!(tree.lookup(&guard, index).is_none(), "an entry is where none may be");
    reads.never += 1;

    // Only a few indices, so that the reader meets the same ones again.
    let covered = group.covered();
    let index = covered.start() + dice.roll(8) * 500;
    let (range, tag) = tree.lookup(&guard, index).expect("a covered index is a hole");
    tag.check(&range);
    assert!(
        range.contains(&index) && covered.start() <= range.start() && range.end() <= covered.end()
    );
    let seen = newest.entry(index).or_insert(0);
    assert!(tag.version >= *seen, "version {} came back after {seen}", tag.version);
    *seen = tag.version;
    assert!(tree.load(&guard, index).expect("a covered index is a hole").version >= *seen);
    reads.covered += 1;

    let toggled = group.toggled();
    let index = toggled.start() + dice.roll(toggled.end() - toggled.start() + 1);
    match tree.lookup(&guard, index) {
        Some((range, tag)) => {
            tag.check(&range);
            assert!(range.contains(&index));
            assert!(toggled.start() <= range.start() && range.end() <= toggled.end());
            reads.toggled_found += 1;
        }
        None => reads.toggled_free += 1,
    }

    for index in [TAIL, Index::MAX, Index::MAX - dice.roll(1 << 20)] {
        let (range, tag) = tree.lookup(&guard, index).expect("a covered index is a hole");
        tag.check(&range);
        assert!(range.contains(&index) && *range.start() >= TAIL);
        reads.tail += 1;
    }
}

/// Walks over some groups, forwards or backwards, with the iterator or a cursor.
fn walk(tree: &Tree, from: Index, to: Index, how: Index, reads: &mut Reads) {
    let guard = tree.pin();
    let bounds = *Group(from).fixed(0).start()..=*Group(to - 1).never().end();
    let (first, last) = (*bounds.start(), *bounds.end());
    let check = |(range, tag): (RangeInclusive<Index>, &Tag)| {
        tag.check(&range);
        range
    };
    let mut seen: Vec<RangeInclusive<Index>> = match how {
        0 => tree.iter(&guard, bounds).map(check).collect(),
        1 => tree.iter(&guard, bounds).rev().map(check).collect(),
        2 => {
            let mut cursor = tree.cursor(&guard, first);
            std::iter::from_fn(|| cursor.find(last).map(check)).collect()
        }
        _ => {
            let mut cursor = tree.cursor(&guard, last);
            std::iter::from_fn(|| cursor.find_rev(first).map(check)).collect()
        }
    };
    if how % 2 == 1 {
        seen.reverse();
    }
    reads.walks += 1;
    reads.walked += seen.len() as u64;
    assert!(seen.windows(2).all(|pair| pair[0].end() < pair[1].start()), "out of order");
    let mut rest = &seen[..];
    for group in (from..to).map(Group) {
        for fixed in group.all_fixed() {
            assert_eq!(
                rest.first(),
                Some(&fixed),
                "a fixed entry is missing, or an entry is where none may be"
            );
            rest = &rest[1..];
        }
        // Every index of the covered block, in any pieces.
        let covered = group.covered();
        let mut next = *covered.start();
        while next <= *covered.end() {
            let piece = rest.first().expect("a piece of a covered block is missing");
            assert_eq!(*piece.start(), next, "an index of a covered block is missing");
            next = piece.end() + 1;
            rest = &rest[1..];
        }
        assert_eq!(next, covered.end() + 1);
        let toggled = group.toggled();
        let n = rest.iter().take_while(|range| range.end() <= toggled.end()).count();
        rest = &rest[n..];
    }
    assert!(rest.is_empty());
}

/// Searches for the one hole that is longer than all others, upwards and downwards.
fn gaps(tree: &Tree, reads: &mut Reads) {
    let guard = tree.pin();
    // The two blocks before it may be free as well: the last toggled block, and the one after it.
    let place = TAIL - FREE;
    let high = tree.empty_area_rev(&guard, 0..=Index::MAX, FREE, 1);
    assert_eq!(high, Ok(place));
    let low = tree.empty_area(&guard, 0..=Index::MAX, FREE, 1);
    assert!(low.is_ok_and(|low| low <= place && place - low < FREE / 2), "{low:x?}");
    assert!(tree.empty_area(&guard, 0..=Index::MAX, 2 * FREE, 1).is_err());
    reads.gaps += 1;
}
