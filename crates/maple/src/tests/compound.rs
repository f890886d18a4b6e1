//! Transactions and other writes of several steps.

use super::Dice;
use crate::Index;
use crate::testing::{Flaky, Owned};
use crate::{Error, MapleTree, Writer};
use grace::{Concurrent, Epoch, Reclaim, Single};
use std::collections::BTreeMap;
use std::vec::Vec;

const STEPS: usize = if cfg!(miri) { 6 } else { 600 };
type Tree<R> = MapleTree<u32, R, Flaky>;

/// Writes at random, to the tree and to the model.
fn write<R: Reclaim>(writer: &mut Writer<'_, u32, R, Flaky>, model: &mut [u32], dice: &mut Dice) {
    let first = dice.roll(model.len());
    let last = (first + dice.roll(40)).min(model.len() - 1);
    let value = dice.roll(3) as u32;
    if value == 0 {
        writer.erase_range(first as Index..=last as Index).unwrap();
    } else {
        writer.store_range(first as Index..=last as Index, value).unwrap();
    }
    model[first..=last].fill(value);
}

fn check<R: Reclaim>(writer: &Writer<'_, u32, R, Flaky>, model: &[u32]) {
    writer.validate().unwrap();
    for (index, &value) in model.iter().enumerate().step_by(if cfg!(miri) { 37 } else { 1 }) {
        assert_eq!(writer.load(index as Index).unwrap_or(0), value, "at {index}");
    }
}

/// Transactions that succeed, fail, or run out of memory, between single writes, with a duplicate
/// that must not change.
fn transactions<R: Reclaim>(mut with: impl FnMut(&mut dyn FnMut(&mut Writer<'_, u32, R, Flaky>))) {
    let mut dice = Dice(5);
    let mut model = [0; 500];
    for step in 0..STEPS {
        with(&mut |writer| {
            for _ in 0..dice.roll(3) {
                write(writer, &mut model, &mut dice);
            }
            let before = writer.duplicate().unwrap();
            let frozen = model;
            let mut next = model;
            let outcome = match step % 3 {
                0 => writer.transaction(|version| {
                    for _ in 0..dice.roll(6) {
                        write(version, &mut next, &mut dice);
                    }
                    Ok(())
                }),
                1 => writer.transaction(|version| {
                    for _ in 0..dice.roll(6) {
                        write(version, &mut next, &mut dice);
                    }
                    Err(Error::NoSpace)
                }),
                _ => Flaky::failing_after(dice.roll(6), || {
                    writer.transaction(|version| {
                        version.store_range(7..=9, 3)?;
                        version.erase_range(300..=310)?;
                        version.store_range(450..=499, 4).map_err(Error::from)
                    })
                })
                .inspect(|()| {
                    next[7..=9].fill(3);
                    next[300..=310].fill(0);
                    next[450..=499].fill(4);
                }),
            };
            match outcome {
                Ok(()) => model = next,
                Err(error) => assert_eq!(error == Error::NoSpace, step % 3 == 1),
            }
            check(writer, &model);
            let mut before = before;
            check(&before.get_mut(), &frozen);
        });
    }
}

#[test]
fn a_transaction_happens_or_not() {
    let before = Flaky::live();
    let mut tree = Tree::<Single>::new_in();
    transactions(|f| f(&mut tree.get_mut()));
    drop(tree);
    assert_eq!(Flaky::live(), before);
    let tree = Tree::<Epoch>::new_in();
    transactions(|f| f(&mut tree.lock()));
}

/// Without shared nodes, a transaction works on a copy of everything.
#[test]
fn a_transaction_copies_entries_that_are_not_shared() {
    let live = Owned::live();
    let mut tree = MapleTree::<Owned, Single, Flaky>::new_in();
    let mut writer = tree.get_mut();
    for i in 0..30 {
        writer.store_range(i * 10..=i * 10 + 5, Owned::new(i as u64)).unwrap();
    }
    let failed = writer.transaction(|version| {
        version.erase_range(0..=100)?;
        Err::<(), _>(Error::NoSpace)
    });
    assert_eq!((failed, writer.iter(0..=Index::MAX).count()), (Err(Error::NoSpace), 30));
    writer.transaction(|version| version.erase_range(0..=99)).unwrap();
    assert_eq!((writer.iter(0..=Index::MAX).count(), Owned::live()), (20, live + 20));
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        writer.transaction(|version| -> Result<(), Error> {
            version.clear();
            panic!("in a transaction")
        })
    }));
    assert!(panics.is_err());
    writer.validate().unwrap();
    assert_eq!((writer.iter(0..=Index::MAX).count(), Owned::live()), (20, live + 20));
    drop(writer);
    drop(tree);
    assert_eq!(Owned::live(), live);
}

