//! Particular shapes: growth in one direction, the ends of the index range, stores over everything.

use super::{CELL, Cells, Dice, check};
use crate::Index;
use crate::layout::{ALWAYS_WIDE, INNER_SLOTS, NARROW, WIDE};
use crate::testing::{Flaky, Owned};
use crate::write::SHORTCUTS;
use crate::{Error, MapleTree};
use grace::Single;
use std::vec::Vec;

type Tree = super::Tree<Single>;

// Divisible by 20 and not by 7.
const N: usize = if cfg!(miri) { 40 } else { 1000 };
/// The end of `N` ranges of ten indices.
const TOP: Index = N as Index * 10;

#[test]
fn an_empty_tree() {
    let mut tree = MapleTree::<u32>::new();
    let guard = tree.pin();
    assert!(tree.is_empty());
    assert_eq!((tree.height(), tree.load(&guard, 0), tree.lookup(&guard, 9)), (0, None, None));
    assert_eq!(tree.find(&guard, 0..=Index::MAX), None);
    assert_eq!(tree.find_rev(&guard, 0..=Index::MAX), None);
    assert_eq!(tree.iter(&guard, 0..=Index::MAX).count(), 0);
    assert_eq!(tree.empty_area(&guard, 5..=100, 10, 8), Ok(8));
    assert_eq!(tree.empty_area_rev(&guard, 5..=100, 10, 8), Ok(88));
    assert_eq!(tree.empty_area(&guard, 0..=Index::MAX, Index::MAX, 1), Ok(0));
    assert_eq!(tree.empty_area_rev(&guard, 0..=Index::MAX, Index::MAX, 1), Ok(1));
    assert_eq!(tree.largest_gap(&guard), Index::MAX);
    let mut writer = tree.get_mut();
    assert!(writer.erase(3).unwrap().is_none());
    writer.erase_range(0..=Index::MAX).unwrap();
    writer.clear();
    writer.validate().unwrap();
    assert!(writer.is_empty() && writer.duplicate().unwrap().is_empty());
}

#[test]
fn the_ends_of_the_index_range() {
    let mut tree = MapleTree::<u32>::new();
    let mut writer = tree.get_mut();
    writer.store_range(0..=0, 1).unwrap();
    writer.store_range(Index::MAX..=Index::MAX, 2).unwrap();
    writer.validate().unwrap();
    assert_eq!((writer.load(0), writer.load(1), writer.load(Index::MAX)), (Some(1), None, Some(2)));
    assert_eq!(writer.empty_area(0..=Index::MAX, Index::MAX - 1, 1), Ok(1));
    assert_eq!(writer.empty_area(0..=Index::MAX, Index::MAX, 1), Err(Error::NoSpace));
    let mut cursor = writer.cursor(Index::MAX);
    assert_eq!(cursor.next_range(Index::MAX), Some((Index::MAX..=Index::MAX, Some(2))));
    assert_eq!(cursor.next_range(Index::MAX), None);
    assert_eq!(cursor.prev(0), Some((Index::MAX..=Index::MAX, 2)));
    assert_eq!(cursor.prev(0), Some((0..=0, 1)));
    assert_eq!(cursor.prev(0), None);
    assert_eq!(cursor.next(0), Some((0..=0, 1)));
    // One entry over everything, which then is split and erased.
    writer.store_range(0..=Index::MAX, 3).unwrap();
    assert_eq!(writer.lookup(7), Some((0..=Index::MAX, 3)));
    assert_eq!(writer.empty_area(0..=Index::MAX, 1, 1), Err(Error::NoSpace));
    writer.erase_range(5..=5).unwrap();
    assert_eq!(writer.lookup(7), Some((6..=Index::MAX, 3)));
    assert_eq!(writer.empty_area(0..=Index::MAX, 1, 1), Ok(5));
    writer.validate().unwrap();
    writer.erase(0).unwrap();
    writer.erase(Index::MAX).unwrap();
    assert!(writer.is_empty());
}

