//! Tests of the table of states, row by row.

use super::State::{Active, Nowhere, Overflow, Paused, Start, Underflow};
use crate::Index;
use crate::layout::INNER_SLOTS;
use crate::testing::visits;
use crate::tests::Dice;
use crate::{Error, MapleTree};
use grace::{Epoch, Single};

const MAX: Index = Index::MAX;

/// Entries 1 at 10..=19, 2 at 20..=29, 3 at 40..=49.
fn tree() -> MapleTree<u32> {
    let mut tree = MapleTree::new();
    let mut writer = tree.get_mut();
    writer.store_range(10..=19, 1).unwrap();
    writer.store_range(20..=29, 2).unwrap();
    writer.store_range(40..=49, 3).unwrap();
    drop(writer);
    tree
}

#[test]
fn from_start() {
    let tree = tree();
    let guard = tree.pin();
    let at = |index| tree.cursor(&guard, index);
    // On an entry.
    assert_eq!(at(15).find(MAX), Some((10..=19, 1)));
    assert_eq!(at(15).next(MAX), Some((20..=29, 2)));
    assert_eq!(at(15).find_rev(0), Some((10..=19, 1)));
    assert_eq!(at(15).prev(0), None);
    assert_eq!(at(15).next_range(MAX), Some((10..=19, Some(1))));
    assert_eq!(at(15).prev_range(0), Some((10..=19, Some(1))));
    assert_eq!(at(15).walk(), Some(1));
    // On a hole.
    assert_eq!(at(35).find(MAX), Some((40..=49, 3)));
    assert_eq!(at(35).next(MAX), Some((40..=49, 3)));
    assert_eq!(at(35).find_rev(0), Some((20..=29, 2)));
    assert_eq!(at(35).prev(0), Some((20..=29, 2)));
    assert_eq!(at(35).next_range(MAX), Some((30..=39, None)));
    assert_eq!(at(35).walk(), None);
    // A limit on the wrong side.
    let mut cursor = at(15);
    assert_eq!((cursor.find(9), cursor.state(), cursor.range()), (None, Overflow, 14..=14));
    assert_eq!(cursor.find(MAX), Some((10..=19, 1)));
    let mut cursor = at(15);
    assert_eq!((cursor.find_rev(25), cursor.state(), cursor.range()), (None, Underflow, 16..=16));
}

#[test]
fn from_active() {
    let tree = tree();
    let guard = tree.pin();
    let mut cursor = tree.cursor(&guard, 15);
    cursor.walk();
    assert_eq!((cursor.state(), cursor.range()), (Active, 10..=19));
    assert_eq!(cursor.find(MAX), Some((20..=29, 2)));
    assert_eq!(cursor.next_range(MAX), Some((30..=39, None)));
    assert_eq!((cursor.state(), cursor.range()), (Active, 30..=39));
    assert_eq!(cursor.next(MAX), Some((40..=49, 3)));
    assert_eq!(cursor.prev(0), Some((20..=29, 2)));
    assert_eq!(cursor.find_rev(0), Some((10..=19, 1)));
    assert_eq!(cursor.prev_range(0), Some((0..=9, None)));
    assert_eq!(cursor.walk(), None);
    cursor.reset();
    assert_eq!((cursor.state(), cursor.range()), (Start, 0..=0));
}

