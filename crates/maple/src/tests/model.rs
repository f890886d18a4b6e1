//! Random writes and reads in every mode, compared with the cells.

use super::{CELL, Cells, Dice, Tree, check};
use crate::Index;
use crate::testing::{Flaky, KINDS, Owned, with_vectors};
use crate::{Error, Writer};
use grace::{Epoch, Reclaim, Single};
use std::ops::RangeInclusive;

const CELLS: usize = if cfg!(miri) { 32 } else { 160 };
const STEPS: usize = if cfg!(miri) { 40 } else { 1200 };
/// The number of steps between two checks of the whole tree.
const EVERY: u64 = if cfg!(miri) { 5 } else { 1 };
const SEEDS: u64 = if cfg!(miri) { 1 } else { 3 };

/// The lowest and the highest start of a free run, in cells.
fn fit(cells: &Cells, from: usize, to: usize, size: usize, align: usize) -> Option<(usize, usize)> {
    let free = |&start: &usize| {
        start % align == 0
            && start + size - 1 <= to
            && cells.0[start..start + size].iter().all(Option::is_none)
    };
    let first = (from..=to).find(free)?;
    Some((first, (from..=to).rev().find(free)?))
}

fn step<R: Reclaim>(
    writer: &mut Writer<'_, Owned, R, Flaky>,
    cells: &mut Cells,
    dice: &mut Dice,
    value: u64,
) {
    let n = cells.0.len();
    // Usually short ranges, sometimes one over much of the tree.
    let from = dice.roll(n);
    let longest = if dice.roll(20) == 0 { n } else { 6 };
    let to = (from + dice.roll(longest)).min(n - 1);
    let range = cells.range(from, to);
    match dice.roll(12) {
        0..=3 => {
            writer.store_range(range, Owned::new(value)).unwrap();
            cells.set(from, to, Some(value));
        }
        4 | 5 => {
            let outcome = writer.insert_range(range, Owned::new(value));
            match cells.0[from..=to].iter().position(Option::is_some) {
                None => {
                    outcome.unwrap();
                    cells.set(from, to, Some(value));
                }
                Some(at) => {
                    let (start, end) = cells.run(from + at);
                    let (start, end) = cells.range(start, end).into_inner();
                    assert_eq!(outcome.unwrap_err().error, Error::Occupied { start, end });
                }
            }
        }
        6 => {
            writer.erase_range(range).unwrap();
            cells.set(from, to, None);
        }
        7 | 8 => {
            let erased = writer.erase(from as Index * CELL + dice.roll(CELL)).unwrap();
            let (start, end) = cells.run(from);
            let held = erased.map(|(range, entry)| (range, *entry.get()));
            assert_eq!(held, cells.0[from].map(|value| (cells.range(start, end), value)));
            cells.set(start, end, None);
        }
        9 => {
            writer.preallocate(range.clone()).unwrap();
            Flaky::failing_after(0, || writer.store_range(range, Owned::new(value))).unwrap();
            cells.set(from, to, Some(value));
        }
        _ => {
            let (size, align) = (1 + dice.roll(5), 1 << dice.roll(3));
            // Aligned to cells; the last cell is far larger than the others.
            let bounds = from as Index * CELL..=to as Index * CELL + (CELL - 1);
            let fits = fit(cells, from, to, size, align);
            let low =
                writer.empty_area(bounds.clone(), size as Index * CELL, align as Index * CELL);
            let high =
                writer.empty_area_rev(bounds.clone(), size as Index * CELL, align as Index * CELL);
            match fits {
                Some((first, last)) => {
                    assert_eq!((low, high), (Ok(first as Index * CELL), Ok(last as Index * CELL)))
                }
                None => assert_eq!((low, high), (Err(Error::NoSpace), Err(Error::NoSpace))),
            }
        }
    }
    reads(writer, cells, dice);
}

