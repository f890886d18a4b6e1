//! How much a thread frees of what others have removed when it takes a guard: some thousand entries
//! at the most, however many were removed at once.
//!
//! Counted, not timed. In a process of its own: the collector is the program's.
#![cfg(not(miri))]

use grace::Epoch;
use maple::{Counted, MapleTree};
use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

const ENTRIES: usize = 60_000;
/// Of eight bags, each with a few parts of a tree or a batch of what writes remove.
const MOST: usize = 6_000;

/// So many guards, once all is removed, are enough for all to be dropped.
const PINS: usize = 2_000_000;

static DROPPED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static HERE: Cell<usize> = const { Cell::new(0) };
}

/// Tells of its end, and on which thread that was.
struct Tells;

impl Drop for Tells {
    fn drop(&mut self) {
        HERE.set(HERE.get() + 1);
        // Relaxed: a count.
        DROPPED.fetch_add(1, Ordering::Relaxed);
    }
}

type Tree = MapleTree<Counted<Tells>, Epoch>;

fn tree() -> Tree {
    let tree = Tree::new();
    let mut writer = tree.lock();
    for i in 0..ENTRIES {
        writer.store_range(i * 8..=i * 8 + 5, Counted::new(Tells).unwrap()).unwrap();
    }
    drop(writer);
    tree
}

/// Takes guards until all is dropped that `remove` removes. Returns the most that one dropped.
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
            assert!(pins < PINS, "never dropped");
            let here = HERE.get();
            drop(tree.pin());
            most = most.max(HERE.get() - here);
        }
        most
    })
}

/// One test: what is dropped is counted in one place.
#[test]
fn a_guard_frees_little_of_what_others_removed() {
    type Case = (&'static str, fn(&Tree));
    let cases: [Case; 5] = [
        ("clear", |tree| tree.clear()),
        ("clear, with a duplicate that is cleared, too", |tree| {
            let other = tree.duplicate().unwrap();
            other.clear();
            tree.clear();
        }),
        ("a range", |tree| tree.erase_range(0..=usize::MAX / 2).unwrap()),
        ("one by one, by a writer", |tree| {
            let mut writer = tree.lock();
            (0..ENTRIES).for_each(|i| drop(writer.erase(i * 8).unwrap()));
        }),
        ("one by one", |tree| (0..ENTRIES).for_each(|i| drop(tree.erase(i * 8).unwrap()))),
    ];
    for (name, remove) in cases {
        for held in [false, true] {
            let most = most(remove, held);
            println!("{name}, beside a guard: {held}: {most} at once");
            assert!(most <= MOST, "{name}, beside a guard: {held}: {most} entries in one pin");
        }
    }
}
