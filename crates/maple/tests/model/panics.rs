//! Entries whose `clone` or `drop` panics: the tree is as it was before the write, or as it is
//! after it; and the lock is free again.

use crate::ledger::Pool;
use grace::{Epoch, Reclaim};
use maple::{Index, MapleTree};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicIsize, Ordering};

/// Countdowns to the panic, and the number of live entries.
#[derive(Default)]
struct Fuse {
    clone: AtomicIsize,
    drop: AtomicIsize,
    live: AtomicIsize,
}

/// Panics at the clone, or the drop, that brings the countdown to zero.
struct Bomb(u32, Arc<Fuse>);

impl Bomb {
    fn new(value: u32, fuse: &Arc<Fuse>) -> Box<Self> {
        // Relaxed: one thread.
        fuse.live.fetch_add(1, Ordering::Relaxed);
        Box::new(Bomb(value, fuse.clone()))
    }
}

impl Clone for Bomb {
    fn clone(&self) -> Self {
        assert_ne!(self.1.clone.fetch_sub(1, Ordering::Relaxed), 1, "clone");
        self.1.live.fetch_add(1, Ordering::Relaxed);
        Bomb(self.0, self.1.clone())
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        self.1.live.fetch_sub(1, Ordering::Relaxed);
        assert_ne!(self.1.drop.fetch_sub(1, Ordering::Relaxed), 1, "drop");
    }
}

type Tree = MapleTree<Box<Bomb>, Epoch, Pool>;

fn tree(n: u32, fuse: &Arc<Fuse>) -> Tree {
    let mut tree = Tree::new_in();
    for i in 0..n {
        let first = i as Index * 10;
        tree.get_mut().store_range(first..=first + 9, Bomb::new(i, fuse)).unwrap();
    }
    tree
}

fn contents(tree: &mut Tree) -> Vec<(Index, Index, u32)> {
    let writer = tree.get_mut();
    writer.validate().unwrap();
    let all = writer.iter(0..=Index::MAX);
    all.map(|(range, bomb)| (*range.start(), *range.end(), bomb.0)).collect()
}

/// A single test, because the nodes are counted in one place.
#[test]
fn entries_that_panic() {
    for alone in [true, false] {
        clones(alone);
    }
    duplicates();
    drops();
}

/// Ends read-side sections until `done` returns true. Other tests hold sections at the same time,
/// perhaps on threads that do not run at the moment, so this takes as long as it takes.
fn settle(mut done: impl FnMut() -> bool) {
    crate::patience::until("entries are dropped", || {
        Epoch::pin().flush();
        done()
    });
}

/// A store splits an entry, whose clone panics.
fn clones(alone: bool) {
    let fuse = Arc::<Fuse>::default();
    let mut tree = tree(100, &fuse);
    let before = contents(&mut tree);
    for place in [3, 503, 993] {
        fuse.clone.store(1, Ordering::Relaxed);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let mut writer = if alone { tree.get_mut() } else { tree.lock() };
            writer.store_range(place..=place + 2, Bomb::new(7, &fuse)).unwrap();
        }));
        assert!(outcome.is_err());
        assert_eq!(contents(&mut tree), before);
        assert_eq!(fuse.live.load(Ordering::Relaxed), 100, "the refused entry was not dropped");
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            fuse.clone.store(1, Ordering::Relaxed);
            tree.lock().preallocate(place..=place + 2)
        }));
        assert!(outcome.is_err());
    }
    // The same holds if the write needs more than one leaf.
    fuse.clone.store(1, Ordering::Relaxed);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut writer = if alone { tree.get_mut() } else { tree.lock() };
        writer.erase_range(20..=979).unwrap();
        writer.store_range(12..=13, Bomb::new(7, &fuse)).unwrap();
    }));
    assert!(outcome.is_err());
    settle(|| fuse.live.load(Ordering::Relaxed) == contents(&mut tree).len() as isize);
    tree.lock().store_range(20..=979, Bomb::new(8, &fuse)).unwrap();
    let before = contents(&mut tree);
    // The lock is free, and the same write succeeds.
    tree.lock().store_range(3..=5, Bomb::new(7, &fuse)).unwrap();
    assert_eq!(contents(&mut tree).len(), before.len() + 2);
}

/// The nth clone of a duplicate panics: nothing is left of the duplicate.
fn duplicates() {
    let fuse = Arc::<Fuse>::default();
    let mut tree = tree(200, &fuse);
    let nodes = Pool::live();
    for n in [1, 2, 17, 100, 199, 200] {
        fuse.clone.store(n, Ordering::Relaxed);
        assert!(catch_unwind(AssertUnwindSafe(|| tree.get_mut().duplicate().map(drop))).is_err());
        assert_eq!((fuse.live.load(Ordering::Relaxed), Pool::live()), (200, nodes));
    }
}

/// The nth drop panics during a store over many entries, or during the drop of the tree. The rest
/// of the tree is valid. Memory may leak, but nothing worse happens.
fn drops() {
    for n in [1, 2, 30, 60] {
        let fuse = Arc::<Fuse>::default();
        let mut tree = tree(100, &fuse);
        fuse.drop.store(n, Ordering::Relaxed);
        let over = AssertUnwindSafe(|| {
            tree.get_mut().store_range(5..=794, Bomb::new(7, &fuse)).unwrap();
        });
        assert!(catch_unwind(over).is_err());
        let left = contents(&mut tree);
        assert_eq!(left[..2], [(0, 4, 0), (5, 794, 7)]);
        assert_eq!(left[2..].len(), 21);
        // Within one leaf, in place.
        fuse.drop.store(1, Ordering::Relaxed);
        let over = AssertUnwindSafe(|| tree.get_mut().erase_range(800..=809).unwrap());
        assert!(catch_unwind(over).is_err());
        assert_eq!(contents(&mut tree).len(), 22);
        // An entry over the same range.
        fuse.drop.store(1, Ordering::Relaxed);
        let over = AssertUnwindSafe(|| {
            tree.get_mut().store_range(810..=819, Bomb::new(9, &fuse)).unwrap();
        });
        assert!(catch_unwind(over).is_err());
        assert_eq!(contents(&mut tree)[3], (810, 819, 9));
        fuse.drop.store(n.min(10), Ordering::Relaxed);
        assert!(catch_unwind(AssertUnwindSafe(|| drop(tree))).is_err());
    }
}
