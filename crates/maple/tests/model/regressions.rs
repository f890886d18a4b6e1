//! Regression tests: faults that other tests found.

use crate::family;
use crate::ledger::{Item, Ledger, Pool, with_budget};
use crate::script::{Cells, Event, Hold, Op, Scale, Session};
use grace::{Epoch, Single};
use maple::{Index, MapleTree};
use std::sync::Arc;

/// A duplicate that was preallocated for an entry must not serve another entry at the same address,
/// after the first entry was dropped.
#[test]
fn a_duplicate_made_ahead_does_not_outlive_its_source() {
    let ledger = Arc::<Ledger>::default();
    let mut tree = MapleTree::<Item, Single, Pool>::new_in();
    for value in 0..100 {
        let mut writer = tree.get_mut();
        writer.store_range(0..=99, Item::new(&ledger, value)).unwrap();
        writer.preallocate(40..=59).unwrap();
        writer.clear();
        // The allocation most likely gets the address of the first entry.
        writer.store_range(0..=99, Item::new(&ledger, value + 1000)).unwrap();
        writer.store_range(40..=59, Item::new(&ledger, 7)).unwrap();
        for index in [0, 39, 60, 99] {
            assert_eq!(writer.load(index).map(|item| item.value()), Some(value + 1000), "{index}");
        }
        writer.clear();
    }
    drop(tree);
    assert_eq!((ledger.live(), ledger.twice()), (0, 0));
}

/// A preallocation must suffice for every way to carry out the write. The fault: it provided one
/// leaf for two leaves that would fit into one, although one of them loses its border.
#[test]
fn allocated_ahead_for_leaves_that_fit_into_one() {
    for seed in 0..200 {
        let ledger = Arc::<Ledger>::default();
        let entry = |i: Index| i * 20..=i * 20 + 9;
        let tree = MapleTree::<Item<true>, Epoch, Pool>::new_in();
        let mut writer = tree.lock();
        for i in 0..20 {
            writer.store_range(entry(i), Item::new(&ledger, i as u64)).unwrap();
        }
        // A different set is left each time.
        for i in (0..20).filter(|i| (i * i + seed) % 7 < seed % 4) {
            writer.erase_range(entry(i)).unwrap();
        }
        let left: Vec<_> = writer.iter(0..=Index::MAX).map(|(range, _)| range).collect();
        for range in left {
            let copy = writer.duplicate().unwrap();
            let mut copy = copy.lock();
            copy.preallocate(range.clone()).unwrap();
            with_budget(Some(0), || copy.erase_range(range.clone())).unwrap();
            assert!(copy.find(range).is_none());
        }
    }
}

/// Erases an entry that is alone in its leaf, between leaves that end and begin with holes. The
/// leaf goes as a whole, but the duplicate still has it. Needs small nodes.
#[test]
fn a_shared_leaf_between_holes() {
    let cells = |from, more, trim| Cells { from, more, trim: (trim, trim) };
    let session =
        |ops| (0, Event::Session(Session { hold: Hold::Alone, ops, reader: (None, Vec::new()) }));
    family::alone(
        Scale(12),
        &[
            session(vec![
                Op::Store(cells(260, 0, false)),
                Op::Insert(cells(256, 1, false)),
                Op::Insert(cells(6, 0, false)),
                Op::InsertHole(cells(213, 44, true), 19, false),
                Op::Erase(256),
                Op::InsertHole(cells(0, 255, true), 188, false),
            ]),
            (0, Event::Duplicate),
            session(vec![Op::Store(cells(255, 0, false)), Op::Drain(cells(1, 253, false), false)]),
        ],
    );
}
