//! The pieces of an idle thread with `Epoch`: their number is bounded, and other threads free them,
//! a few batches at a time.
//!
//! In a process of its own, since the collector belongs to the process, and a guard of another test
//! would delay it.
#![cfg(feature = "std")]

use grace::{Epoch, Reclaim};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// The pieces of a batch, and an upper bound of the pieces that wait for a thread: see
/// `epoch/thread_batches.rs`.
const BATCH: usize = 62;
const MAY_WAIT: usize = 10 * BATCH;
/// A guard runs the functions of eight of the collector's bags.
const AT_ONCE: usize = 8 * BATCH;

static FREED: AtomicUsize = AtomicUsize::new(0);

unsafe fn free(_: NonNull<()>) {
    // Relaxed: a counter.
    FREED.fetch_add(1, Ordering::Relaxed);
}

fn freed() -> usize {
    // Relaxed: as above.
    FREED.load(Ordering::Relaxed)
}

fn retire(pieces: usize) {
    for _ in 0..pieces {
        // SAFETY: `free` accesses nothing.
        unsafe { Epoch::retire(&Epoch::pin(), NonNull::dangling(), free) }
    }
}

/// Takes guards, and returns the largest number of frees that one of them ran.
fn pins(n: usize) -> usize {
    let pin = |_| {
        let before = freed();
        drop(Epoch::pin());
        freed() - before
    };
    (0..n).map(pin).max().unwrap()
}

/// One test, because frees are counted in one static.
#[test]
fn the_pieces_of_an_idle_thread_are_bounded() {
    // The last pieces are in a batch that is not full.
    const PIECES: usize = 40 * BATCH + 5;
    let (retired, wait) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    let guard = Epoch::pin();
    let idle = thread::spawn(move || {
        retire(PIECES);
        retired.send(()).unwrap();
        // Meanwhile the thread neither retires, nor takes guards, nor ends.
        let _ = ends.recv();
    });
    wait.recv().unwrap();
    assert_eq!(pins(128 * 100), 0, "nothing is freed under an older guard");
    drop(guard);
    // Only guards: this thread neither flushes nor retires.
    let most = pins(128 * 400);
    let (least, freed_by) = (PIECES - MAY_WAIT, freed());
    assert!(freed_by >= least, "{freed_by} freed of {PIECES}");
    assert!(most <= AT_ONCE, "{most} freed by one guard");
    // A thread that ends leaves no piece unfreed.
    drop(end);
    idle.join().unwrap();
    assert!(pins(128 * 100) <= AT_ONCE);
    assert_eq!(freed(), PIECES);
}
