//! Every interleaving, within a bound on preemptions, of readers beside a writer on small nodes.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p samara-maple --test loom`;
//! `LOOM_MAX_PREEMPTIONS` raises the bound. What is checked: I1 (what is there throughout is found,
//! what is replaced is found old or new, ranges are whole), that no node or entry is written or
//! freed while somebody may look (loom tracks each access), and that everything is freed in the
//! end. The mutants show that it would notice.
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

/// Runs a model with a bound on preemptions: 2, or what the environment says.
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

/// A tree with entry `i + 1` at `i * 10..=i * 10 + 9` for each `i` below `n`, and a hole after
/// them.
fn touching<R: grace::Concurrent, A: NodeAlloc>(n: usize) -> MapleTree<u32, R, A> {
    let mut tree = MapleTree::new_in();
    for i in 0..n {
        tree.get_mut().store_range(i * 10..=i * 10 + 9, i as u32 + 1).unwrap();
    }
    tree
}

/// As [`touching`], each entry half as long, so that a hole follows each.
fn apart<R: grace::Concurrent, A: NodeAlloc>(n: usize) -> MapleTree<u32, R, A> {
    let mut tree = MapleTree::new_in();
    for i in 0..n {
        tree.get_mut().store_range(i * 10..=i * 10 + 4, i as u32 + 1).unwrap();
    }
    tree
}
