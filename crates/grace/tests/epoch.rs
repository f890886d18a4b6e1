//! `Epoch` with threads: what is looked at under a guard has not been freed, and everything is
//! freed once.
//!
//! Some seconds in release show what is rare; Miri shows a data race or a use after the free
//! outright: `cargo miri test -p samara-grace --features std --test epoch`.
#![cfg(feature = "std")]

use grace::{Epoch, EpochGuard, Reclaim};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Also under Miri a thread retires more than waits as one, so that it frees itself what has come
/// due.
const WRITES: usize = if cfg!(miri) { 150 } else { 100_000 };
const KEY: usize = 0x5ca1_ab1e;

/// A number and its check; not atomic, so that a free beside a look is a data race.
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
    // Relaxed: a count.
    FREED.fetch_add(1, Ordering::Relaxed);
}

/// Puts a new node in the place of the old one, and retires that.
fn replace(place: &AtomicPtr<Node>, number: usize) {
    // AcqRel: publishes the new node, and what made the old one comes before its end.
    let old = place.swap(node(number), Ordering::AcqRel);
    let guard = Epoch::pin();
    let old = NonNull::new(old).expect("never null").cast();
    // SAFETY: whoever loads from now on finds the new node; who swaps it out retires it.
    unsafe { Epoch::retire(&guard, old, free) }
}

fn look<'g>(place: &AtomicPtr<Node>, _guard: &'g EpochGuard) -> &'g Node {
    // Acquire: pairs with the Release of the swap that published it.
    // SAFETY: it was there after the guard began, so it is freed after the guard's end.
    let node = unsafe { &*place.load(Ordering::Acquire) };
    assert_eq!(node.number ^ KEY, node.check, "looked at after its end");
    node
}

fn wait_for(count: usize) {
    let began = Instant::now();
    while FREED.load(Ordering::Relaxed) < count {
        assert!(began.elapsed() < Duration::from_secs(60), "never freed");
        Epoch::pin().flush();
        thread::yield_now();
    }
    assert_eq!(FREED.load(Ordering::Relaxed), count);
}

/// One test: what is freed is counted in one place.
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
    // Threads are gone that had retired the last of them: those are freed as well.
    for place in &places {
        replace(place, 7);
    }
    wait_for(2 * WRITES + places.len());
    for place in places {
        // SAFETY: nobody else is left.
        drop(unsafe { Box::from_raw(place.into_inner()) });
    }
}

/// Looks under one guard, under nested ones, and under one that is renewed.
fn read(places: &[AtomicPtr<Node>], stop: &AtomicBool) -> usize {
    let mut looks = 0;
    while looks == 0 || !stop.load(Ordering::Acquire) {
        let mut guard = Epoch::pin();
        let seen: Vec<_> = places.iter().map(|place| look(place, &guard)).collect();
        let inner = Epoch::pin();
        look(&places[0], &inner);
        drop(inner);
        // Nothing seen under the outer guard has gone meanwhile.
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
