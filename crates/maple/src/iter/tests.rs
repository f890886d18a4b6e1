//! Iterators.

use crate::Index;
use crate::MapleTree;
use crate::tests::Dice;
use grace::Epoch;
use std::vec::Vec;

#[test]
fn the_ends_meet() {
    let n = if cfg!(miri) { 12 } else { 60 };
    let mut tree = MapleTree::<u32>::new();
    let mut writer = tree.get_mut();
    for i in 0..n {
        let at = i as Index * 10;
        writer.store_range(at..=at + 5, i as u32).unwrap();
    }
    // Over everything, whole leaves are opened from the beginning, else one entry first.
    for bounds in [0..=Index::MAX, 3..=Index::MAX - 3] {
        for fronts in 0..=n {
            let mut iter = writer.iter(bounds.clone());
            let mut seen: Vec<_> = iter.by_ref().take(fronts).map(|(_, value)| value).collect();
            let mut back: Vec<_> = iter.by_ref().rev().map(|(_, value)| value).collect();
            assert!(iter.next().is_none() && iter.next_back().is_none());
            back.reverse();
            seen.extend(back);
            assert_eq!(seen, (0..n as u32).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_fold_takes_the_remaining_entries() {
    let n = if cfg!(miri) { 12 } else { 100 };
    let mut tree = MapleTree::<u32>::new();
    let mut writer = tree.get_mut();
    for i in 0..n {
        let at = i as Index * 10;
        writer.store_range(at..=at + 5, i as u32).unwrap();
    }
    for fronts in 0..=n {
        for backs in [0, 1, 3, n / 2, n] {
            let mut iter = writer.iter(3..=Index::MAX);
            let taken = iter.by_ref().take(fronts).count();
            let shown = iter.by_ref().rev().take(backs).count();
            let rest: Vec<_> = iter.fold(Vec::new(), |mut rest, (_, value)| {
                rest.push(value as usize);
                rest
            });
            assert_eq!(rest, (taken..n - shown).collect::<Vec<_>>());
        }
    }
}

/// The ends in turn, by a pattern of bits, from every pair of bounds.
#[test]
fn the_ends_in_turn_between_bounds() {
    let n = if cfg!(miri) { 4 } else { 40 };
    let mut tree = MapleTree::<u32>::new();
    let mut writer = tree.get_mut();
    for i in 0..n {
        let at = i as Index * 10;
        writer.store_range(at..=at + 5, i as u32).unwrap();
    }
    for from in 0..n * 5 {
        for to in from..n * 5 {
            let (from, to) = (from * 2, to * 2);
            // Entry `i` overlaps them if 10 i <= to and 10 i + 5 >= from.
            let mut left: std::collections::VecDeque<_> =
                (0..n).filter(|i| i * 10 <= to && i * 10 + 5 >= from).collect();
            let pattern = from * 7919 + to * 104_729;
            let mut iter = writer.iter(from..=to);
            for turn in 0.. {
                let (found, wanted) = if pattern >> (turn % 16) & 1 == 0 {
                    (iter.next(), left.pop_front())
                } else {
                    (iter.next_back(), left.pop_back())
                };
                let wanted = wanted.map(|i| (i * 10..=i * 10 + 5, i as u32));
                assert_eq!(found, wanted, "{from}..={to}, turn {turn}");
                if found.is_none() {
                    break;
                }
            }
        }
    }
}

/// The first entry and the next ones come from the same version of the leaf.
#[test]
fn a_write_after_the_first_entry() {
    let tree = MapleTree::<u32, Epoch>::new();
    for i in 1..9 {
        tree.store_range(i * 10..=i * 10 + 9, i as u32).unwrap();
    }
    let guard = tree.pin();
    let (mut up, mut down) = (tree.iter(&guard, 35..=99), tree.iter(&guard, 1..=65));
    assert_eq!((up.next(), down.next_back()), (Some((30..=39, 3)), Some((60..=69, 6))));
    tree.store_range(30..=69, 9).unwrap();
    // In the new version, one entry covers ranges that were returned and ranges that are to come.
    assert_eq!((up.next(), down.next_back()), (Some((40..=49, 4)), Some((50..=59, 5))));
}

/// Neither end returns a range that the other has passed, whatever a writer does in between.
#[test]
fn the_ends_do_not_cross_beside_a_writer() {
    let (rounds, n) = if cfg!(miri) { (4, 20) } else { (300, 200) };
    let mut dice = Dice(5);
    for _ in 0..rounds {
        let tree = MapleTree::<u32, Epoch>::new();
        for i in 0..n {
            tree.store_range(i * 10..=i * 10 + 5, 1).unwrap();
        }
        let guard = tree.pin();
        let (first, last) = (dice.roll(10 * n), dice.roll(10 * n));
        let mut iter = tree.iter(&guard, first.min(last)..=first.max(last));
        let (mut passed, mut shown) = (None, None);
        loop {
            for _ in 0..dice.roll(3) {
                let from = dice.roll(10 * n);
                let to = from + dice.roll(40);
                if dice.roll(2) == 0 {
                    tree.store_range(from..=to, 2).unwrap();
                } else {
                    tree.erase_range(from..=to).unwrap();
                }
            }
            if dice.roll(3) > 0 {
                let Some((range, _)) = iter.next() else { break };
                assert!(passed.is_none_or(|passed| passed < *range.start()));
                assert!(shown.is_none_or(|shown| shown > *range.end()));
                passed = Some(*range.end());
            } else {
                let Some((range, _)) = iter.next_back() else { break };
                assert!(passed.is_none_or(|passed| passed < *range.start()));
                assert!(shown.is_none_or(|shown| shown > *range.end()));
                shown = Some(*range.start());
            }
        }
        assert!(iter.next().is_none() && iter.next_back().is_none());
    }
}

#[test]
fn bounds_cut_through_entries() {
    let mut tree = MapleTree::<u32>::new();
    let mut writer = tree.get_mut();
    writer.store_range(10..=19, 1).unwrap();
    writer.store_range(30..=39, 2).unwrap();
    let count = |from, to| {
        let forwards = writer.iter(from..=to).count();
        assert_eq!(writer.iter(from..=to).rev().count(), forwards);
        forwards
    };
    assert_eq!((count(0, 9), count(0, 10), count(15, 15), count(20, 29)), (0, 1, 1, 0));
    assert_eq!((count(19, 30), count(39, 99), count(40, Index::MAX)), (2, 1, 0));
    // One entry, requested from both ends.
    let mut iter = writer.iter(15..=16);
    assert_eq!(iter.next_back(), Some((10..=19, 1)));
    assert_eq!((iter.next(), iter.next_back()), (None, None));
}
