//! Tests of the plans of particular writes.

use super::*;
use crate::Index;
use crate::MapleTree;
use crate::layout::{ALWAYS_WIDE, NARROW, WIDE};
use std::vec::Vec;

/// The number of touching entries in a full leaf.
const FULL: usize = if ALWAYS_WIDE { WIDE.full / WIDE.entry } else { NARROW.full / NARROW.entry };

fn need(leaves: usize, inners: usize) -> Need {
    Need { leaves, inners }
}

/// Touching ranges of ten indices from 0 on; the last one extends to the largest index.
fn packed(n: usize) -> MapleTree<u32> {
    let mut tree = MapleTree::new();
    let mut writer = tree.get_mut();
    writer.store_range(0..=Index::MAX, 0).unwrap();
    for i in 1..n {
        writer.store_range(i as Index * 10..=Index::MAX, i as u32).unwrap();
    }
    drop(writer);
    tree
}

fn plan(root: Link, first: Index, last: Index, hole: bool) -> (Plan, bool) {
    let mut plan = Plan::new();
    // SAFETY: each test is alone with its tree.
    unsafe { plan.walk(root, first) };
    let changes = plan.make(first, last, hole).unwrap();
    (plan, changes)
}

#[test]
fn exactly_one_entry_is_one_leaf() {
    let mut tree = packed(3 * FULL);
    let root = tree.get_mut().root();
    for hole in [false, true] {
        let (plan, changes) = plan(root, 10, 19, hole);
        assert!(changes);
        // With small nodes, a leaf of two entries needs a sibling.
        if !hole || FULL > 4 {
            assert_eq!((plan.nodes(), plan.publish), (need(1, 0), Publish::Slot(1)));
        }
        assert!(plan.split().is_none());
    }
}

#[test]
fn a_hole_in_a_hole_changes_nothing() {
    let mut tree = packed(3);
    let mut writer = tree.get_mut();
    writer.erase_range(10..=19).unwrap();
    assert!(!plan(writer.root(), 12, 15, true).1);
    assert!(plan(writer.root(), 12, 15, false).1);
    // A hole next to it is merged with it.
    let (plan, _) = plan(writer.root(), 20, 22, true);
    assert_eq!((plan.first, plan.last), (10, 22));
    assert_eq!(plan.right_rest.map(|rest| rest.min), Some(20));
}

#[test]
fn an_entry_is_split_only_in_its_middle() {
    let mut tree = packed(3);
    let root = tree.get_mut().root();
    assert!(plan(root, 12, 15, true).0.split().is_some());
    assert!(plan(root, 12, 15, false).0.split().is_some());
    for (first, last) in [(10, 15), (12, 19), (10, 19), (5, 15), (15, 25)] {
        assert!(plan(root, first, last, false).0.split().is_none(), "{first} {last}");
    }
}

#[test]
fn a_full_root_leaf_grows_a_root() {
    let mut tree = packed(FULL);
    let root = tree.get_mut().root();
    assert_eq!(root.level(), 0);
    let (plan, _) = plan(root, 12, 15, false);
    assert_eq!((plan.nodes(), plan.levels().len(), plan.publish), (need(2, 1), 2, Publish::Root));
}

#[test]
fn everything_gone_is_an_empty_tree() {
    let mut tree = packed(5 * FULL);
    let root = tree.get_mut().root();
    let (hole, _) = plan(root, 0, Index::MAX, true);
    assert_eq!((hole.nodes(), hole.publish), (need(0, 0), Publish::Empty));
    // One entry over everything: one leaf, whatever the height was.
    let (entry, _) = plan(root, 0, Index::MAX, false);
    assert_eq!((entry.nodes(), entry.publish), (need(1, 0), Publish::Root));
}

#[test]
fn never_more_than_so_many_a_level_and_a_root() {
    let n = if cfg!(miri) { 4 * FULL } else { 60 * FULL };
    let mut tree = packed(n);
    let root = tree.get_mut().root();
    let ends: Vec<Index> = (0..n as Index).step_by(if cfg!(miri) { 9 } else { 7 }).collect();
    for &from in &ends {
        for &to in ends.iter().filter(|&&to| to >= from) {
            for hole in [false, true] {
                let (plan, _) = plan(root, from * 10 + 3, to * 10 + 6, hole);
                let Need { leaves, inners } = plan.nodes();
                assert!(leaves <= MAX_PER_LEVEL && inners <= 3 * root.level() + 1);
                assert!(plan.levels().iter().all(|level| level.count <= MAX_PER_LEVEL));
            }
        }
    }
}
