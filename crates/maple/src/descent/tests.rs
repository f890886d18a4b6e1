//! Tests of descents.

use super::*;
use crate::Index;
use crate::MapleTree;
use std::vec::Vec;

#[test]
fn every_level_both_ways() {
    let n = if cfg!(miri) { 60 } else { 1500 };
    let mut tree = MapleTree::<u32>::new();
    let mut writer = tree.get_mut();
    for i in 0..n {
        writer.store_range(i * 10..=i * 10 + 5, i as u32).unwrap();
    }
    let root = writer.root();
    assert!(root.level() > 0);
    for floor in 0..=root.level() {
        let mut path = Descent::new();
        // SAFETY: we are the writer for the whole test.
        unsafe { path.walk_part(root, 0, Index::MAX, floor, Pick::First) };
        let mut nodes = Vec::new();
        loop {
            let step = *path.step(floor);
            nodes.push((step.min, step.max));
            if path.next_node().is_none() {
                break;
            }
        }
        // The nodes cover every index once.
        assert_eq!((nodes[0].0, nodes[nodes.len() - 1].1), (0, Index::MAX));
        assert!(nodes.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0));
        let mut back = Vec::new();
        loop {
            let step = *path.step(floor);
            assert_eq!(step.slot, if back.is_empty() { 0 } else { step.len() - 1 });
            back.push((step.min, step.max));
            if path.prev_node().is_none() {
                break;
            }
        }
        back.reverse();
        assert_eq!(back, nodes);
        // Directly from the top to each of them.
        for &(min, max) in &nodes {
            for index in [min, max] {
                // SAFETY: as above.
                unsafe { path.walk_part(root, 0, Index::MAX, floor, Pick::Index(index)) };
                assert_eq!((path.step(floor).min, path.step(floor).max), (min, max));
            }
        }
    }
}

#[test]
fn a_clone_goes_its_own_way() {
    let mut tree = MapleTree::<u32>::new();
    let mut writer = tree.get_mut();
    for i in 0..100 {
        writer.store_range(i * 2..=i * 2, 1).unwrap();
    }
    let mut path = Descent::new();
    // SAFETY: we are the writer for the whole test.
    unsafe { path.walk(writer.root(), Pick::Index(50)) };
    let (mut copy, span) = (path.clone(), path.span());
    while copy.next_slot() {}
    assert_eq!((path.span(), copy.span().max), (span, Index::MAX));
    while copy.prev_slot() {}
    assert_eq!((path.span(), copy.span().min), (span, 0));
}