/// Readers on other threads see both entries at their places, or at the swapped ones.
#[test]
fn readers_see_a_transaction_whole() {
    fn swap<R: Concurrent>(tree: &MapleTree<u32, R>, turn: usize) {
        let (one, two) = if turn.is_multiple_of(2) { (2, 1) } else { (1, 2) };
        tree.lock()
            .transaction(|version| {
                version.store_range(10..=19, one)?;
                version.store_range(90_000..=90_009, two).map_err(Error::from)
            })
            .unwrap();
    }
    let tree = MapleTree::<u32, Epoch>::new();
    let entries = if cfg!(miri) { 40 } else { 200 };
    for i in 0..entries {
        tree.store_range(i * 1_000 + 500..=i * 1_000 + 600, 7).unwrap();
    }
    swap(&tree, 1);
    let turns = if cfg!(miri) { 6 } else { 2_000 };
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = BTreeMap::new();
            for _ in 0..turns {
                let guard = tree.pin();
                let ours = tree.iter(&guard, 0..=Index::MAX).filter(|one| one.1 < 3);
                let pair = ours.map(|(_, value)| value).collect::<Vec<_>>();
                assert!(pair == [1, 2] || pair == [2, 1], "{pair:?}");
                *seen.entry(pair).or_insert(0) += 1;
            }
        });
        for turn in 0..turns {
            swap(&tree, turn);
        }
        reader.join().unwrap();
    });
    tree.validate().unwrap();
}

#[test]
fn merged_stores_and_retained_entries() {
    let mut dice = Dice(9);
    let mut tree = Tree::<Single>::new_in();
    let mut writer = tree.get_mut();
    let mut model = [0u32; 300];
    for _ in 0..STEPS {
        let first = dice.roll(model.len());
        let last = (first + dice.roll(20)).min(model.len() - 1);
        let value = 1 + dice.roll(2) as u32;
        model[first..=last].fill(value);
        let (first, last) = (first as Index, last as Index);
        let stored = writer.store_merged(first..=last, value, |old| old == value).unwrap();
        assert!(stored.contains(&first) && stored.contains(&last));
        // No two equal neighbours touch.
        let all = writer.iter(0..=Index::MAX).collect::<Vec<_>>();
        for pair in all.windows(2) {
            assert!(pair[0].1 != pair[1].1 || pair[0].0.end() + 1 < *pair[1].0.start());
        }
        check(&writer, &model);
        if dice.roll(20) == 0 {
            let erased = writer.retain(0..=99, |_, old| old == 2).unwrap();
            let gone = all.iter().filter(|one| *one.0.start() < 100 && one.1 == 1);
            assert_eq!(erased, gone.clone().count());
            gone.for_each(|one| model[*one.0.start() as usize..=*one.0.end() as usize].fill(0));
            check(&writer, &model);
        }
    }
    #[allow(clippy::reversed_empty_ranges)]
    let empty = 1..=0;
    assert_eq!(writer.store_merged(empty, 5, |_| true).unwrap_err().error, Error::EmptyRange);
    assert_eq!(writer.update(299, |old| old + 10).unwrap().is_some(), model[299] != 0);
    writer.store_range(Index::MAX..=Index::MAX, 3).unwrap();
    assert_eq!(writer.store_merged(0..=Index::MAX, 5, |_| true).unwrap(), 0..=Index::MAX);
}
