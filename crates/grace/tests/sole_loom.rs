//! The protocol of `Sole` under loom: a writer that changes a node in place if it is alone, and
//! copies it if not, while a reader runs on another CPU.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p samara-grace --features quiescent --test
//! sole_loom`
#![cfg(loom)]

mod host;

use grace::Reclaim;
use grace::sole::{Sole, Tries};
use host::Cpus;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use std::ptr::NonNull;
// Not loom's `Arc`, which cannot be dropped after a model has failed.
use std::sync::Arc;

struct State {
    cpus: Arc<Cpus>,
    sole: Sole<Grace>,
    tries: Tries,
    /// The node that readers find. A copy goes into the next.
    current: AtomicUsize,
    nodes: [UnsafeCell<u32>; 3],
}

type Grace = host::Grace<false>;

// SAFETY: the cells are accessed only as the protocol allows, and loom checks that.
unsafe impl Sync for State {}
// SAFETY: as above.
unsafe impl Send for State {}

/// An access: the node that is current, at its value.
fn look(state: &State) {
    let guard = Grace::pin();
    state.sole.read(&guard);
    // Acquire: pairs with the Release of a copy.
    let now = state.current.load(Ordering::Acquire);
    // SAFETY: loom checks that no write is concurrent.
    state.nodes[now].with(|node| assert_ne!(unsafe { *node }, 0));
}

/// A write: in place if this CPU is alone, or else into the next node. Returns whether in place.
fn write(state: &State, value: u32) -> bool {
    let guard = Grace::pin();
    let alone = state.sole.write(&guard, &state.tries);
    let in_place = alone.is_some();
    // Relaxed: only this thread writes it.
    let now = state.current.load(Ordering::Relaxed);
    let node = if in_place { now } else { now + 1 };
    // SAFETY: loom checks that no access is concurrent.
    state.nodes[node].with_mut(|node| unsafe { *node = value });
    if !in_place {
        // Release: the node is complete.
        state.current.store(node, Ordering::Release);
    }
    in_place
}

unsafe fn nothing(_: NonNull<()>) {}

/// Lets a grace period begin, and ends those that all CPUs have passed.
fn pass() {
    let guard = Grace::pin();
    // SAFETY: `nothing` frees nothing.
    unsafe { Grace::retire(&guard, NonNull::dangling(), nothing) };
    Grace::flush(&guard);
    drop(guard);
    assert!(Grace::quiescent_state());
}

/// The CPU 0 writes twice, and CPU 1 looks twice. If `shared`, both have used the structure before,
/// and the writer tries to be alone again.
fn model(shared: bool) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(4);
    let counts = [0; 2].map(|_| std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0)));
    let [runs, in_place] = counts.clone();
    builder.check(move || {
        runs.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let state = Arc::new(State {
            cpus: Cpus::new(),
            sole: Sole::new(),
            tries: Tries::at_once(),
            current: AtomicUsize::new(0),
            nodes: [0; 3].map(|_| UnsafeCell::new(1)),
        });
        if shared {
            (0..2).for_each(|cpu| state.cpus.on(cpu, || look(&state)));
        }
        state.cpus.on(0, || assert!(Grace::quiescent_state()));
        let other = state.clone();
        let reader = loom::thread::spawn(move || {
            other.cpus.on(1, || {
                assert!(Grace::quiescent_state());
                look(&other);
                assert!(Grace::quiescent_state());
                look(&other);
                assert!(Grace::idle_enter());
            });
        });
        state.cpus.on(0, || {
            let first = write(&state, 2);
            assert!(!(shared && first));
            if shared {
                (0..2).for_each(|_| pass());
            }
            let alone = write(&state, 3);
            in_place.fetch_add(alone.into(), std::sync::atomic::Ordering::Relaxed);
        });
        reader.join().unwrap();
    });
    let [runs, in_place] = counts.map(|count| count.load(std::sync::atomic::Ordering::Relaxed));
    println!("shared {shared}: {runs} interleavings, {in_place} in place");
    assert!(in_place > 0 && in_place < runs, "both cases are modelled");
}

#[test]
fn a_writer_that_is_alone_until_a_reader_comes() {
    model(false);
}

#[test]
fn a_writer_that_is_alone_again() {
    model(true);
}
