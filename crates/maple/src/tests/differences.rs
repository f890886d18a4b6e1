//! The difference of two trees: against a comparison of each index, and in time of the change.

use super::{CELL, Cells, Dice};
use crate::testing::{Flaky, visits};
use crate::{Index, MapleTree, RefCounted, Writer};
use grace::{Epoch, Reclaim, Single};
use std::vec::Vec;

/// The ends of a range, and the values in it.
type Change = (Index, Index, Option<u64>, Option<u64>);

type Tree<R> = MapleTree<RefCounted<u64>, R, Flaky>;

fn store<R: Reclaim>(
    writer: &mut Writer<'_, RefCounted<u64>, R, Flaky>,
    range: core::ops::RangeInclusive<Index>,
    value: u64,
) {
    let entry = RefCounted::new(value).unwrap_or_else(|_| panic!("there is memory"));
    writer.store_range(range, entry).map_err(|refused| refused.error).unwrap();
}

/// The differences, by a look at each cell. Each store has a value of its own, so equal values are
/// one entry.
fn expected(before: &Cells, after: &Cells) -> Vec<Change> {
    let mut found: Vec<Change> = Vec::new();
    for (i, (a, b)) in before.0.iter().zip(&after.0).enumerate() {
        let range = before.range(i, i);
        match found.last_mut() {
            _ if a == b => {}
            Some((_, end, x, y)) if *end + 1 == *range.start() && (*x, *y) == (*a, *b) => {
                *end = *range.end();
            }
            _ => found.push((*range.start(), *range.end(), *a, *b)),
        }
    }
    found
}

fn found(before: &Tree<Single>, after: &Tree<Single>) -> Vec<Change> {
    before
        .diff(after)
        .map(|(range, a, b)| {
            (*range.start(), *range.end(), a.map(|a| *a.get()), b.map(|b| *b.get()))
        })
        .collect()
}

fn last(then: &mut [(Tree<Single>, Cells)]) -> &mut Tree<Single> {
    &mut then.last_mut().unwrap().0
}

/// Writes to a shared tree; snapshots of it, some of them written to, stay as they were.
#[test]
fn snapshots_differ_where_their_cells_do() {
    let (size, steps) = if cfg!(miri) { (24, 40) } else { (400, 4000) };
    for seed in 1..if cfg!(miri) { 2 } else { 5 } {
        let mut dice = Dice(seed);
        let (tree, mut now) = (Tree::<Epoch>::new_in(), Cells::new(size));
        let mut then: Vec<(Tree<Single>, Cells)> = Vec::new();
        for value in 0..steps {
            let from = dice.roll(size);
            let longest = if dice.roll(40) == 0 { size } else { 4 };
            let to = (from + dice.roll(longest)).min(size - 1);
            let new = (dice.roll(3) != 0).then_some(value);
            // Now and then the last snapshot is written instead.
            let own = dice.roll(4) == 0 && !then.is_empty();
            let cells = if own { &mut then.last_mut().unwrap().1 } else { &mut now };
            let range = cells.range(from, to);
            cells.set(from, to, new);
            match (own, new) {
                (true, Some(value)) => store(&mut last(&mut then).get_mut(), range, value),
                (true, None) => last(&mut then).get_mut().erase_range(range).unwrap(),
                (false, Some(value)) => store(&mut tree.lock(), range, value),
                (false, None) => tree.erase_range(range).unwrap(),
            }
            if dice.roll(60) == 0 {
                then.push((tree.lock().snapshot().unwrap(), now.clone()));
                if then.len() > 4 {
                    then.swap_remove(dice.roll(4));
                }
                for (snapshot, cells) in &mut then {
                    let writer = snapshot.get_mut();
                    writer.validate().unwrap();
                    let entries = writer.iter(0..=Index::MAX);
                    let entries: Vec<_> =
                        entries.map(|(range, entry)| (range, *entry.get())).collect();
                    assert_eq!(entries, cells.entries());
                }
                for (a, a_cells) in &then {
                    for (b, b_cells) in &then {
                        assert_eq!(found(a, b), expected(a_cells, b_cells));
                    }
                }
            }
        }
    }
}

/// A few writes in a large tree are found by a look at a few nodes.
#[test]
fn it_looks_at_what_has_changed() {
    let n: usize = if cfg!(miri) { 300 } else { 100_000 };
    let mut tree = Tree::<Single>::new_in();
    for i in 0..n {
        let first = i as Index * CELL;
        store(&mut tree.get_mut(), first..=first + 3, i as u64);
    }
    let before = tree.get_mut().duplicate().unwrap();
    let looks = |before: &Tree<Single>, after: &Tree<Single>| {
        let first = visits();
        let changes = before.diff(after).count();
        (changes, visits() - first)
    };
    assert_eq!(looks(&before, &tree), (0, 0));
    for i in [3, n / 2, n - 1] {
        let first = i as Index * CELL;
        store(&mut tree.get_mut(), first..=first, 7);
    }
    let (changes, nodes) = looks(&before, &tree);
    assert_eq!(changes, 3);
    // On each way to a change, in both trees: a node of each level, and its children.
    let most = 3 * 2 * crate::layout::INNER_SLOTS * tree.height();
    assert!(nodes <= most, "{nodes} nodes at height {}", tree.height());
    // Against an empty tree all is looked at.
    let empty = Tree::<Single>::new_in();
    assert_eq!(looks(&empty, &tree).0, n + 3);
    assert_eq!(looks(&tree, &empty).0, n + 3);
}
