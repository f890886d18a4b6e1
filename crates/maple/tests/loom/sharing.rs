//! Trees that share nodes: writes to both at once, and reads of one while the other releases nodes.
//!
//! A tree of six entries has an inner node above its leaves. So a write copies a shared inner node
//! and a shared leaf, and adds references to the leaves next to it.

use crate::engine::{Counting, EngineKind, Hasty, Right};
use crate::memory::{self, Pool, Shared};
use crate::model;
use loom::sync::Arc;
use loom::thread;
use maple::MapleTree;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

type Tree<K> = MapleTree<Shared, Counting<K>, Pool<false>>;

const N: usize = 6;

/// A tree of `n` adjacent entries, `i + 1` at `i * 10..=i * 10 + 9`, and its duplicate.
fn pair<K: EngineKind>(n: usize) -> (Tree<K>, Tree<K>) {
    let mut tree = Tree::new_in();
    for i in 0..n {
        tree.get_mut().store_range(i * 10..=i * 10 + 9, Shared::new(i as u32 + 1)).unwrap();
    }
    let before = memory::made();
    let copy = tree.duplicate().unwrap();
    assert_eq!(memory::made(), before, "the nodes are not shared");
    (tree, copy)
}

fn store<K: EngineKind>(tree: &Tree<K>, index: usize, value: u32) {
    let first = index / 10 * 10;
    tree.store_range(first..=first + 9, Shared::new(value)).unwrap();
}

/// Checks that the tree holds the entries of [`pair`], except for the values in `changes`.
fn holds<K: EngineKind>(tree: &Tree<K>, n: usize, changes: &[(usize, Option<u32>)]) {
    tree.validate().unwrap();
    let guard = tree.pin();
    for i in 0..n {
        let change = changes.iter().find(|(index, _)| index / 10 == i);
        let value = change.map_or(Some(i as u32 + 1), |(_, value)| *value);
        let (lookup, load) = (tree.lookup(&guard, i * 10 + 5), tree.load(&guard, i * 10));
        assert_eq!(lookup.map(|(_, look)| look.value()), value);
        assert_eq!(load.map(|look| look.value()), value);
    }
}

/// Both copy the same inner node and the same leaf.
#[test]
fn a_writer_on_each() {
    model(|| {
        let (tree, copy) = pair::<Right>(N);
        let other = thread::spawn(move || {
            store(&copy, 12, 70);
            copy
        });
        store(&tree, 2, 80);
        let copy = other.join().unwrap();
        holds(&tree, N, &[(2, Some(80))]);
        holds(&copy, N, &[(12, Some(70))]);
    });
}

/// A reader sees both writes of a transaction, or none.
#[test]
fn a_transaction_and_a_reader() {
    model(|| {
        let (tree, copy) = pair::<Right>(N);
        drop(copy);
        let tree = Arc::new(tree);
        let reader = {
            let tree = tree.clone();
            thread::spawn(move || {
                let guard = tree.pin();
                let all = tree.iter(&guard, 0..=59).map(|(_, look)| look.value());
                let all: Vec<u32> = all.collect();
                (all[0], all[5])
            })
        };
        let done = tree.lock().transaction(|version| {
            version.store_range(0..=9, Shared::new(80))?;
            version.store_range(50..=59, Shared::new(90)).map_err(maple::Error::from)
        });
        done.unwrap();
        let seen = reader.join().unwrap();
        assert!(seen == (1, 6) || seen == (80, 90), "{seen:?}");
        holds(&tree, N, &[(2, Some(80)), (52, Some(90))]);
    });
}

/// One tree changes the shape of shared nodes; a third tree, made meanwhile, keeps the old state.
#[test]
fn a_writer_on_each_and_a_third_tree() {
    model(|| {
        let (tree, copy) = pair::<Right>(N);
        let other = thread::spawn(move || {
            copy.erase_range(10..=49).unwrap();
            copy
        });
        let third = tree.duplicate().unwrap();
        store(&tree, 22, 80);
        let copy = other.join().unwrap();
        holds(&tree, N, &[(22, Some(80))]);
        holds(&copy, N, &[10, 20, 30, 40].map(|index| (index, None)));
        holds(&third, N, &[]);
    });
}

/// A reader of a tree continues while its duplicate, and then the tree itself, is written to.
#[test]
fn a_reader_while_the_other_lets_go() {
    model(|| {
        let (tree, copy) = pair::<Right>(N);
        let tree = Arc::new(tree);
        let writer = {
            let tree = tree.clone();
            thread::spawn(move || {
                store(&copy, 12, 70);
                drop(copy);
                store(&tree, 12, 80);
            })
        };
        {
            let guard = tree.pin();
            let (early, neighbour) = (tree.load(&guard, 12), tree.load(&guard, 2));
            let late = tree.load(&guard, 12).unwrap().value();
            assert!(matches!(late, 2 | 80), "{late}");
            // A late read under the guard.
            let early = early.unwrap().value();
            assert!(early == 2 || (early, late) == (80, 80), "the old entry came back");
            assert_eq!(neighbour.unwrap().value(), 1);
        }
        writer.join().unwrap();
        holds(&tree, N, &[(12, Some(80))]);
    });
}

#[test]
fn one_ends_while_the_other_is_written_and_read() {
    model(|| {
        let (tree, copy) = pair::<Right>(N);
        let tree = Arc::new(tree);
        let end = thread::spawn(move || drop(copy));
        let writer = {
            let tree = tree.clone();
            thread::spawn(move || store(&tree, 12, 70))
        };
        {
            let guard = tree.pin();
            assert!(matches!(tree.load(&guard, 15).unwrap().value(), 2 | 70));
        }
        writer.join().unwrap();
        end.join().unwrap();
        holds(&tree, N, &[(12, Some(70))]);
    });
}