#[test]
fn limits() {
    let tree = tree();
    let guard = tree.pin();
    let mut cursor = tree.cursor(&guard, 0);
    // A range that crosses the limit is returned; one that begins after it is not.
    assert_eq!(cursor.find(15), Some((10..=19, 1)));
    assert_eq!(cursor.find(19), None);
    assert_eq!((cursor.state(), cursor.range()), (Overflow, 19..=19));
    assert_eq!(cursor.find(19), None);
    assert_eq!(cursor.find(20), Some((20..=29, 2)));
    // After a limit inside a hole: backward moves continue at the limit, forward moves after it.
    assert_eq!(cursor.find(35), None);
    assert_eq!((cursor.state(), cursor.range()), (Overflow, 35..=35));
    assert_eq!(cursor.prev_range(0), Some((30..=39, None)));
    assert_eq!(cursor.find_rev(25), Some((20..=29, 2)));
    assert_eq!(cursor.find_rev(20), None);
    assert_eq!((cursor.state(), cursor.range()), (Underflow, 20..=20));
    assert_eq!(cursor.find_rev(19), Some((10..=19, 1)));
    assert_eq!(cursor.prev(5), None);
    assert_eq!((cursor.state(), cursor.range()), (Underflow, 5..=5));
    assert_eq!(cursor.next_range(MAX), Some((0..=9, None)));
    // The ends of the index range.
    assert_eq!(cursor.prev(0), None);
    assert_eq!((cursor.state(), cursor.range()), (Underflow, 0..=0));
    assert_eq!(cursor.prev_range(0), None);
    assert_eq!(cursor.next(MAX), Some((10..=19, 1)));
    cursor.set(MAX);
    assert_eq!(cursor.next(MAX), None);
    assert_eq!((cursor.state(), cursor.range()), (Overflow, MAX..=MAX));
    assert_eq!(cursor.next_range(MAX), None);
    assert_eq!(cursor.prev(0), Some((40..=49, 3)));
    // A range that crosses the limit is met again from there.
    assert_eq!((cursor.find(45), cursor.range()), (None, 49..=49));
    assert_eq!(cursor.find_rev(0), Some((40..=49, 3)));
}

#[test]
fn pausing() {
    let tree = tree();
    let resumed = |index, state| {
        let guard = tree.pin();
        let mut cursor = tree.cursor(&guard, index);
        if state == Paused {
            cursor.walk();
        }
        let place = cursor.pause();
        let cursor = tree.resume(&guard, place);
        assert_eq!(cursor.state(), state);
        place
    };
    let guard = tree.pin();
    let place = resumed(25, Paused);
    assert_eq!(place.index(), 20);
    assert_eq!(tree.resume(&guard, place).range(), 20..=29);
    assert_eq!(tree.resume(&guard, place).walk(), Some(2));
    assert_eq!(tree.resume(&guard, place).find(MAX), Some((40..=49, 3)));
    assert_eq!(tree.resume(&guard, place).next(MAX), Some((40..=49, 3)));
    assert_eq!(tree.resume(&guard, place).find_rev(0), Some((10..=19, 1)));
    assert_eq!(tree.resume(&guard, place).prev(0), Some((10..=19, 1)));
    assert_eq!(tree.resume(&guard, place).next_range(MAX), Some((30..=39, None)));
    assert_eq!(tree.resume(&guard, place).prev_range(0), Some((10..=19, Some(1))));
    // Pausing does not pass a range that has not been read.
    assert_eq!(tree.resume(&guard, resumed(25, Start)).find(MAX), Some((20..=29, 2)));
}

#[test]
fn nowhere() {
    let tree = tree();
    let guard = tree.pin();
    let mut cursor = tree.cursor(&guard, 15);
    assert_eq!(cursor.empty_area(10..=45, 5, 1), Ok(30));
    assert_eq!((cursor.state(), cursor.range()), (Active, 30..=39));
    assert_eq!(cursor.empty_area_rev(10..=45, 5, 1), Ok(35));
    assert_eq!(cursor.next(MAX), Some((40..=49, 3)));
    // Bad arguments leave it where it is.
    assert_eq!(cursor.empty_area(10..=45, 0, 1), Err(Error::ZeroSize));
    assert_eq!(cursor.state(), Active);
    assert_eq!(cursor.empty_area(10..=45, 11, 1), Err(Error::NoSpace));
    assert_eq!(cursor.state(), Nowhere);
    assert_eq!((cursor.next(MAX), cursor.prev(0)), (None, None));
    assert_eq!((cursor.next_range(MAX), cursor.prev_range(0)), (None, None));
    assert_eq!(cursor.state(), Nowhere);
    cursor.reset();
    assert_eq!((cursor.state(), cursor.walk()), (Start, Some(3)));
    assert_eq!(cursor.empty_area_rev(10..=45, 11, 1), Err(Error::NoSpace));
    cursor.set(0);
    assert_eq!(cursor.find(MAX), Some((10..=19, 1)));
}