fn reads<R: Reclaim>(writer: &mut Writer<'_, Owned, R, Flaky>, cells: &Cells, dice: &mut Dice) {
    let n = cells.0.len();
    let cell = dice.roll(n);
    let index = cell as Index * CELL + dice.roll(CELL);
    let (start, end) = cells.run(cell);
    assert_eq!(writer.load(index).copied(), cells.0[cell]);
    let held = cells.0[cell].map(|value| (cells.range(start, end), value));
    assert_eq!(writer.lookup(index).map(|(range, value)| (range, *value)), held);

    let limit = (cell + dice.roll(8)).min(n - 1);
    let entry = |cell: usize| -> (RangeInclusive<Index>, u64) {
        let (start, end) = cells.run(cell);
        (cells.range(start, end), cells.0[cell].unwrap())
    };
    let bounds = cells.range(cell, limit);
    let expected = (cell..=limit).find(|&cell| cells.0[cell].is_some()).map(entry);
    let found = writer.find(bounds.clone()).map(|(range, value)| (range, *value));
    assert_eq!(found, expected);
    let expected = (cell..=limit).rev().find(|&cell| cells.0[cell].is_some()).map(entry);
    let found = writer.find_rev(bounds.clone()).map(|(range, value)| (range, *value));
    assert_eq!(found, expected);

    // A cursor from here to the limit and back.
    let limit = *bounds.end();
    let mut cursor = writer.cursor(index);
    let after = (end + 1..n).find(|&cell| cells.0[cell].is_some()).map(entry);
    let after = after.filter(|(range, _)| *range.start() <= limit);
    assert_eq!(cursor.next(limit).map(|(range, value)| (range, *value)), after);
    cursor.set(index);
    let before = (0..start).rev().find(|&cell| cells.0[cell].is_some()).map(entry);
    assert_eq!(cursor.prev(0).map(|(range, value)| (range, *value)), before);
}

fn run<R: Reclaim>(
    seed: u64,
    cells: usize,
    steps: usize,
    write: impl Fn(&mut Tree<R>, &mut dyn FnMut(&mut Writer<'_, Owned, R, Flaky>)),
) {
    let mut dice = Dice(seed);
    let mut cells = Cells::new(cells);
    let mut tree = Tree::<R>::new_in();
    for value in 0..steps as u64 {
        write(&mut tree, &mut |writer| {
            step(writer, &mut cells, &mut dice, value);
            if value.is_multiple_of(EVERY) {
                check(writer, &cells);
            }
        });
    }
}

#[test]
fn one_owner() {
    let (nodes, entries) = (Flaky::live(), Owned::live());
    for seed in 1..=SEEDS {
        run::<Single>(seed, CELLS, STEPS, |tree, work| work(&mut tree.get_mut()));
    }
    // Freed at once: nothing may leak or be freed twice.
    assert_eq!((Flaky::live(), Owned::live()), (nodes, entries));
}

#[test]
fn shared_writer() {
    for seed in 11..11 + SEEDS {
        run::<Epoch>(seed, CELLS, STEPS, |tree, work| work(&mut tree.lock()));
    }
}

#[test]
fn shared_tree_borrowed_alone() {
    run::<Epoch>(21, CELLS, STEPS, |tree, work| work(&mut tree.get_mut()));
}

/// Every implementation of the search and of changes of nodes that this CPU supports: AVX-512,
/// AVX2, scalar.
#[test]
#[cfg_attr(miri, ignore = "Miri knows no vectors: all else runs without")]
fn each_kind_of_vectors() {
    for kind in 0..KINDS {
        with_vectors(kind, || {
            run::<Single>(31, CELLS, STEPS, |tree, work| work(&mut tree.get_mut()));
            run::<Epoch>(32, CELLS, STEPS, |tree, work| work(&mut tree.lock()));
        });
    }
}

#[test]
#[cfg_attr(miri, ignore = "long")]
fn a_large_tree() {
    for kind in 0..KINDS {
        with_vectors(kind, || {
            large(Tree::<Single>::new_in().get_mut(), 77 + u64::from(kind));
            large(Tree::<Epoch>::new_in().lock(), 87 + u64::from(kind));
        });
    }
}

/// At least three levels, so that gaps are updated above the leaf's parent.
fn large<R: Reclaim>(mut writer: Writer<'_, Owned, R, Flaky>, seed: u64) {
    let mut dice = Dice(seed);
    let mut cells = Cells::new(6000);
    for value in 0..12_000 {
        step(&mut writer, &mut cells, &mut dice, value);
        if value % 250 == 0 {
            check(&mut writer, &cells);
        }
    }
    check(&mut writer, &cells);
}