/// Both trees are dropped at once; the last one frees everything.
#[test]
fn both_end() {
    model(|| {
        let (tree, copy) = pair::<Right>(N);
        let end = thread::spawn(move || drop(copy));
        drop(tree);
        end.join().unwrap();
    });
}

/// A tree that is not dropped if its thread panics: loom would report the same race again, and
/// abort.
struct Unless<K: EngineKind>(ManuallyDrop<Tree<K>>);

impl<K: EngineKind> Drop for Unless<K> {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: the tree is dropped only here, and once.
            unsafe { ManuallyDrop::drop(&mut self.0) }
        }
    }
}

/// A reader of the duplicate still uses a leaf that the duplicate's writer releases. Then the
/// source is the only owner of the leaf and changes it in place. With `apart`, a separate thread
/// writes to the source.
fn alone_again<K: EngineKind>(n: usize, apart: bool) {
    let in_place = std::sync::Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let seen = in_place.clone();
    model(move || {
        let (tree, copy) = pair::<K>(n);
        let mut tree = Unless(ManuallyDrop::new(tree));
        let copy = Arc::new(Unless(ManuallyDrop::new(copy)));
        let seen = seen.clone();
        let change = move || {
            // No other thread allocates nodes meanwhile, except the duplicate's writer with
            // `apart`.
            let before = memory::made();
            tree.0.get_mut().store_range(10..=19, Shared::new(80)).unwrap();
            // Relaxed: counts, read at the end.
            seen[usize::from(memory::made() == before)].fetch_add(1, Ordering::Relaxed);
            tree
        };
        let (writer, owner) = {
            let copy = copy.clone();
            let write = move || store(&copy.0, 12, 70);
            if apart {
                (Some(thread::spawn(write)), thread::spawn(change))
            } else {
                let both = move || {
                    write();
                    change()
                };
                (None, thread::spawn(both))
            }
        };
        {
            let guard = copy.0.pin();
            let early = copy.0.load(&guard, 12);
            assert!(matches!(copy.0.load(&guard, 19).unwrap().value(), 2 | 70));
            assert!(matches!(early.unwrap().value(), 2 | 70));
        }
        if let Some(writer) = writer {
            writer.join().unwrap();
        }
        let tree = owner.join().unwrap();
        holds(&tree.0, n, &[(12, Some(80))]);
        holds(&copy.0, n, &[(12, Some(70))]);
    });
    // Relaxed: the model is over.
    let [copied, in_place] = [0, 1].map(|i| in_place[i].load(Ordering::Relaxed));
    assert!(copied > 0 && in_place > 0, "copied {copied} times, changed in place {in_place} times");
}

#[test]
fn alone_again_and_changed_in_place() {
    alone_again::<Right>(2, false);
    alone_again::<Right>(N, false);
}

#[test]
fn alone_again_in_another_thread() {
    alone_again::<Right>(2, true);
}

/// Without a grace period, the source would change a leaf in place while the duplicate's reader
/// uses it.
#[test]
fn no_grace_period() {
    for apart in [false, true] {
        let panic = catch_unwind(AssertUnwindSafe(|| alone_again::<Hasty>(2, apart)))
            .expect_err("the mutant survived");
        let report = panic.downcast_ref::<String>().map(String::as_str).unwrap_or_default();
        assert!(report.contains("Causality violation"), "loom reported another failure: {report}");
    }
}

/// A snapshot has no grace periods of its own. It changes a leaf in place only when the readers of
/// the tree that gave the leaf up are gone.
fn a_snapshot_is_written<K: EngineKind>() {
    let in_place = std::sync::Arc::new(AtomicUsize::new(0));
    let seen = in_place.clone();
    model(move || {
        let (tree, copy) = pair::<K>(2);
        drop(copy);
        let then = tree.lock().snapshot().unwrap();
        let tree = Arc::new(Unless(ManuallyDrop::new(tree)));
        let (writer, seen) = (tree.clone(), seen.clone());
        let owner = thread::spawn(move || {
            let mut then = ManuallyDrop::new(then);
            store(&writer.0, 12, 70);
            let before = memory::made();
            then.get_mut().store_range(10..=19, Shared::new(80)).unwrap();
            // Relaxed: a count, read at the end.
            seen.fetch_add(usize::from(memory::made() == before), Ordering::Relaxed);
            assert_eq!(then.get_mut().load(12).unwrap().value(), 80);
            // As `Unless` does, so not after a panic.
            drop(ManuallyDrop::into_inner(then));
        });
        {
            let guard = tree.0.pin();
            let early = tree.0.load(&guard, 12);
            assert!(matches!(tree.0.load(&guard, 19).unwrap().value(), 2 | 70));
            assert!(matches!(early.unwrap().value(), 2 | 70));
        }
        owner.join().unwrap();
        holds(&tree.0, 2, &[(12, Some(70))]);
    });
    // Relaxed: the model is over.
    assert!(in_place.load(Ordering::Relaxed) > 0, "it was never changed in place");
}

#[test]
fn a_snapshot_is_written_beside_readers() {
    a_snapshot_is_written::<Right>();
}

#[test]
fn a_snapshot_without_grace_period() {
    let panic = catch_unwind(AssertUnwindSafe(a_snapshot_is_written::<Hasty>))
        .expect_err("the mutant survived");
    let report = panic.downcast_ref::<String>().map(String::as_str).unwrap_or_default();
    assert!(report.contains("Causality violation"), "loom reported another failure: {report}");
}