#[test]
fn an_empty_tree() {
    let mut tree = MapleTree::<u32, Single>::new();
    let guard = tree.pin();
    let mut cursor = tree.cursor(&guard, 7);
    assert_eq!((cursor.walk(), cursor.range()), (None, 0..=MAX));
    assert_eq!((cursor.next_range(MAX), cursor.state()), (None, Overflow));
    assert_eq!(cursor.prev_range(0), Some((0..=MAX, None)));
    assert_eq!((cursor.prev(0), cursor.state()), (None, Underflow));
    assert_eq!(cursor.empty_area(3..=9, 2, 2), Ok(4));
    assert_eq!((cursor.state(), cursor.range()), (Active, 0..=MAX));
    // The first entry, stored through a writer's cursor.
    let mut writer = tree.get_mut();
    let mut cursor = writer.cursor(7);
    cursor.store(5..=9, 1).unwrap();
    assert_eq!(cursor.range(), 5..=9);
    assert_eq!(cursor.next_range(MAX), Some((10..=MAX, None)));
}

#[test]
fn writing_moves_the_cursor() {
    let mut tree = tree();
    let mut writer = tree.get_mut();
    let mut cursor = writer.cursor(25);
    assert_eq!(cursor.walk(), Some(2));
    let (range, erased) = cursor.erase().unwrap().unwrap();
    assert_eq!((range, erased.into_inner().unwrap()), (20..=29, 2));
    // The hole includes the one next to it.
    assert_eq!((cursor.state(), cursor.range()), (Active, 20..=39));
    assert!(cursor.erase().unwrap().is_none());
    assert_eq!(cursor.prev(0), Some((10..=19, 1)));
    cursor.store(15..=44, 4).unwrap();
    assert_eq!(cursor.range(), 15..=44);
    assert_eq!(cursor.next(MAX), Some((45..=49, 3)));
    let place = cursor.pause();
    let mut cursor = writer.resume(place);
    assert_eq!(cursor.prev_range(0), Some((15..=44, Some(4))));
    #[allow(clippy::reversed_empty_ranges)]
    let refused = cursor.store(9..=3, 5).unwrap_err();
    assert_eq!((refused.error, cursor.range()), (Error::EmptyRange, 15..=44));
    assert_eq!(cursor.prev(0), Some((10..=14, 1)));
    writer.validate().unwrap();
}

#[test]
fn erasing_everything_on_the_way() {
    let n = if cfg!(miri) { 40 } else { 1000 };
    let mut tree = MapleTree::<u32>::new();
    let mut writer = tree.get_mut();
    for i in 0..n {
        writer.store_range(i * 10..=i * 10 + i % 10, i as u32).unwrap();
    }
    let mut cursor = writer.cursor(0);
    for i in 0..n {
        assert_eq!(cursor.find(MAX), Some((i * 10..=i * 10 + i % 10, i as u32)));
        cursor.erase().unwrap().unwrap();
    }
    assert_eq!(cursor.find(MAX), None);
    assert!(writer.is_empty());
}

/// A cursor that stays in its leaf does not go through the tree again.
#[test]
fn an_index_of_the_same_leaf_needs_no_walk() {
    let n = if cfg!(miri) { 60 } else { 1000 };
    let mut tree = MapleTree::<u32>::new();
    let mut writer = tree.get_mut();
    for i in 0..n {
        writer.store_range(i * 10..=i * 10 + 5, i as u32).unwrap();
    }
    assert!(writer.height() > 1);
    let mut cursor = writer.cursor(0);
    assert_eq!(cursor.walk(), Some(0));
    let before = visits();
    for _ in 0..9 {
        cursor.set(13);
        assert_eq!((cursor.walk(), cursor.range()), (Some(1), 10..=15));
        cursor.set(16);
        assert_eq!((cursor.walk(), cursor.range()), (None, 16..=19));
        cursor.set(18);
        assert_eq!(cursor.find(MAX), Some((20..=25, 2)));
        cursor.set(18);
        assert_eq!(cursor.find_rev(0), Some((10..=15, 1)));
        cursor.set(12);
        assert_eq!(cursor.prev(0), Some((0..=5, 0)));
        cursor.set(3);
        assert_eq!(cursor.next(MAX), Some((10..=15, 1)));
        assert_eq!((cursor.find(14), cursor.find_rev(0)), (None, Some((10..=15, 1))));
    }
    // A small leaf does not hold all of them.
    assert!(INNER_SLOTS == 4 || visits() == before);
    // A write of this cursor ends that.
    cursor.store(12..=13, 99).unwrap();
    for (index, found) in [(11, Some(1)), (13, Some(99)), (17, None)] {
        cursor.set(index);
        assert_eq!(cursor.walk(), found);
    }
    // So does another leaf.
    cursor.set(10 * n - 10);
    assert_eq!(cursor.walk(), Some(n as u32 - 1));
    assert!(visits() > before);
}

