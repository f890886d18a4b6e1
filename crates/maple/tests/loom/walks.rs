//! Iterators and cursors that continue through nodes that are replaced meanwhile.

use crate::{Tree, model, touching};
use loom::sync::Arc;
use loom::thread;

/// The number of entries in the tree of [`touching`], and the writes concurrently with the walk.
/// The first and the last entry stay throughout.
type Story = (usize, &'static [fn(&Tree)]);

const STORIES: [Story; 9] = [
    // A leaf is replaced in its parent's slot.
    (6, &[|tree| tree.store_range(20..=29, 99).unwrap()]),
    // The root is replaced: leaves are merged, split, or spanned.
    (6, &[|tree| tree.erase_range(10..=49).unwrap()]),
    (6, &[|tree| tree.store_range(15..=44, 99).unwrap()]),
    (6, &[|tree| drop(tree.erase(25).unwrap())]),
    // A new root, and then a new leaf in it, which the old root does not have.
    (
        6,
        &[
            |tree| tree.store_range(22..=23, 98).unwrap(),
            |tree| tree.store_range(30..=39, 99).unwrap(),
        ],
    ),
    // Three levels: a new inner node in the root's slot, and then a new leaf in that node.
    (
        17,
        &[
            |tree| tree.store_range(22..=23, 98).unwrap(),
            |tree| tree.store_range(24..=29, 99).unwrap(),
        ],
    ),
    (17, &[|tree| tree.erase_range(15..=144).unwrap()]),
    // A hole over three leaves of one parent, of which one goes.
    (9, &[|tree| tree.erase_range(5..=64).unwrap()]),
    // A hole in the next leaf, and an end that moves into it.
    (
        6,
        &[
            |tree| tree.erase_range(30..=39).unwrap(),
            |tree| drop(tree.set_end(25, 34).unwrap().unwrap()),
        ],
    ),
];

type Entries = Vec<(usize, usize, u32)>;

fn entries(tree: &Tree) -> Entries {
    let guard = tree.pin();
    let all = tree.iter(&guard, 0..=usize::MAX);
    all.map(|(range, value)| (*range.start(), *range.end(), value)).collect()
}

/// Checks a walk from end to end: it is in order and covers no index twice. Each range existed at
/// some time. No entry is missing that existed throughout.
fn sound(walk: &Entries, states: &[Entries]) {
    for pair in walk.windows(2) {
        assert!(pair[0].1 < pair[1].0, "out of order: {walk:?}");
    }
    for entry in walk {
        assert!(
            states.iter().any(|state| state.contains(entry)),
            "this entry never existed: {entry:x?}"
        );
    }
    for entry in &states[0] {
        let throughout = states.iter().all(|state| state.contains(entry));
        assert!(!throughout || walk.contains(entry), "{entry:x?} is missing in {walk:x?}");
    }
}

fn concurrently(walk: fn(&Tree) -> Entries) {
    for (n, writes) in STORIES {
        model(move || {
            let plain: Tree = touching(n);
            let mut states = vec![entries(&plain)];
            for write in writes {
                write(&plain);
                states.push(entries(&plain));
            }
            let tree = Arc::new(touching(n) as Tree);
            let writer = {
                let tree = tree.clone();
                thread::spawn(move || writes.iter().for_each(|write| write(&tree)))
            };
            let seen = walk(&tree);
            writer.join().unwrap();
            sound(&seen, &states);
            assert_eq!(entries(&tree), states[writes.len()]);
            tree.validate().unwrap();
        });
    }
}

#[test]
fn iteration() {
    concurrently(entries);
}

#[test]
fn iteration_from_both_ends() {
    concurrently(|tree| {
        let guard = tree.pin();
        let mut iter = tree.iter(&guard, 0..=usize::MAX);
        let (mut low, mut high) = (Vec::new(), Vec::new());
        while let Some((range, value)) = iter.next() {
            low.push((*range.start(), *range.end(), value));
            let Some((range, value)) = iter.next_back() else { break };
            high.push((*range.start(), *range.end(), value));
        }
        low.extend(high.into_iter().rev());
        low
    });
}

#[test]
fn a_cursor_backwards() {
    concurrently(|tree| {
        let guard = tree.pin();
        let mut cursor = tree.cursor(&guard, usize::MAX);
        let mut seen = Vec::new();
        while let Some((range, value)) = cursor.find_rev(0) {
            seen.push((*range.start(), *range.end(), value));
        }
        seen.reverse();
        seen
    });
}

/// Every index once, holes included; a hole may come in pieces.
#[test]
fn a_cursor_over_every_range() {
    concurrently(|tree| {
        let guard = tree.pin();
        let mut cursor = tree.cursor(&guard, 0);
        let (mut seen, mut next) = (Vec::new(), Some(0));
        while let Some((range, value)) = cursor.next_range(usize::MAX) {
            assert_eq!(Some(*range.start()), next, "an index is missing or was visited twice");
            next = range.end().checked_add(1);
            if let Some(value) = value {
                seen.push((*range.start(), *range.end(), value));
            }
        }
        assert_eq!(next, None, "the last index was not reached");
        seen
    });
}

/// The guard ends between two steps, so the cursor must not use any node that it visited.
#[test]
fn a_cursor_that_pauses() {
    concurrently(|tree| {
        let mut seen = Vec::new();
        let mut place = tree.cursor(&tree.pin(), 0).pause();
        loop {
            let guard = tree.pin();
            let mut cursor = tree.resume(&guard, place);
            let Some((range, value)) = cursor.find(usize::MAX) else { return seen };
            // After a write in between, the next range may begin before the end of the previous
            // one.
            if seen.last().is_none_or(|&(_, max, _)| max < *range.start()) {
                seen.push((*range.start(), *range.end(), value));
            }
            place = cursor.pause();
        }
    });
}
