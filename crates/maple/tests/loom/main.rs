//! Every interleaving, within a bound on preemptions, of readers and a writer on trees with small
//! nodes.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p samara-maple --test loom`;
//! `LOOM_MAX_PREEMPTIONS` raises the bound.
//!
//! The models check three things:
//!
//! - I1: a reader finds every entry that exists throughout, and finds a replaced entry in its old
//!   or new form, with a whole range.
//! - No node or entry is written or freed while a reader may access it: loom tracks each access.
//! - Everything is freed in the end.
//!
//! The mutants show that the models detect a violation.
#![cfg(loom)]

mod engine;
mod entries;
mod gaps;
mod memory;
mod mutants;
mod readers;
mod sharing;
mod walks;
mod writers;

use engine::{Counting, Right};
use maple::{MapleTree, NodeAlloc};
use memory::Pool;
// Not loom's: these count across the runs of a model.
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

type Tree = MapleTree<u32, Counting<Right>, Pool<false>>;

/// Runs a model with a bound on preemptions: 2, or the bound from the environment.
fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(2);
    builder.max_branches = 20_000;
    let runs = Arc::new(AtomicUsize::new(0));
    let count = runs.clone();
    builder.check(move || {
        // Relaxed: a count, read at the end.
        count.fetch_add(1, Ordering::Relaxed);
        memory::begin();
        engine::begin();
        run();
        assert_eq!(engine::collect(), 0);
        assert_eq!(memory::live(), 0, "nodes or entries leaked");
    });
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    println!("{name}: {} interleavings", runs.load(Ordering::Relaxed));
}

/// A tree with the entry `i + 1` at `i * 10..=i * 10 + 9` for each `i` below `n`, and a hole after
/// them.
fn touching<R: grace::Concurrent, A: NodeAlloc>(n: usize) -> MapleTree<u32, R, A> {
    let mut tree = MapleTree::new_in();
    for i in 0..n {
        tree.get_mut().store_range(i * 10..=i * 10 + 9, i as u32 + 1).unwrap();
    }
    tree
}

/// As [`touching`], but each entry is half as long, so that a hole follows it.
fn apart<R: grace::Concurrent, A: NodeAlloc>(n: usize) -> MapleTree<u32, R, A> {
    let mut tree = MapleTree::new_in();
    for i in 0..n {
        tree.get_mut().store_range(i * 10..=i * 10 + 4, i as u32 + 1).unwrap();
    }
    tree
}
