//! Searches for free space concurrently with a writer.

use crate::{Tree, apart, model};
use loom::sync::Arc;
use loom::thread;
use maple::Error;

/// Runs `look` concurrently with `write`, and returns its result and the tree. The tree has six
/// entries, each followed by a hole of five, and a hole of ten that stays throughout. `write` fills
/// holes or makes one longer.
fn seen<T>(write: fn(&Tree), look: impl FnOnce(&Tree) -> T) -> (T, Arc<Tree>) {
    let tree = Arc::new(apart(6) as Tree);
    tree.lock().store_range(65..=usize::MAX, 50).unwrap();
    let writer = {
        let tree = tree.clone();
        thread::spawn(move || write(&tree))
    };
    let seen = look(&tree);
    writer.join().unwrap();
    (seen, tree)
}

/// The search finds the hole of ten, or a place that was free at some moment.
fn concurrently(write: fn(&Tree)) {
    model(move || {
        let look = |tree: &Tree| {
            let guard = tree.pin();
            let low = tree.empty_area(&guard, 0..=usize::MAX, 10, 1);
            let high = tree.empty_area_rev(&guard, 0..=usize::MAX, 10, 1);
            let none = tree.empty_area(&guard, 0..=usize::MAX, 16, 1);
            (low, high, none)
        };
        let ((low, high, none), tree) = seen(write, look);
        assert!(matches!(low, Ok(5 | 15 | 25 | 35 | 55)), "{low:?}");
        assert!(matches!(high, Ok(5 | 15 | 25 | 35 | 55)), "{high:?}");
        assert_eq!(none, Err(Error::NoSpace));
        tree.validate().unwrap();
    });
}

// The hole of ten is 55..=64.

#[test]
fn while_a_longer_hole_comes() {
    concurrently(|tree| drop(tree.erase(20).unwrap()));
}

#[test]
fn while_holes_are_filled() {
    concurrently(|tree| {
        tree.store_range(15..=19, 60).unwrap();
        tree.store_range(45..=49, 60).unwrap();
    });
}

#[test]
fn while_leaves_merge_beside_it() {
    concurrently(|tree| tree.store_range(5..=44, 60).unwrap());
}

/// The largest gap is at least the hole of ten, and at most the largest one that the tree has at
/// some moment.
fn largest(most: usize, write: fn(&Tree)) {
    model(move || {
        let (gap, _tree) = seen(write, |tree| tree.largest_gap(&tree.pin()));
        assert!((10..=most).contains(&gap), "{gap}");
    });
}

#[test]
fn the_largest_while_a_longer_one_comes() {
    largest(15, |tree| drop(tree.erase(20).unwrap()));
}

#[test]
fn the_largest_while_holes_are_filled() {
    largest(10, |tree| {
        tree.store_range(15..=19, 60).unwrap();
        tree.store_range(45..=49, 60).unwrap();
    });
}

#[test]
fn the_largest_while_leaves_merge_beside_it() {
    largest(10, |tree| tree.store_range(5..=44, 60).unwrap());
}

#[test]
fn the_largest_while_it_grows_and_shrinks() {
    largest(20, |tree| {
        tree.erase(50).unwrap();
        tree.store_range(45..=54, 60).unwrap();
    });
}