/// A reader's cursor that is set within its leaf sees every write that has ended before, on
/// whichever level of the tree it replaced a node.
#[test]
fn a_cursor_that_stays_sees_every_write() {
    let n = if cfg!(miri) { 60 } else { 3000 };
    let tree = MapleTree::<u32, Epoch>::new();
    for i in 0..n {
        tree.store_range(i * 10..=i * 10 + 5, 1).unwrap();
    }
    let guard = tree.pin();
    let at = n / 2 * 10;
    let mut cursor = tree.cursor(&guard, at);
    assert_eq!(cursor.walk(), Some(1));
    for round in 2..if cfg!(miri) { 50 } else { 200 } {
        // Copies of the leaf, then splits of it, of its parent, and so on.
        tree.store_range(at + 1..=at + 1, round).unwrap();
        cursor.set(at + 1);
        assert_eq!(cursor.walk(), Some(round));
        for far in 0..if cfg!(miri) { 1 } else { 9 } {
            let near = at + 10 * (round as Index % 40 + far);
            tree.store_range(near + 6..=near + 6, round).unwrap();
            cursor.set(at + 1);
            assert_eq!(cursor.find(MAX), Some((at + 1..=at + 1, round)));
        }
        tree.erase(at + 1).unwrap();
        cursor.set(at + 1);
        assert_eq!(cursor.walk(), None);
    }
    tree.clear();
    cursor.set(at);
    assert_eq!((cursor.walk(), cursor.range()), (None, 0..=MAX));
}

/// A writer's cursor between its own writes, which free and change nodes of its path.
#[test]
fn a_cursor_that_writes_shows_its_own_writes() {
    let (cells, steps) = if cfg!(miri) { (60, 60) } else { (600, 30_000) };
    let mut dice = Dice(11);
    let mut tree = MapleTree::<u32>::new();
    let mut writer = tree.get_mut();
    let mut model = std::vec![0; cells];
    let last = cells as Index - 1;
    let mut cursor = writer.cursor(0);
    for step in 1..=steps {
        let index = dice.roll(cells);
        let to = index + if dice.roll(9) == 0 { dice.roll(200) } else { dice.roll(4) };
        match dice.roll(4) {
            0 => {
                let to = to.min(cells - 1);
                cursor.store(index as Index..=to as Index, step).unwrap();
                model[index..=to].fill(step);
            }
            1 => {
                cursor.set(index as Index);
                if let Some((range, _)) = cursor.erase().unwrap() {
                    let end = (*range.end()).min(last);
                    model[*range.start() as usize..=end as usize].fill(0);
                }
            }
            _ => {}
        }
        for near in [index, index.saturating_sub(3), (index + 9).min(cells - 1)] {
            cursor.set(near as Index);
            assert_eq!(cursor.walk().unwrap_or(0), model[near], "step {step}, index {near}");
            let range = cursor.range();
            let (from, to) = (*range.start() as usize, (*range.end()).min(last) as usize);
            assert!(model[from..=to].iter().all(|&value| value == model[near]), "step {step}");
            assert!(from == 0 || model[from - 1] != model[near], "step {step}: {range:?}");
            assert!(to + 1 == cells || model[to + 1] != model[near], "step {step}: {range:?}");
        }
    }
}
