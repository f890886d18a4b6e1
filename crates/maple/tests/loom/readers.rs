//! Lookups concurrently with one write of each shape.

use crate::{Tree, apart, model, touching};
use loom::sync::Arc;
use loom::thread;
use std::ops::RangeInclusive;

/// A reader reads each of `indices` twice while `write` runs. Each read must return the old or the
/// new state, with a whole range, and never the old state after the new one.
fn concurrently(
    tree: impl Fn() -> Tree + Send + Sync + 'static,
    write: impl Fn(&Tree) + Send + Sync + Copy + 'static,
    indices: &'static [usize],
) {
    model(move || {
        let expect = |tree: &Tree| -> Vec<_> {
            indices.iter().map(|&index| tree.lookup(&tree.pin(), index)).collect()
        };
        let old = expect(&tree());
        let tree = Arc::new(tree());
        let writer = {
            let tree = tree.clone();
            thread::spawn(move || write(&tree))
        };
        let mut seen = Vec::new();
        for &index in indices {
            let guard = tree.pin();
            let first = tree.lookup(&guard, index);
            let second = tree.load(&guard, index);
            seen.push((first, second));
        }
        writer.join().unwrap();
        let new = expect(&tree);
        let entry = |found: &Option<(RangeInclusive<usize>, u32)>| found.as_ref().map(|f| f.1);
        for (((first, second), old), new) in seen.iter().zip(&old).zip(&new) {
            assert!(first == old || first == new, "{first:?} is not {old:?} or {new:?}");
            assert!(*second == entry(old) || *second == entry(new));
            assert!(first == old || *second == entry(new), "the old entry came back");
        }
        tree.validate().unwrap();
    });
}

#[test]
fn a_store_in_one_leaf() {
    concurrently(|| apart(1), |tree| tree.store_range(6..=7, 9).unwrap(), &[2, 6, 20]);
}

#[test]
fn a_store_that_splits_an_entry() {
    concurrently(|| touching(1), |tree| tree.store_range(4..=5, 9).unwrap(), &[0, 4, 9]);
}

#[test]
fn the_root_becomes_an_inner_node() {
    concurrently(|| touching(3), |tree| tree.store_range(40..=49, 9).unwrap(), &[0, 25, 45]);
}

#[test]
fn the_first_entry_of_all() {
    concurrently(
        Tree::new_in,
        |tree| tree.store_range(0..=usize::MAX, 9).unwrap(),
        &[0, usize::MAX],
    );
}

#[test]
fn the_last_entry_of_all() {
    concurrently(|| apart(1), |tree| drop(tree.erase(0).unwrap().unwrap()), &[0, 8]);
}

#[test]
fn erased_down_to_one_leaf() {
    concurrently(|| touching(4), |tree| tree.erase_range(10..=39).unwrap(), &[5, 15, 35]);
}

#[test]
fn a_merge_with_a_sibling() {
    concurrently(|| touching(6), |tree| drop(tree.erase(25).unwrap()), &[15, 25, 35]);
}

#[test]
fn a_store_over_three_leaves() {
    concurrently(|| touching(8), |tree| tree.store_range(15..=64, 99).unwrap(), &[12, 17, 40, 67]);
}

#[test]
fn a_whole_right_leaf_consumed() {
    concurrently(
        || touching(5),
        |tree| tree.store_range(15..=usize::MAX, 99).unwrap(),
        &[12, 45, 90],
    );
}

#[test]
fn an_inner_root_is_split() {
    concurrently(|| touching(8), |tree| tree.store_range(22..=24, 99).unwrap(), &[20, 23, 79]);
}

#[test]
fn a_tree_of_three_levels_loses_one() {
    concurrently(|| touching(12), |tree| tree.erase_range(5..=104).unwrap(), &[0, 50, 110]);
}

#[test]
fn cleared() {
    concurrently(|| touching(4), |tree| tree.clear(), &[5, 25]);
}

#[test]
fn three_levels_and_a_leaf_replaced_at_the_bottom() {
    concurrently(|| touching(17), |tree| tree.store_range(20..=29, 99).unwrap(), &[25, 35, 165]);
}

#[test]
fn a_hole_over_four_leaves_leaves_one() {
    concurrently(|| touching(12), |tree| tree.erase_range(5..=84).unwrap(), &[2, 40, 87, 105]);
}

#[test]
fn a_hole_over_three_leaves_leaves_two() {
    concurrently(|| touching(9), |tree| tree.erase_range(5..=64).unwrap(), &[2, 40, 67]);
}

/// The hole continues in a leaf before the erased range.
#[test]
fn a_hole_that_takes_in_one_before_it() {
    let tree = || {
        let tree: Tree = touching(14);
        tree.erase_range(20..=29).unwrap();
        tree
    };
    concurrently(tree, |tree| tree.erase_range(30..=64).unwrap(), &[15, 25, 45, 67]);
}

/// The root above the leaf is full, so an extra store splits it before the leaf is split.
#[test]
fn a_full_root_cut_before_a_leaf_is() {
    for n in [7, 8] {
        concurrently(move || apart(n), |tree| tree.store_range(6..=7, 9).unwrap(), &[2, 6, 12, 62]);
    }
}

#[test]
fn an_end_moved_up_and_down() {
    concurrently(
        || apart(6),
        |tree| drop(tree.set_end(22, 27).unwrap().unwrap()),
        &[20, 26, 28, 31],
    );
    concurrently(
        || apart(6),
        |tree| drop(tree.set_end(22, 21).unwrap().unwrap()),
        &[20, 23, 28, 31],
    );
    // Up to the next entry, so the hole vanishes.
    concurrently(|| apart(6), |tree| drop(tree.set_end(22, 29).unwrap().unwrap()), &[20, 29, 31]);
}

/// The entry is the last slot of its leaf, and the hole behind it the first slot of the next leaf.
#[test]
fn an_end_moved_into_the_next_leaf() {
    let tree = || {
        let tree: Tree = touching(6);
        tree.erase_range(30..=39).unwrap();
        tree
    };
    concurrently(tree, |tree| drop(tree.set_end(25, 34).unwrap().unwrap()), &[20, 32, 37, 45]);
    concurrently(tree, |tree| drop(tree.set_end(25, 21).unwrap().unwrap()), &[20, 25, 37, 45]);
}

#[test]
fn a_second_write_on_top_of_the_first() {
    let write = |tree: &Tree| {
        tree.store_range(40..=49, 9).unwrap();
        tree.erase_range(40..=49).unwrap();
    };
    model(move || {
        let tree = Arc::new(touching(3) as Tree);
        let writer = {
            let tree = tree.clone();
            thread::spawn(move || write(&tree))
        };
        let guard = tree.pin();
        assert_eq!(tree.lookup(&guard, 25), Some((20..=29, 3)));
        assert!(matches!(tree.lookup(&guard, 44), None | Some((_, 9))));
        assert_eq!(tree.lookup(&guard, 5), Some((0..=9, 1)));
        drop(guard);
        writer.join().unwrap();
        tree.validate().unwrap();
    });
}
