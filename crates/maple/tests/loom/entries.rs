//! Entries that need a drop, and nodes whose memory is reused.

use crate::engine::{Counting, Right};
use crate::memory::{self, Canary, Pool};
use crate::{model, touching};
use loom::sync::Arc;
use loom::thread;
use maple::MapleTree;

type Canaries = MapleTree<Canary, Counting<Right>, Pool<false>>;

fn canaries(n: usize) -> Canaries {
    let mut tree = Canaries::new_in();
    for i in 0..n {
        tree.get_mut().store_range(i * 10..=i * 10 + 9, Canary::new(i as u32 + 1)).unwrap();
    }
    tree
}

fn concurrently(write: fn(&Canaries)) {
    model(move || {
        let tree = Arc::new(canaries(3));
        let writer = {
            let tree = tree.clone();
            thread::spawn(move || write(&tree))
        };
        {
            let guard = tree.pin();
            let first = tree.load(&guard, 12);
            assert_eq!(tree.load(&guard, 2).unwrap().value(), 1);
            // A late read under the guard.
            if let Some(seen) = first {
                assert!(matches!(seen.value(), 2 | 9));
            }
        }
        writer.join().unwrap();
        tree.validate().unwrap();
    });
}

#[test]
fn replaced() {
    concurrently(|tree| tree.store_range(10..=19, Canary::new(9)).unwrap());
}

#[test]
fn erased_and_looked_at_by_the_writer() {
    concurrently(|tree| {
        let (_, erased) = tree.erase(15).unwrap().unwrap();
        assert_eq!(erased.get().value(), 2);
        assert!(erased.into_inner().is_err());
    });
}

#[test]
fn split_in_two() {
    concurrently(|tree| tree.store_range(14..=15, Canary::new(9)).unwrap());
}

#[test]
fn duplicated_beside_a_reader() {
    concurrently(|tree| {
        let copy = tree.duplicate().unwrap();
        tree.erase_range(10..=19).unwrap();
        assert_eq!(copy.load(&copy.pin(), 12).unwrap().value(), 2);
    });
}

/// The tree is dropped while another thread holds a guard without any reference into the tree.
#[test]
fn the_tree_ends_under_a_foreign_guard() {
    model(|| {
        let tree = canaries(2);
        let other = thread::spawn(|| drop(<Counting<Right> as grace::Reclaim>::pin()));
        tree.store_range(5..=14, Canary::new(9)).unwrap();
        drop(tree);
        other.join().unwrap();
    });
}

/// Freed nodes become new ones at once; readers never notice.
#[test]
fn nodes_are_used_again() {
    model(|| {
        let tree: Arc<MapleTree<u32, Counting<Right>, Pool<true>>> = Arc::new(touching(3));
        let writer = {
            let tree = tree.clone();
            thread::spawn(move || {
                for value in 7..10 {
                    tree.store_range(10..=19, value).unwrap();
                }
            })
        };
        for _ in 0..2 {
            let guard = tree.pin();
            assert_eq!(tree.lookup(&guard, 5), Some((0..=9, 1)));
            let (range, value) = tree.lookup(&guard, 15).unwrap();
            assert!(range == (10..=19) && matches!(value, 2 | 7..=9));
        }
        writer.join().unwrap();
    });
    assert!(memory::reused() > 0, "no node was reused");
}

/// Entries are removed from leaves that go as a whole, and from the leaf that is cut.
#[test]
fn a_hole_over_leaves_of_one_parent() {
    model(|| {
        let tree = Arc::new(canaries(9));
        let writer = {
            let tree = tree.clone();
            thread::spawn(move || tree.erase_range(5..=64).unwrap())
        };
        {
            let guard = tree.pin();
            let seen = [2, 15, 45, 62, 67].map(|index| tree.load(&guard, index));
            for (i, value) in [(0, 1), (4, 7)] {
                assert_eq!(seen[i].unwrap().value(), value);
            }
            // A late read under the guard.
            for (i, value) in [(1, 2), (2, 5), (3, 7)] {
                assert!(seen[i].is_none_or(|seen| seen.value() == value));
            }
        }
        writer.join().unwrap();
        tree.validate().unwrap();
    });
}

/// The entry stays when its end moves, also if the write takes the path with a plan.
#[test]
fn an_end_moved() {
    for (gone, end) in [(45, 25), (35, 34)] {
        model(move || {
            let tree = Arc::new(canaries(6));
            drop(tree.erase(gone).unwrap());
            let writer = {
                let tree = tree.clone();
                thread::spawn(move || assert_eq!(tree.set_end(22, end).unwrap(), Some(20..=end)))
            };
            {
                let guard = tree.pin();
                let seen = tree.load(&guard, 24).unwrap();
                assert_eq!(tree.load(&guard, 2).unwrap().value(), 1);
                assert_eq!(seen.value(), 3);
            }
            writer.join().unwrap();
            assert_eq!(tree.load(&tree.pin(), 21).unwrap().value(), 3);
            tree.validate().unwrap();
        });
    }
}