#[test]
fn bad_arguments() {
    let mut tree = MapleTree::<u32>::new();
    let mut writer = tree.get_mut();
    writer.store_range(10..=20, 1).unwrap();
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = 9..=3;
    assert_eq!(writer.store_range(reversed.clone(), 2).unwrap_err().error, Error::EmptyRange);
    assert_eq!(writer.insert_range(reversed.clone(), 2).unwrap_err().error, Error::EmptyRange);
    assert_eq!(writer.erase_range(reversed.clone()), Err(Error::EmptyRange));
    assert_eq!(writer.preallocate(reversed.clone()), Err(Error::EmptyRange));
    assert_eq!(writer.find(reversed.clone()), None);
    assert_eq!(writer.iter(reversed.clone()).next(), None);
    assert_eq!(writer.empty_area(reversed.clone(), 1, 1), Err(Error::EmptyRange));
    assert_eq!(writer.empty_area(0..=9, 0, 1), Err(Error::ZeroSize));
    assert_eq!(writer.empty_area(0..=9, 1, 3), Err(Error::BadAlign));
    assert_eq!(writer.empty_area_rev(0..=9, 1, 0), Err(Error::BadAlign));
    assert_eq!(writer.alloc_range(0..=9, 11, 1, 2).unwrap_err().error, Error::NoSpace);
    let mut next = 3;
    let refused = writer.alloc_cyclic(10..=20, &mut next, 2).unwrap_err();
    assert_eq!((refused.error, next), (Error::NoSpace, 3));
    assert_eq!(writer.alloc_cyclic(reversed, &mut next, 2).unwrap_err().error, Error::EmptyRange);
    assert_eq!(writer.iter(0..=Index::MAX).collect::<Vec<_>>(), [(10..=20, 1)]);
}

/// Stores every second cell in one order, and erases in another.
fn grow_and_shrink(order: impl Fn(usize) -> usize, away: impl Fn(usize) -> usize) {
    let mut cells = Cells::new(2 * N + 2);
    let mut tree = Tree::new_in();
    let mut writer = tree.get_mut();
    let every = if cfg!(miri) { N } else { N / 20 };
    for i in 0..N {
        let cell = 2 * order(i) + 1;
        writer.store_range(cells.range(cell, cell), Owned::new(i as u64)).unwrap();
        cells.set(cell, cell, Some(i as u64));
        if i % every == 0 {
            check(&mut writer, &cells);
        }
    }
    check(&mut writer, &cells);
    for i in 0..N {
        let cell = 2 * away(i) + 1;
        assert!(writer.erase(cell as Index * super::CELL).unwrap().is_some());
        cells.set(cell, cell, None);
        if i % every == 0 {
            check(&mut writer, &cells);
        }
    }
    assert!(writer.is_empty());
}

#[test]
fn growth_in_every_direction() {
    let nodes = Flaky::live();
    let shuffled = |i: usize| i * 7 % N;
    grow_and_shrink(|i| N - 1 - i, |i| i);
    grow_and_shrink(shuffled, |i| N - 1 - i);
    if !cfg!(miri) {
        grow_and_shrink(|i| i, |i| i);
        grow_and_shrink(|i| i, |i| N - 1 - i);
        grow_and_shrink(shuffled, |i| i);
        grow_and_shrink(|i| i, shuffled);
    }
    assert_eq!(Flaky::live(), nodes);
}

#[test]
fn a_run_of_stores_leaves_full_leaves() {
    for rising in [true, false] {
        let mut tree = MapleTree::<u32>::new();
        let mut writer = tree.get_mut();
        for i in 0..N {
            let at = if rising { i } else { N - i } as Index * 10;
            writer.store_range(at..=at + 9, i as u32).unwrap();
        }
        let stats = writer.stats();
        let scale = if ALWAYS_WIDE { WIDE } else { NARROW };
        let room = stats.leaves * (scale.full / scale.entry);
        assert!(stats.entries * 10 > room * 8 || N < 100, "{stats:?}");
    }
}

#[test]
fn one_store_over_everything() {
    for (from, to) in
        [(0, 2 * N + 1), (1, 2 * N), (2 * N - 2, 2 * N), (0, N), (N, 2 * N + 1), (1, 1)]
    {
        for hole in [false, true] {
            if cfg!(miri) && (hole != (from % 2 == 0) || from == to) {
                continue; // less than half of them, for time
            }
            let mut cells = Cells::new(2 * N + 2);
            let mut tree = Tree::new_in();
            let mut writer = tree.get_mut();
            for i in 0..2 * N + 2 {
                writer.store_range(cells.range(i, i), Owned::new(i as u64)).unwrap();
                cells.set(i, i, Some(i as u64));
            }
            let range = cells.range(from, to);
            if hole {
                writer.erase_range(range).unwrap();
                cells.set(from, to, None);
            } else {
                writer.store_range(range, Owned::new(u64::MAX)).unwrap();
                cells.set(from, to, Some(u64::MAX));
            }
            check(&mut writer, &cells);
            // Erase the rest one by one. Under Miri, only where much is left and much is gone.
            if cfg!(miri) && from != 0 {
                continue;
            }
            let mut left = 0;
            while let Some((range, _)) = writer.find(0..=Index::MAX) {
                writer.erase(*range.end()).unwrap();
                left += 1;
                if !cfg!(miri) || left % 8 == 0 {
                    writer.validate().unwrap();
                }
            }
            assert_eq!(writer.stats().nodes, 0);
        }
    }
}

