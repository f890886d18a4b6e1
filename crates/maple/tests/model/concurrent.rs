//! Readers that pause while the writer continues (I1), without threads. The model knows at every
//! moment which entries ever existed under the guard.
//!
//! A cursor or an iterator lives under one guard across many writes, and moves between them. Each
//! item that it returns must have been in the tree at some moment since the guard was taken. Its
//! steps must be in order. It must return every entry that existed throughout.

use crate::ledger::{Item, Pool};
use crate::oracle::Span;
use crate::play::{World, play};
use crate::run::settle;
use crate::script::{Op, Scale};
use grace::Epoch;
use maple::{Index, MapleTree};
use std::collections::HashSet;

type Tree = MapleTree<Item, Epoch, Pool>;
type Entry = (Index, Index, u64);

/// The kind of reader.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Walker {
    /// A cursor over entries; backwards if true.
    Entries(bool),
    /// A cursor over every range; backwards if true.
    Ranges(bool),
    /// An iterator; backwards if true.
    Iter(bool),
}

fn entries(world: &World) -> impl Iterator<Item = Entry> {
    world.oracle.entries().map(|(range, value)| (*range.start(), *range.end(), value))
}

/// Runs `before`. Then runs `during`, with some steps of the walker after each operation, and the
/// remaining steps at the end.
pub(crate) fn run(scale: Scale, before: &[Op], walker: Walker, during: &[(Op, u8)]) {
    let mut world = World::new(scale);
    let nodes = Pool::live();
    let tree = Tree::new_in();
    for op in before {
        play(&mut tree.lock(), &mut world, op, false);
    }
    world.oracle.remember();
    let mut throughout: Vec<Entry> = entries(&world).collect();
    {
        let guard = tree.pin();
        let mut steps: Box<dyn FnMut() -> Option<Span>> = match walker {
            Walker::Entries(back) => {
                let mut cursor = tree.cursor(&guard, if back { Index::MAX } else { 0 });
                Box::new(move || {
                    let found = if back { cursor.find_rev(0) } else { cursor.find(Index::MAX) };
                    found.map(|(range, item)| (*range.start(), *range.end(), Some(item.value())))
                })
            }
            Walker::Ranges(back) => {
                let mut cursor = tree.cursor(&guard, if back { Index::MAX } else { 0 });
                Box::new(move || {
                    let found =
                        if back { cursor.prev_range(0) } else { cursor.next_range(Index::MAX) };
                    found.map(|(r, item)| (*r.start(), *r.end(), item.map(|item| item.value())))
                })
            }
            Walker::Iter(back) => {
                let mut iter = tree.iter(&guard, 0..=Index::MAX);
                Box::new(move || {
                    let found = if back { iter.next_back() } else { iter.next() };
                    found.map(|(range, item)| (*range.start(), *range.end(), Some(item.value())))
                })
            }
        };
        let back = match walker {
            Walker::Entries(back) | Walker::Ranges(back) | Walker::Iter(back) => back,
        };
        let mut seen = Vec::new();
        let mut over = false;
        for (op, n) in during {
            play(&mut tree.lock(), &mut world, op, false);
            let now: HashSet<Entry> = entries(&world).collect();
            throughout.retain(|entry| now.contains(entry));
            for _ in 0..*n {
                over = over || steps().map(|step| seen.push(step)).is_none();
            }
        }
        if !over {
            seen.extend(std::iter::from_fn(steps));
        }
        judge(seen, &world, &throughout, walker, back);
    }
    drop(tree);
    settle(&world.ledger, nodes, true);
}

fn judge(mut seen: Vec<Span>, world: &World, throughout: &[Entry], walker: Walker, back: bool) {
    if back {
        seen.reverse();
    }
    assert!(seen.windows(2).all(|pair| pair[0].1 < pair[1].0), "out of order: {seen:x?}");
    if matches!(walker, Walker::Ranges(_)) {
        // Every index once; a hole may come in pieces.
        assert_eq!((seen[0].0, seen[seen.len() - 1].1), (0, Index::MAX));
        assert!(
            seen.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0),
            "an index is missing: {seen:x?}"
        );
    }
    let entries: Vec<Entry> =
        seen.iter().filter_map(|&(min, max, value)| Some((min, max, value?))).collect();
    for &entry in &entries {
        assert!(world.oracle.was_there(entry), "this entry never existed: {entry:x?}");
    }
    for entry in throughout {
        assert!(entries.contains(entry), "an entry that existed throughout is missing: {entry:x?}");
    }
}
