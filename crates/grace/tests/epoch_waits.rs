//! What waits for a thread that goes on to nothing, with `Epoch`: it is bounded, and others free
//! it, a few batches at a time.
//!
//! In a process of its own: the collector is the program's, and a guard of another test would hold
//! it up.
#![cfg(feature = "std")]

use grace::{Epoch, Reclaim};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Pieces of a batch, and as many batches as may wait for a thread: see `epoch/home.rs`.
const BATCH: usize = 62;
const MAY_WAIT: usize = 10 * BATCH;
/// A guard runs what is in eight of the collector's bags.
const AT_ONCE: usize = 8 * BATCH;

static FREED: AtomicUsize = AtomicUsize::new(0);

unsafe fn free(_: NonNull<()>) {
    // Relaxed: a count.
    FREED.fetch_add(1, Ordering::Relaxed);
}

fn freed() -> usize {
    // Relaxed: as above.
    FREED.load(Ordering::Relaxed)
}

fn retire(pieces: usize) {
    for _ in 0..pieces {
        // SAFETY: `free` looks at nothing.
        unsafe { Epoch::retire(&Epoch::pin(), NonNull::dangling(), free) }
    }
}

/// Takes guards, and returns the most that one of them freed.
fn pins(n: usize) -> usize {
    let pin = |_| {
        let before = freed();
        drop(Epoch::pin());
        freed() - before
    };
    (0..n).map(pin).max().unwrap()
}

/// One test: what is freed is counted in one place.
#[test]
fn what_waits_for_an_idle_thread_is_bounded() {
    // The last of them in a batch that is still being filled.
    const PIECES: usize = 40 * BATCH + 5;
    let (retired, wait) = mpsc::channel();
    let (end, ends) = mpsc::channel::<()>();
    let guard = Epoch::pin();
    let idle = thread::spawn(move || {
        retire(PIECES);
        retired.send(()).unwrap();
        // It neither retires, nor takes guards, nor ends.
        let _ = ends.recv();
    });
    wait.recv().unwrap();
    assert_eq!(pins(128 * 100), 0, "nothing is freed beside an older guard");
    drop(guard);
    // No flush, and nothing that is retired here: guards alone.
    let most = pins(128 * 400);
    let (least, freed_by) = (PIECES - MAY_WAIT, freed());
    assert!(freed_by >= least, "{freed_by} freed of {PIECES}");
    assert!(most <= AT_ONCE, "{most} freed by one guard");
    // A thread that ends leaves nothing.
    drop(end);
    idle.join().unwrap();
    assert!(pins(128 * 100) <= AT_ONCE);
    assert_eq!(freed(), PIECES);
}