#[test]
fn a_hole_over_leaves_of_one_parent_or_two() {
    // The ranges begin anywhere, so their ends lie under one parent, under neighbouring parents,
    // and under parents further apart. Entries with holes between them leave leaves half full, so
    // that one leaf is left; touching entries leave two. Under Miri there are only as many writes
    // as all four cases need, on one tree, alternately by the owner and concurrently with readers,
    // with one check at the end.
    let (n, step, lengths): (usize, usize, &[usize]) =
        if cfg!(miri) { (240, 67, &[2, 40]) } else { (300, 3, &[2, 16, 40]) };
    let modes: &[&[bool]] = if cfg!(miri) { &[&[false, true]] } else { &[&[false], &[true]] };
    for (apart, exclusive) in
        [1, 2].into_iter().flat_map(|apart| modes.iter().map(move |one| (apart, one)))
    {
        let mut cells = Cells::new(apart * n);
        let mut tree = super::Tree::<grace::Epoch>::new_in();
        for i in 0..n {
            tree.store_range(cells.range(apart * i, apart * i), Owned::new(i as u64)).unwrap();
            cells.set(apart * i, apart * i, Some(i as u64));
        }
        let holes =
            (0..n).step_by(step).flat_map(|from| lengths.iter().map(move |&len| (from, len)));
        let holes = holes.flat_map(|hole| exclusive.iter().map(move |&alone| (hole, alone)));
        for ((from, len), exclusive) in holes {
            let last = (apart * (from + len) + from % 2).min(apart * n - 1);
            let before = cells.clone();
            let mut writer = if exclusive { tree.get_mut() } else { tree.lock() };
            writer.erase_range(cells.range(apart * from, last)).unwrap();
            cells.set(apart * from, last, None);
            if !cfg!(miri) {
                check(&mut writer, &cells);
            }
            for i in (from..n).take_while(|i| apart * i <= last) {
                let at = before.range(apart * i, apart * i);
                writer.store_range(at, Owned::new(i as u64)).unwrap();
            }
            cells = before;
            if !cfg!(miri) {
                check(&mut writer, &cells);
            }
        }
        tree.get_mut().validate().unwrap();
    }
    // Wide leaves are left to the plan, and so are small nodes with two children.
    let erased = crate::write::SPANS_ERASED.take();
    let least = if cfg!(miri) { 1 } else { 3 };
    let plans = ALWAYS_WIDE || INNER_SLOTS == 4 || !SHORTCUTS;
    assert!(plans || erased.iter().flatten().all(|&n| n >= least), "{erased:?}");
}

