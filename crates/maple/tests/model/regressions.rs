//! Faults that were found once, each as a plain test.

use crate::ledger::{Item, Ledger, Pool};
use grace::Single;
use maple::MapleTree;
use std::sync::Arc;

/// A duplicate made ahead for an entry must not serve another one that came to lie at the same address
/// after the first was dropped.
#[test]
fn a_duplicate_made_ahead_does_not_outlive_its_source() {
    let ledger = Arc::<Ledger>::default();
    let mut tree = MapleTree::<Item, Single, Pool<8>>::new_in();
    for value in 0..100 {
        let mut writer = tree.get_mut();
        writer.store_range(0..=99, Item::new(&ledger, value)).unwrap();
        writer.preallocate(40..=59).unwrap();
        writer.clear();
        // Most likely where the first one was.
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
