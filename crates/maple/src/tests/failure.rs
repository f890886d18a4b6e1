//! Every allocation of a write fails once; the tree must be as it was before (I7).

use super::{Cells, Dice, Tree, check};
use crate::testing::{Flaky, Owned};
use crate::{Error, Writer};
use grace::{Epoch, Reclaim, Single};

const CELLS: usize = if cfg!(miri) { 24 } else { 120 };
const STEPS: usize = if cfg!(miri) { 12 } else { 300 };

/// Lets the first, the second, ... allocation of a write fail until the write succeeds.
fn one<R: Reclaim>(
    writer: &mut Writer<'_, Owned, R, Flaky>,
    cells: &Cells,
    mut write: impl FnMut(&mut Writer<'_, Owned, R, Flaky>) -> Result<(), Error>,
) -> usize {
    for n in 0.. {
        let entries = Owned::live();
        match Flaky::failing_after(n, || write(writer)) {
            Ok(()) => return n,
            Err(error) => {
                assert_eq!(error, Error::OutOfMemory);
                check(writer, cells);
                // At most one spare duplicate may be kept for the next try.
                assert!(Owned::live() - entries <= 1);
            }
        }
    }
    unreachable!()
}

fn run<R: Reclaim>(
    seed: u64,
    mut lock: impl FnMut(&mut Tree<R>, &mut dyn FnMut(&mut Writer<'_, Owned, R, Flaky>)),
) -> usize {
    let mut dice = Dice(seed);
    let mut cells = Cells::new(CELLS);
    let mut tree = Tree::<R>::new_in();
    let mut failures = 0;
    for value in 0..STEPS as u64 {
        let from = dice.roll(CELLS);
        let longest = if dice.roll(8) == 0 { CELLS } else { 3 };
        let to = (from + dice.roll(longest)).min(CELLS - 1);
        let range = cells.range(from, to);
        let kind = dice.roll(6);
        lock(&mut tree, &mut |writer| {
            failures += match kind {
                0..=2 => one(writer, &cells, |writer| {
                    let entries = Owned::live();
                    writer.store_range(range.clone(), Owned::new(value)).map_err(|refused| {
                        assert_eq!(refused.entry, Owned::new(value));
                        assert!(Owned::live() > entries);
                        refused.error
                    })
                }),
                3 => one(writer, &cells, |writer| writer.erase_range(range.clone())),
                4 => one(writer, &cells, |writer| writer.erase(*range.start()).map(drop)),
                _ => {
                    let copies = one(writer, &cells, |writer| {
                        let mut copy = writer.duplicate()?;
                        check(&mut copy.get_mut(), &cells);
                        Ok(())
                    });
                    copies
                        + one(writer, &cells, |writer| {
                            writer.preallocate(range.clone())?;
                            Flaky::failing_after(0, || writer.erase_range(range.clone())).unwrap();
                            Ok(())
                        })
                }
            };
            match kind {
                0..=2 => cells.set(from, to, Some(value)),
                4 => {
                    let (start, end) = cells.run(from);
                    cells.set(start, end, None);
                }
                _ => cells.set(from, to, None),
            }
            check(writer, &cells);
        });
    }
    failures
}

#[test]
fn one_owner() {
    let (nodes, entries) = (Flaky::live(), Owned::live());
    let failures = run::<Single>(5, |tree, work| work(&mut tree.get_mut()));
    assert!(failures > STEPS / 4, "only {failures} failures met");
    assert_eq!((Flaky::live(), Owned::live()), (nodes, entries));
}

#[test]
fn beside_readers() {
    let failures = run::<Epoch>(6, |tree, work| work(&mut tree.lock()));
    assert!(failures > STEPS / 2, "only {failures} failures met");
}

/// A move is a store and an erase. With the nodes of both preallocated, neither can fail.
fn moves<R: Reclaim>(
    seed: u64,
    mut lock: impl FnMut(&mut Tree<R>, &mut dyn FnMut(&mut Writer<'_, Owned, R, Flaky>)),
) {
    let mut dice = Dice(seed);
    let mut cells = Cells::new(CELLS);
    let mut tree = Tree::<R>::new_in();
    for step in 0..if cfg!(miri) { 4 } else { STEPS as u64 } {
        let value = 3 * step;
        let (to, from) = (dice.roll(CELLS), dice.roll(CELLS));
        let (start, end) = cells.run(from);
        lock(&mut tree, &mut |writer| {
            writer.preallocate_writes(2).unwrap();
            let moved = Owned::new(value);
            Flaky::failing_after(0, || {
                writer.store_range(cells.range(to, to), moved).unwrap();
                writer.erase_range(cells.range(start, end)).unwrap();
            });
            cells.set(to, to, Some(value));
            cells.set(start, end, None);
            // Refill, otherwise the tree would stay empty.
            for value in value + 1..=value + 2 {
                let at = dice.roll(CELLS);
                writer.store_range(cells.range(at, at), Owned::new(value)).unwrap();
                cells.set(at, at, Some(value));
            }
            check(writer, &cells);
        });
    }
}

#[test]
fn two_writes_allocated_ahead_cannot_fail() {
    moves::<Single>(7, |tree, work| work(&mut tree.get_mut()));
    moves::<Epoch>(8, |tree, work| work(&mut tree.lock()));
}

#[test]
fn the_entry_at_a_preallocated_index_can_be_erased() {
    let n = if cfg!(miri) { 3 } else { 200 };
    for (from, step) in [(0, 1), (n - 1, n - 1), (n / 2, 7)] {
        let tree = Tree::<Epoch>::new_in();
        let mut writer = tree.lock();
        for i in 0..n {
            writer.store_range(20 * i..=20 * i + 9, Owned::new(i as u64)).unwrap();
        }
        for i in 0..n {
            let entry = (from + i * step) % n;
            let index = 20 * entry + 4;
            writer.preallocate(index..=index).unwrap();
            let erased = Flaky::failing_after(0, || writer.erase(index)).unwrap();
            assert!(erased.is_none_or(|(range, _)| range == (20 * entry..=20 * entry + 9)));
        }
        writer.validate().unwrap();
    }
}

/// A wide leaf whose contents fit a narrow one by now: preallocated memory suffices for every
/// write.
#[test]
fn preallocated_for_every_form_of_leaf() {
    const SIZE: crate::Index = 0x1000_0000;
    for entries in (10..18).step_by(if cfg!(miri) { 3 } else { 1 }) {
        let tree = super::Tree::<Epoch>::new_in();
        let mut writer = tree.lock();
        let far = 0x100_0000_0000;
        for i in 0..if cfg!(miri) { 20 } else { 40 } {
            writer
                .store_range(far + i * SIZE..=far + i * SIZE + (SIZE - 1), Owned::new(9))
                .unwrap();
        }
        let base = 0x10_0000_0000;
        for i in 0..entries {
            // One bound is odd, until it is overwritten.
            let (low, high) = (7 * crate::Index::from(i == 5), 7 * crate::Index::from(i == 4));
            let range = base + i * SIZE + low..=base + (i + 1) * SIZE + high - 1;
            writer.store_range(range, Owned::new(i as u64)).unwrap();
        }
        let range = base + 4 * SIZE + SIZE / 2..=base + 5 * SIZE + SIZE / 2 - 1;
        writer.preallocate(range.clone()).unwrap();
        Flaky::failing_after(0, || writer.store_range(range, Owned::new(77))).unwrap();
        writer.validate().unwrap();
    }
}
