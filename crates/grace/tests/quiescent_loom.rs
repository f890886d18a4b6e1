//! The protocol of `Quiescent` under loom: a reader concurrent with a writer, with CPUs that become
//! idle and active.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p samara-grace --features quiescent --test
//! quiescent_loom`
#![cfg(loom)]

mod host;

use grace::Reclaim;
use grace::quiescent::BATCH;
use host::Cpus;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use std::ptr::NonNull;
// Not loom's `Arc`, which cannot be dropped after a model has failed.
use std::sync::Arc;

/// Readers access `contents` while `linked` is 1. The free writes to `contents`.
struct Piece {
    linked: AtomicUsize,
    contents: UnsafeCell<u32>,
}

struct State {
    cpus: Arc<Cpus>,
    piece: Piece,
}

type Grace = host::Grace<true>;

impl State {
    fn new() -> Arc<State> {
        Arc::new(State {
            cpus: Cpus::new(),
            piece: Piece { linked: AtomicUsize::new(1), contents: UnsafeCell::new(7) },
        })
    }
}

unsafe fn free(ptr: NonNull<()>) {
    // SAFETY: the piece of this model's state.
    let piece = unsafe { ptr.cast::<Piece>().as_ref() };
    // SAFETY: loom checks that no other access is concurrent or unordered.
    piece.contents.with_mut(|contents| unsafe { *contents = 0 });
}

fn look(piece: &Piece) {
    // Relaxed: only the engine has to order it against the free.
    if piece.linked.load(Ordering::Relaxed) == 1 {
        // SAFETY: loom checks that no write is concurrent.
        piece.contents.with(|contents| assert_eq!(unsafe { *contents }, 7));
    }
}

unsafe fn nothing(_: NonNull<()>) {}

fn retire_nothing() {
    // SAFETY: `nothing` frees nothing.
    unsafe { Grace::retire(&Grace::pin(), NonNull::dangling(), nothing) };
}

/// Unlinks the piece, retires it as the last of a full batch, and tries to free it while the other
/// CPU runs.
fn writer(state: &Arc<State>) {
    (1..BATCH).for_each(|_| retire_nothing());
    // Relaxed: as in `look`.
    state.piece.linked.store(0, Ordering::Relaxed);
    // SAFETY: the piece is unlinked, and retired once.
    unsafe { Grace::retire(&Grace::pin(), NonNull::from(&state.piece).cast(), free) };
    for _ in 0..2 {
        Grace::quiescent_state();
        Grace::reclaim(usize::MAX);
    }
}

#[derive(Clone, Copy, Debug)]
enum Reader {
    /// Reports a quiescent state before and after it reads.
    Announces,
    /// Begins the grace period itself, before it reads.
    Begins,
    /// Was idle, reads, and becomes idle again.
    ComesBack,
    /// Was idle, reports a quiescent state, then reads.
    TickWhileAway,
}

fn model(reader: Reader) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(5);
    let runs = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = runs.clone();
    builder.check(move || {
        // Relaxed: a counter.
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let state = State::new();
        if !matches!(reader, Reader::ComesBack | Reader::TickWhileAway) {
            state.cpus.on(1, || assert!(Grace::quiescent_state()));
        }
        state.cpus.on(0, || assert!(Grace::quiescent_state()));
        let other = state.clone();
        let thread = loom::thread::spawn(move || {
            other.cpus.on(1, || {
                match reader {
                    Reader::Announces | Reader::TickWhileAway => assert!(Grace::quiescent_state()),
                    Reader::Begins => {
                        retire_nothing();
                        assert!(Grace::quiescent_state());
                    }
                    Reader::ComesBack => {}
                }
                let guard = Grace::pin();
                look(&other.piece);
                drop(guard);
                match reader {
                    Reader::ComesBack => assert!(Grace::idle_enter()),
                    _ => assert!(Grace::quiescent_state()),
                }
            });
        });
        state.cpus.on(0, || writer(&state));
        thread.join().unwrap();
        // In the end the piece is freed.
        state.cpus.on(1, || assert!(Grace::idle_enter()));
        state.cpus.on(0, || {
            (0..3).for_each(|_| assert!(Grace::quiescent_state()));
            Grace::reclaim(usize::MAX);
            assert!(!Grace::is_pending());
        });
    });
    println!("{reader:?}: {} interleavings", runs.load(std::sync::atomic::Ordering::Relaxed));
}

#[test]
fn a_reader_that_reports() {
    model(Reader::Announces);
}

#[test]
fn a_reader_that_begins_the_period() {
    model(Reader::Begins);
}

#[test]
fn a_reader_that_was_idle() {
    model(Reader::ComesBack);
}

/// An idle CPU reports a quiescent state from its timer, and then reads. The report has made it
/// active.
#[test]
fn a_report_of_an_idle_cpu_ends_the_idle_state() {
    model(Reader::TickWhileAway);
}