#[test]
fn erases_that_leave_little_or_go_on_in_another_leaf() {
    // Each entry is erased by itself, in random order, and some come back. So leaves become too
    // small in the middle of others, and entries at the ends of leaves go, next to neighbours with
    // the same parent and with another one.
    let (n, steps) = if cfg!(miri) { (160, 240) } else { (400, 3000) };
    let modes: &[&[bool]] = if cfg!(miri) { &[&[false, true]] } else { &[&[false], &[true]] };
    for &modes in modes {
        let mut cells = Cells::new(2 * n);
        let mut dice = Dice(11);
        let mut tree = super::Tree::<grace::Epoch>::new_in();
        for (value, i) in (0..n).enumerate() {
            tree.store_range(cells.range(2 * i, 2 * i), Owned::new(value as u64)).unwrap();
            cells.set(2 * i, 2 * i, Some(value as u64));
        }
        for (step, exclusive) in (0..steps).zip(modes.iter().cycle()) {
            let cell = 2 * dice.roll(n);
            let mut writer = if *exclusive { tree.get_mut() } else { tree.lock() };
            // At first more entries go than come, later the opposite.
            if let Some(value) = cells.0[cell] {
                let (range, erased) = writer.erase(cell as Index * CELL).unwrap().unwrap();
                assert_eq!((range, *erased.get()), (cells.range(cell, cell), value));
                cells.set(cell, cell, None);
            } else if dice.roll(4) == 0 || step > steps * 2 / 3 {
                let value = (n + step) as u64;
                writer.store_range(cells.range(cell, cell), Owned::new(value)).unwrap();
                cells.set(cell, cell, Some(value));
            }
            if !cfg!(miri) {
                check(&mut writer, &cells);
            }
        }
        check(&mut tree.get_mut(), &cells);
    }
    // Wide leaves are left to the plan. Rare cases take more steps than Miri has time for.
    let (joined, erased) = (crate::write::JOINED.take(), crate::write::SPANS_ERASED.take());
    let erased = erased.map(|erased| erased.iter().sum::<usize>());
    let seldom = usize::from(!cfg!(miri));
    for (often, seen) in [joined, erased].map(|[often, seen]| (often, seen)) {
        assert!(
            ALWAYS_WIDE || !SHORTCUTS || (often > 0 && seen >= seldom),
            "{joined:?}, {erased:?}"
        );
    }
}

#[test]
fn gaps_too_small_are_not_visited() {
    // Many holes of one index, a few of two: the search visits about as many nodes as the tree has
    // levels.
    let mut tree = MapleTree::<u32>::new();
    let mut writer = tree.get_mut();
    for i in 0..TOP / 10 {
        writer.store_range(i * 10..=i * 10 + 8, 1).unwrap();
    }
    writer.store_range(TOP..=Index::MAX, 2).unwrap();
    let bounds = 0..=Index::MAX;
    assert_eq!(writer.empty_area(bounds.clone(), 2, 1), Err(Error::NoSpace));
    let place = TOP / 20 * 10;
    writer.store_range(place..=place + 7, 3).unwrap();
    writer.erase_range(place + 8..=place + 8).unwrap();
    assert_eq!(writer.empty_area(bounds.clone(), 2, 1), Ok(place + 8));
    assert_eq!(writer.empty_area_rev(bounds.clone(), 2, 1), Ok(place + 8));
    assert_eq!(writer.alloc_rrange(bounds.clone(), 1, 1, 4).unwrap(), TOP - 1);
    assert_eq!(writer.alloc_range(bounds, 1, 1, 4).unwrap(), 9);
    writer.validate().unwrap();
}

#[test]
fn the_largest_gap_at_the_ends_of_the_index_range() {
    let mut tree = MapleTree::<u32>::new();
    let mut writer = tree.get_mut();
    // All indices but one at either end are free: `Index::MAX` indices.
    for index in [0, Index::MAX] {
        writer.store_range(index..=index, 1).unwrap();
        assert_eq!(writer.largest_gap(), Index::MAX);
        writer.clear();
    }
    writer.store_range(9..=9, 1).unwrap();
    assert_eq!(writer.largest_gap(), Index::MAX - 9);
    writer.store_range(0..=Index::MAX, 1).unwrap();
    assert_eq!(writer.largest_gap(), 0);
}

#[test]
fn the_largest_gap_is_one_across_leaves() {
    let mut tree = MapleTree::<u32>::new();
    let mut writer = tree.get_mut();
    for i in 0..TOP / 10 {
        writer.store_range(i * 10..=i * 10 + 8, 1).unwrap();
    }
    writer.store_range(TOP..=Index::MAX, 2).unwrap();
    assert!(writer.height() > 1);
    assert_eq!(writer.largest_gap(), 1);
    // One hole grows over leaf after leaf, in both directions.
    let middle = TOP / 20 * 10;
    let mut end = middle + 10;
    for i in 0..TOP / 20 {
        let (below, above) = (middle - i * 10, middle + i * 10);
        writer.erase(below).unwrap();
        assert_eq!(writer.largest_gap(), end - (below - 1));
        writer.erase(above).unwrap();
        end = above + 10;
        assert_eq!(writer.largest_gap(), end - (below - 1));
    }
    // The hole is split, and the longer part counts.
    writer.store_range(30..=30, 3).unwrap();
    writer.validate().unwrap();
    assert_eq!(writer.largest_gap(), TOP - 31);
}
