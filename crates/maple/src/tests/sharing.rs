//! Trees that share nodes with their duplicates: no tree sees the writes of another, and nothing is
//! lost or freed twice.

use super::{CELL, Cells, Dice};
use crate::Index;
use crate::testing::Flaky;
use crate::{Error, MapleTree, RefCounted, Writer};
use grace::{Epoch, Reclaim, Single};
use std::cell::Cell;
use std::vec::Vec;

std::thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
}

/// A value that counts its instances.
struct Value(u64);

impl Value {
    fn entry(value: u64) -> RefCounted<Value> {
        LIVE.set(LIVE.get() + 1);
        RefCounted::new(Value(value)).unwrap_or_else(|_| panic!("there is memory"))
    }
}

impl Drop for Value {
    fn drop(&mut self) {
        LIVE.set(LIVE.get() - 1);
    }
}

type Tree<R> = MapleTree<RefCounted<Value>, R, Flaky>;
type Write<'w, R> = Writer<'w, RefCounted<Value>, R, Flaky>;

fn check<R: Reclaim>(writer: &Write<'_, R>, cells: &Cells) {
    writer.validate().unwrap();
    let found: Vec<_> =
        writer.iter(0..=Index::MAX).map(|(range, value)| (range, value.get().0)).collect();
    assert_eq!(found, cells.entries(), "\n{}", writer.dump());
}

/// One random write, sometimes with too little memory; then nothing may have changed.
fn step<R: Reclaim>(writer: &mut Write<'_, R>, cells: &mut Cells, dice: &mut Dice, value: u64) {
    let n = cells.0.len();
    let from = dice.roll(n);
    let longest = if dice.roll(12) == 0 { n } else { 4 };
    let to = (from + dice.roll(longest)).min(n - 1);
    let range = cells.range(from, to);
    let budget = if dice.roll(3) == 0 { dice.roll(6) } else { usize::MAX };
    match dice.roll(5) {
        0 | 1 => {
            let outcome = Flaky::failing_after(budget, || {
                writer.store_range(range, Value::entry(value)).map_err(|refused| refused.error)
            });
            match outcome {
                Ok(()) => cells.set(from, to, Some(value)),
                Err(error) => assert_eq!(error, Error::OutOfMemory),
            }
        }
        2 => match Flaky::failing_after(budget, || writer.erase_range(range)) {
            Ok(()) => cells.set(from, to, None),
            Err(error) => assert_eq!(error, Error::OutOfMemory),
        },
        3 => {
            let index = from as Index * CELL + dice.roll(CELL);
            let (start, end) = cells.run(from);
            match Flaky::failing_after(budget, || writer.erase(index)) {
                Ok(erased) => {
                    assert_eq!(erased.map(|(_, entry)| entry.get().get().0), cells.0[from]);
                    cells.set(start, end, None);
                }
                Err(error) => assert_eq!(error, Error::OutOfMemory),
            }
        }
        _ => {
            if Flaky::failing_after(budget, || writer.preallocate(range.clone())).is_ok() {
                let stored = Flaky::failing_after(0, || {
                    writer.store_range(range, Value::entry(value)).is_ok()
                });
                assert!(stored);
                cells.set(from, to, Some(value));
            }
        }
    }
}

const SEEDS: u64 = if cfg!(miri) { 1 } else { 4 };

