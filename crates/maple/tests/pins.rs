//! The time that taking a guard may spend on freeing: it frees some thousand entries at most,
//! however many other threads removed at once.
//!
//! The test counts frees instead of measuring time. It runs in a process of its own, because the
//! collector belongs to the process.
#![cfg(not(miri))]

use grace::Epoch;
use maple::{Index, MapleTree, RefCounted};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

const ENTRIES: usize = 30_000;
/// Eight bags, each with a few parts of a tree or a batch of removed entries.
const MOST: usize = 6_000;

/// After the removal, this many guards are enough to drop every entry.
const PINS: usize = 2_000_000;

static DROPPED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static HERE: Cell<usize> = const { Cell::new(0) };
}

/// Counts its drop, in total and on the dropping thread.
struct Tells;

impl Drop for Tells {
    fn drop(&mut self) {
        HERE.set(HERE.get() + 1);
        // Relaxed: a count.
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

type Tree = MapleTree<RefCounted<Tells>, Epoch>;

fn tree() -> Tree {
    let tree = Tree::new();
    let mut writer = tree.lock();
    for i in 0..ENTRIES as Index {
        writer.store_range(i * 8..=i * 8 + 5, RefCounted::new(Tells).unwrap()).unwrap();
    }
    drop(writer);
    tree
}

/// Takes guards until every entry that `remove` removes is dropped. Returns the most drops by one
/// guard.
fn most(remove: impl FnOnce(&Tree) + Send, held: bool) -> usize {
    let tree = tree();
    // Relaxed: as above.
    let before = DROPPED.load(Ordering::Relaxed);
    thread::scope(|scope| {
        let guard = held.then(|| tree.pin());
        let (send, removed) = mpsc::channel();
        let tree = &tree;
        scope.spawn(move || {
            remove(tree);
            send.send(()).unwrap();
        });
        if held {
            removed.recv().unwrap();
        }
        let mut done = held;
        drop(guard);
        let (mut most, mut pins) = (0, 0);
        while DROPPED.load(Ordering::Relaxed) < before + ENTRIES {
            done |= removed.try_recv().is_ok();
            pins += usize::from(done);
            assert!(pins < PINS, "entries were never dropped");
            let here = HERE.get();
            drop(tree.pin());
            most = most.max(HERE.get() - here);
        }
        most
    })
}

/// A single test, because the drops are counted in a static.
#[test]
fn a_guard_frees_few_pieces_of_other_threads() {
    type Case = (&'static str, fn(&Tree));
    let cases: [Case; 5] = [
        ("clear", |tree| tree.clear()),
        ("clear, with a duplicate that is cleared, too", |tree| {
            let other = tree.duplicate().unwrap();
            other.clear();
            tree.clear();
        }),
        ("a range", |tree| tree.erase_range(0..=Index::MAX / 2).unwrap()),
        ("one by one, by a writer", |tree| {
            let mut writer = tree.lock();
            (0..ENTRIES as Index).for_each(|i| drop(writer.erase(i * 8).unwrap()));
        }),
        ("one by one", |tree| (0..ENTRIES as Index).for_each(|i| drop(tree.erase(i * 8).unwrap()))),
    ];
    for (name, remove) in cases {
        for held in [false, true] {
            let most = most(remove, held);
            println!("{name}, with a guard: {held}: at most {most} entries per guard");
            assert!(most <= MOST, "{name}, with a guard: {held}: one guard freed {most} entries");
        }
    }
}
