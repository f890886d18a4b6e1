//! The same models with wrong grace periods: each must be caught.

use crate::engine::{Counting, EngineKind, Hasty, LooseEnd, LooseStart, Right};
use crate::memory::{Canary, Pool};
use crate::{model, touching};
use loom::sync::Arc;
use loom::thread;
use maple::MapleTree;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A lookup and an iteration concurrently with a store that replaces the leaf.
fn nodes<K: EngineKind>() {
    model(|| {
        let tree: Arc<MapleTree<u32, Counting<K>, Pool<false>>> = Arc::new(touching(3));
        let writer = {
            let tree = tree.clone();
            thread::spawn(move || tree.store_range(10..=19, 9).unwrap())
        };
        {
            let guard = tree.pin();
            assert!(matches!(tree.load(&guard, 15), Some(2 | 9)));
            assert_eq!(tree.iter(&guard, 0..=usize::MAX).count(), 3);
        }
        writer.join().unwrap();
    });
}

/// A read of an entry concurrently with its removal.
fn entries<K: EngineKind>() {
    model(|| {
        let tree = MapleTree::<Canary, Counting<K>, Pool<false>>::new_in();
        tree.store_range(10..=19, Canary::new(2)).unwrap();
        let tree = Arc::new(tree);
        let writer = {
            let tree = tree.clone();
            thread::spawn(move || drop(tree.erase(15).unwrap()))
        };
        {
            let guard = tree.pin();
            if let Some(seen) = tree.load(&guard, 15) {
                assert_eq!(seen.value(), 2);
            }
        }
        writer.join().unwrap();
    });
}

/// Loom must stop the model with a report of the two accesses that race.
fn caught(run: fn()) {
    let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("the mutant survived");
    let report = panic.downcast_ref::<String>().map(String::as_str).unwrap_or_default();
    assert!(report.contains("Causality violation"), "loom reported another failure: {report}");
}

#[test]
fn the_right_engine_passes() {
    nodes::<Right>();
    entries::<Right>();
}

#[test]
fn no_grace_period() {
    caught(nodes::<Hasty>);
    caught(entries::<Hasty>);
}

#[test]
fn a_guard_that_misses_an_unlinking() {
    caught(nodes::<LooseStart>);
    caught(entries::<LooseStart>);
}

#[test]
fn a_free_that_does_not_wait_for_the_last_look() {
    caught(nodes::<LooseEnd>);
    caught(entries::<LooseEnd>);
}