/// Several trees that are duplicated from each other and dropped; `write` writes to each.
fn family<R: Reclaim>(
    seed: u64,
    write: impl Fn(&mut Tree<R>, &mut dyn FnMut(&mut Write<'_, R>)),
    duplicate: impl Fn(&mut Tree<R>) -> Tree<R>,
) {
    let (size, steps) = if cfg!(miri) { (24, 60) } else { (150, 3000) };
    let mut dice = Dice(seed);
    let mut trees: Vec<(Tree<R>, Cells)> = std::vec![(Tree::new_in(), Cells::new(size))];
    for value in 0..steps {
        let at = dice.roll(trees.len());
        match dice.roll(20) {
            0 if trees.len() < 6 => {
                let copy = duplicate(&mut trees[at].0);
                let cells = trees[at].1.clone();
                trees.push((copy, cells));
            }
            1 if trees.len() > 1 => drop(trees.swap_remove(at)),
            _ => {
                let (tree, cells) = &mut trees[at];
                write(tree, &mut |writer| step(writer, cells, &mut dice, value));
            }
        }
        if value % 8 == 0 {
            for (tree, cells) in &mut trees {
                write(tree, &mut |writer| check(writer, cells));
            }
        }
    }
}

#[test]
fn with_one_owner_each() {
    let before = (Flaky::live(), LIVE.get());
    for seed in 1..=SEEDS {
        let duplicate = |tree: &mut Tree<Single>| tree.get_mut().duplicate().unwrap();
        family(seed, |tree, work| work(&mut tree.get_mut()), duplicate);
    }
    assert_eq!((Flaky::live(), LIVE.get()), before, "nodes and entries that are left");
}

#[test]
fn beside_readers() {
    for seed in 11..11 + SEEDS {
        family::<Epoch>(
            seed,
            |tree, work| work(&mut tree.lock()),
            |tree| tree.duplicate().unwrap(),
        );
    }
}

#[test]
fn owned_alone_and_shared_in_turn() {
    family::<Epoch>(21, |tree, work| work(&mut tree.get_mut()), |tree| tree.duplicate().unwrap());
}

#[test]
fn a_duplicate_allocates_nothing_and_the_first_write_its_way() {
    let n = if cfg!(miri) { 60 } else { 5000 };
    let mut tree = Tree::<Single>::new_in();
    for i in 0..n {
        tree.get_mut().store_range(i * 20..=i * 20 + 9, Value::entry(i as u64)).unwrap();
    }
    let before = Flaky::live();
    let mut copy = Flaky::failing_after(0, || tree.get_mut().duplicate()).unwrap();
    assert_eq!(Flaky::live(), before);
    copy.get_mut().store_range(0..=9, Value::entry(7)).unwrap();
    assert!(Flaky::live() - before <= 1 + copy.height() as isize);
    assert_eq!(tree.load(&tree.pin(), 5).unwrap().get().0, 0);
    assert_eq!(copy.load(&copy.pin(), 5).unwrap().get().0, 7);
    // After the first write the nodes on the path belong to the copy alone.
    let before = Flaky::live();
    copy.get_mut().store_range(0..=9, Value::entry(8)).unwrap();
    assert_eq!(Flaky::live(), before);
    // After the copy is dropped, the nodes on the path belong to the original alone.
    drop(copy);
    tree.get_mut().store_range(0..=9, Value::entry(9)).unwrap();
    assert_eq!(tree.load(&tree.pin(), 5).unwrap().get().0, 9);
}

/// An entry alone in its leaf, with a hole at the end of the leaf before. The erase affects a leaf
/// that is at neither end of the replaced range, and that may be shared even if the others are not.
#[test]
fn alone_in_a_leaf_between_holes() {
    let page = |i: Index| i * CELL..=i * CELL + (CELL - 1);
    let before = (Flaky::live(), LIVE.get());
    let mut tree = Tree::<Single>::new_in();
    let mut writer = tree.get_mut();
    for i in (1000..1100).chain([998]).chain((980..998).rev()).chain([999]) {
        writer.store_range(page(i), Value::entry(i as u64)).unwrap();
    }
    for i in [998, 1000] {
        writer.erase(i * CELL).unwrap().unwrap();
    }
    let mut copy = writer.duplicate().unwrap();
    for i in [985, 1005] {
        writer.store_range(page(i), Value::entry(1)).unwrap();
    }
    let (_, erased) = writer.erase(999 * CELL).unwrap().unwrap();
    let entry = erased.into_inner().ok().unwrap();
    // One reference is ours, and one is the copy's.
    assert!(RefCounted::into_inner(entry).is_none());
    assert_eq!(copy.get_mut().load(999 * CELL).unwrap().get().0, 999);
    writer.validate().unwrap();
    copy.get_mut().validate().unwrap();
    drop(writer);
    drop((tree, copy));
    assert_eq!((Flaky::live(), LIVE.get()), before);
}
