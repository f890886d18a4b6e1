//! Writes near the last one, which reuse its path, after everything that may have changed the path.
//!
//! With debug assertions each such write also descends, and compares (`write/leaf/finger.rs`).

use super::{CELL, Cells, Dice, longest_hole};
use crate::Index;
use crate::testing::Flaky;
use crate::{Error, MapleTree, Writer};
use grace::{Epoch, Reclaim, Single};
use std::vec::Vec;

const CELLS: usize = if cfg!(miri) { 40 } else { 400 };
const STEPS: usize = if cfg!(miri) { 60 } else { 2000 };
const SEEDS: u64 = if cfg!(miri) { 1 } else { 4 };

type Write<'w, R> = Writer<'w, u32, R, Flaky>;

fn found<R: Reclaim>(writer: &Write<'_, R>) -> Vec<(std::ops::RangeInclusive<Index>, u64)> {
    writer.validate().unwrap();
    writer.iter(0..=Index::MAX).map(|(range, value)| (range, value.into())).collect()
}

/// Moves an end, in the tree and in the cells.
fn slide<R: Reclaim>(
    writer: &mut Write<'_, R>,
    cells: &mut Cells,
    from: usize,
    to: usize,
) -> Result<(), Error> {
    let Some(value) = cells.0[from] else {
        assert_eq!(writer.set_end(from as Index * CELL, to as Index * CELL), Ok(None));
        return Ok(());
    };
    let (first, last) = cells.run(from);
    let next = cells.0.get(to + 1).copied().flatten();
    // Two touching entries with the same value would be one run of cells.
    if next == Some(value) && to > last {
        return Ok(());
    }
    let way = (last + 1..=to).find(|&cell| cells.0[cell].is_some());
    let end = *cells.range(to, to).end();
    let moved = writer.set_end(from as Index * CELL + 1, end);
    if to < first {
        assert_eq!(moved, Err(Error::EmptyRange));
    } else if let Some(way) = way {
        assert!(cells.0[way] == Some(value) || matches!(moved, Err(Error::Occupied { .. })));
    } else {
        assert_eq!(moved?, Some(cells.range(first, to)));
        cells.set(first, last, None);
        cells.set(first, to, Some(value));
    }
    Ok(())
}

/// Many writes, most of them near the one before. Sometimes memory runs out; then nothing may have
/// changed.
fn run<R: Reclaim>(writer: &mut Write<'_, R>, cells: &mut Cells, dice: &mut Dice, steps: usize) {
    let n = cells.0.len();
    // No two entries with the same value.
    let (mut at, mut value) = (0, *cells.0.iter().flatten().max().unwrap_or(&0) as u32);
    let mut copies = Vec::new();
    for _ in 0..steps {
        at = if dice.roll(6) == 0 {
            dice.roll(n)
        } else {
            (at + dice.roll(5)).saturating_sub(1) % n
        };
        let to = (at + dice.roll(3)).min(n - 1);
        let range = cells.range(at, to);
        let budget = if dice.roll(8) == 0 { dice.roll(3) } else { usize::MAX };
        value += 1;
        let free = cells.0[at..=to].iter().all(Option::is_none);
        let done = Flaky::failing_after(budget, || match dice.roll(24) {
            0..8 => match writer.insert_range(range, value).map_err(|refused| refused.error) {
                Err(Error::Occupied { .. }) => {
                    assert!(!free);
                    Ok(())
                }
                done => done.map(|()| {
                    assert!(free);
                    cells.set(at, to, Some(value.into()));
                }),
            },
            8..11 => writer
                .store_range(range, value)
                .map(|()| cells.set(at, to, Some(value.into())))
                .map_err(|refused| refused.error),
            11..17 => slide(writer, cells, at, to),
            17..19 => writer.erase(at as Index * CELL).map(|erased| {
                assert_eq!(erased.is_some(), cells.0[at].is_some());
                if erased.is_some() {
                    let (first, last) = cells.run(at);
                    cells.set(first, last, None);
                }
            }),
            19 | 20 => writer.erase_range(range).map(|()| cells.set(at, to, None)),
            21 => writer.preallocate(range),
            22 => writer.duplicate().map(|copy| copies.push((copy, cells.clone()))),
            _ => {
                if dice.roll(STEPS / 4) == 0 {
                    writer.clear();
                    cells.set(0, n - 1, None);
                }
                Ok(())
            }
        });
        assert!(matches!(done, Ok(()) | Err(Error::OutOfMemory)), "{done:?}");
    }
    assert_eq!(found(writer), cells.entries(), "\n{}", writer.dump());
    assert_eq!(writer.largest_gap(), longest_hole(&cells.runs()));
    for (mut copy, cells) in copies {
        assert_eq!(found(&copy.get_mut()), cells.entries(), "a duplicate has changed");
    }
}

#[test]
fn writes_near_the_last_one() {
    for seed in 1..=SEEDS {
        let mut dice = Dice(seed * 0x9e37_79b9);
        let (mut own, mut cells) = (MapleTree::<u32, Single, Flaky>::new_in(), Cells::new(CELLS));
        run(&mut own.get_mut(), &mut cells, &mut dice, STEPS);
        let (mut tree, mut cells) = (MapleTree::<u32, Epoch, Flaky>::new_in(), Cells::new(CELLS));
        for _ in 0..4 {
            run(&mut tree.lock(), &mut cells, &mut dice, STEPS / 4);
            run(&mut tree.get_mut(), &mut cells, &mut dice, STEPS / 4);
        }
    }
}

/// Runs upwards and downwards, at the end of the index range and in the middle, with and without
/// holes between the entries. Each entry is made longer and shorter after its insertion.
#[test]
fn runs_side_by_side() {
    const N: Index = if cfg!(miri) { 30 } else { 600 };
    fn fill<R: Reclaim>(writer: &mut Write<'_, R>, up: bool, width: Index) {
        for i in 0..N {
            let start = 10 * (if up { i } else { N - i }) * CELL;
            let end = start + width * CELL - 1;
            writer.insert_range(start..=end, i as u32).unwrap();
            if width < 9 {
                assert_eq!(writer.set_end(start, end + CELL), Ok(Some(start..=end + CELL)));
                assert_eq!(writer.set_end(start, end), Ok(Some(start..=end)));
            }
            assert_eq!(writer.load(end), Some(i as u32));
        }
        writer.validate().unwrap();
        assert_eq!(writer.stats().entries, N as usize);
    }
    for up in [true, false] {
        for &width in if cfg!(miri) { &[1, 10][..] } else { &[1, 8, 10] } {
            let mut own = MapleTree::<u32, Single, Flaky>::new_in();
            fill(&mut own.get_mut(), up, width);
            let tree = MapleTree::<u32, Epoch, Flaky>::new_in();
            // An entry beyond the run, so that the hole that is filled is not the one at the very
            // end.
            tree.lock().insert_range(100 * N * CELL..=Index::MAX, u32::MAX).unwrap();
            tree.lock().erase_range(200 * N * CELL..=Index::MAX).unwrap();
            let mut writer = tree.lock();
            for i in 0..N {
                let start = 10 * (if up { i } else { N - i }) * CELL;
                writer.insert_range(start..=start + width * CELL - 1, i as u32).unwrap();
            }
            writer.validate().unwrap();
            assert_eq!(writer.stats().entries, N as usize + 1);
        }
    }
}
