use super::*;
use crate::batch::BATCH;
use crate::batch::tests::NO_MEMORY;
use core::ptr::NonNull;
use std::boxed::Box;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::vec::Vec;

std::thread_local! {
    static FREED: Cell<usize> = const { Cell::new(0) };
    /// The `ThreadBatches` to which some pieces retire another piece when they are freed.
    static RETIRES: Cell<Option<&'static ThreadBatches>> = const { Cell::new(None) };
}

fn count() {
    FREED.set(FREED.get() + 1);
}

fn item(free: unsafe fn(NonNull<()>)) -> RetiredPiece {
    RetiredPiece { ptr: NonNull::dangling(), free }
}

unsafe fn counted(_: NonNull<()>) {
    count();
}

unsafe fn panics(_: NonNull<()>) {
    count();
    panic!("a panic in a free");
}

unsafe fn retires(_: NonNull<()>) {
    count();
    let home = RETIRES.get().expect("set by the test");
    home.collect(|| ());
    assert!(matches!(home.add(item(counted)), AddOutcome::Open));
}

/// Adds pieces until a batch is full.
fn fill(home: &ThreadBatches) -> BatchToken {
    for _ in 1..BATCH {
        assert!(matches!(home.add(item(counted)), AddOutcome::Open));
    }
    match home.add(item(counted)) {
        AddOutcome::Closed(token) => token,
        _ => panic!("not full"),
    }
}

#[test]
fn a_batch_is_freed_by_its_thread_when_the_token_has_run() {
    let home = ThreadBatches::new();
    let token = fill(&home);
    assert!(matches!(home.add(item(counted)), AddOutcome::Open));
    home.collect(|| ());
    assert_eq!(FREED.get(), 0);
    thread::spawn(|| token.pass()).join().unwrap();
    assert_eq!(FREED.get(), 0);
    home.collect(|| ());
    assert_eq!(FREED.get(), BATCH, "the batch alone, by this thread");
}

#[test]
fn a_token_marks_earlier_batches_too() {
    let home = ThreadBatches::new();
    let tokens: Vec<BatchToken> = (0..3).map(|_| fill(&home)).collect();
    let [first, second, third] = tokens.try_into().ok().unwrap();
    second.pass();
    home.collect(|| ());
    assert_eq!(FREED.get(), 2 * BATCH);
    first.pass();
    home.collect(|| ());
    assert_eq!(FREED.get(), 2 * BATCH, "an earlier token undid a later one");
    third.pass();
    home.collect(|| ());
    assert_eq!(FREED.get(), 3 * BATCH);
}

#[test]
fn waiting_batches_are_bounded() {
    let home = ThreadBatches::new();
    let mut tokens: Vec<BatchToken> = (0..MOST).map(|_| fill(&home)).collect();
    assert!(!home.is_full());
    tokens.push(fill(&home));
    assert!(home.is_full());
    let left: Vec<_> = home.leave().collect();
    assert_eq!(left.len() as u64, MOST + 1, "each batch by itself");
    assert!(home.is_empty() && home.leave().next().is_none());
    tokens.into_iter().for_each(BatchToken::pass);
    assert!(!home.is_full());
    home.collect(|| ());
    assert_eq!(FREED.get(), 0, "a batch that was handed over was freed here");
    // SAFETY: no code accesses the pieces.
    left.into_iter().for_each(|left| unsafe { left.free() });
    assert_eq!(FREED.get(), (MOST as usize + 1) * BATCH);
}

#[test]
fn a_free_that_panics_leaks_no_other_piece() {
    let home = ThreadBatches::new();
    assert!(matches!(home.add(item(panics)), AddOutcome::Open));
    (2..BATCH).for_each(|_| assert!(matches!(home.add(item(counted)), AddOutcome::Open)));
    let AddOutcome::Closed(token) = home.add(item(counted)) else { panic!("not full") };
    token.pass();
    assert!(catch_unwind(AssertUnwindSafe(|| home.collect(|| ()))).is_err());
    assert_eq!(FREED.get(), 1);
    home.collect(|| ());
    assert_eq!(FREED.get(), BATCH);
}

#[test]
fn a_piece_may_retire_others() {
    let home: &'static ThreadBatches = Box::leak(Box::new(ThreadBatches::new()));
    RETIRES.set(Some(home));
    (1..BATCH).for_each(|_| assert!(matches!(home.add(item(counted)), AddOutcome::Open)));
    let AddOutcome::Closed(token) = home.add(item(retires)) else { panic!("not full") };
    token.pass();
    home.collect(|| ());
    assert_eq!(FREED.get(), BATCH);
    let left: Vec<_> = home.leave().collect();
    assert_eq!(left.len(), 1, "one batch, with the piece that a free retired");
    // SAFETY: no code accesses the pieces.
    left.into_iter().for_each(|left| unsafe { left.free() });
    assert_eq!(FREED.get(), BATCH + 1);
}

#[test]
fn without_memory_a_piece_is_refused() {
    let home = ThreadBatches::new();
    NO_MEMORY.set(true);
    assert!(matches!(home.add(item(counted)), AddOutcome::NoMemory));
    assert!(home.is_empty());
    NO_MEMORY.set(false);
    assert!(matches!(home.add(item(counted)), AddOutcome::Open));
}
