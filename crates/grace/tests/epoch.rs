//! `Epoch` with threads: a piece that is accessed under a guard has not been freed, and every piece
//! is freed once.
//!
//! In release, some seconds find rare errors. Miri reports a data race or a use after free
//! directly: `cargo miri test -p samara-grace --features std --test epoch`.
#![cfg(feature = "std")]

#[path = "../../trace/tests/common/patience.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod patience;

use grace::{Epoch, EpochGuard, Reclaim};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::thread;

/// Also under Miri, a thread retires more pieces than may wait, so that it frees its own due
/// pieces.
const WRITES: usize = if cfg!(miri) { 150 } else { 100_000 };
const KEY: usize = 0x5ca1_ab1e;

/// A number and its check. Not atomic, so a free concurrent with a read is a data race.
struct Node {
    number: usize,
    check: usize,
}

static FREED: AtomicUsize = AtomicUsize::new(0);

fn node(number: usize) -> *mut Node {
    Box::into_raw(Box::new(Node { number, check: number ^ KEY }))
}

unsafe fn free(ptr: NonNull<()>) {
    // SAFETY: each node is retired once.
    let mut node = unsafe { Box::from_raw(ptr.cast::<Node>().as_ptr()) };
    assert_eq!(node.number ^ KEY, node.check, "freed twice");
    node.check = !node.check;
    // Relaxed: a counter.
    FREED.fetch_add(1, Ordering::Relaxed);
}

/// Replaces the node, and retires the old one.
fn replace(place: &AtomicPtr<Node>, number: usize) {
    // AcqRel: publishes the new node, and orders the writes that made the old one before its free.
    let old = place.swap(node(number), Ordering::AcqRel);
    let guard = Epoch::pin();
    let old = NonNull::new(old).expect("never null").cast();
    // SAFETY: later loads find the new node, and the thread that swaps a node out retires it.
    unsafe { Epoch::retire(&guard, old, free) }
}

fn look<'g>(place: &AtomicPtr<Node>, _guard: &'g EpochGuard) -> &'g Node {
    // Acquire: pairs with the Release of the swap that published it. SAFETY: it was there after the
    // guard was taken, so it is freed after the guard's end.
    let node = unsafe { &*place.load(Ordering::Acquire) };
    assert_eq!(node.number ^ KEY, node.check, "accessed after it was freed");
    node
}

fn wait_for(count: usize) {
    patience::until("retired nodes are freed", || {
        Epoch::pin().flush();
        FREED.load(Ordering::Relaxed) >= count
    });
    assert_eq!(FREED.load(Ordering::Relaxed), count);
}

/// One test, because frees are counted in one static.
#[test]
fn readers_beside_writers() {
    let places: Vec<_> = (0..4).map(|_| AtomicPtr::new(node(0))).collect();
    let stop = AtomicBool::new(false);
    let looks: usize = thread::scope(|scope| {
        let writers: Vec<_> = (0..2)
            .map(|writer| {
                let places = &places;
                scope.spawn(move || {
                    for number in 1..=WRITES {
                        replace(&places[(number + writer) % places.len()], number);
                    }
                })
            })
            .collect();
        let readers: Vec<_> = (0..2).map(|_| scope.spawn(|| read(&places, &stop))).collect();
        for writer in writers {
            writer.join().unwrap();
        }
        // Release: pairs with the readers' Acquire.
        stop.store(true, Ordering::Release);
        readers.into_iter().map(|reader| reader.join().unwrap()).sum()
    });
    assert!(looks > 0);
    println!("{} nodes replaced, {looks} looked at", 2 * WRITES);
    // The threads that retired the last nodes have ended. Those nodes are freed, too.
    for place in &places {
        replace(place, 7);
    }
    wait_for(2 * WRITES + places.len());
    for place in places {
        // SAFETY: all other threads have ended.
        drop(unsafe { Box::from_raw(place.into_inner()) });
    }
}

/// Reads under one guard, under nested guards, and under a repinned guard.
fn read(places: &[AtomicPtr<Node>], stop: &AtomicBool) -> usize {
    let mut looks = 0;
    while looks == 0 || !stop.load(Ordering::Acquire) {
        let mut guard = Epoch::pin();
        let seen: Vec<_> = places.iter().map(|place| look(place, &guard)).collect();
        let inner = Epoch::pin();
        look(&places[0], &inner);
        drop(inner);
        // No node that was seen under the outer guard has been freed meanwhile.
        for node in seen {
            assert_eq!(node.number ^ KEY, node.check, "freed under a guard");
            looks += 1;
        }
        guard.repin();
        look(&places[1], &guard);
        looks += 2;
    }
    looks
}
