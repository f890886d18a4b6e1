//! The waiters of futexes, in buckets, each with a lock.
//!
//! # Why no wake-up is lost
//! A waiter compares the word and enters its bucket in one critical section. A waker changes the
//! word first, and takes waiters out of the bucket in a later critical section. If the waker's
//! comes first, the waiter reads the new word; else the waker finds the waiter. After that the
//! waiter has left the bucket, so it is woken at most once. It looks at [`Waiter::is_woken`] after
//! it has said that it waits (`task/state.rs`), so it does not park after the wake-up.
//!
//! A waiter that gives up takes itself out of its bucket. A requeue changes the bucket with both
//! locks held, so the waiter looks again with the lock held whether it has the right one.
//! `crates/machine/tests/futex_loom.rs` runs this file under loom.

use super::Sleeper;
use super::sync::{AtomicBool, AtomicUsize, Mutex, Ordering};
use crate::lock::lock;
use alloc::collections::TryReserveError;
use alloc::sync::Arc;
use alloc::vec::Vec;

/// A thread that waits.
pub(crate) struct Waiter {
    thread: Arc<dyn Sleeper>,
    bits: u32,
    woken: AtomicBool,
    /// The bucket that has it. A requeue changes it, with both locks held.
    bucket: AtomicUsize,
}

/// Waiters with their keys, in the order in which they came.
pub(super) type Bucket<K> = Mutex<Vec<(K, Arc<Waiter>)>>;

impl Waiter {
    /// A waiter for one of the bits, in no bucket yet.
    pub(super) fn new(thread: Arc<dyn Sleeper>, bits: u32) -> Arc<Waiter> {
        Arc::new(Waiter {
            thread,
            bits,
            woken: AtomicBool::new(false),
            bucket: AtomicUsize::new(0),
        })
    }

    /// Whether it was woken.
    pub(crate) fn is_woken(&self) -> bool {
        // Relaxed: a waker stores it before the fence of `State::wake`, and the waiter loads it
        // after that of `State::begin_wait`.
        self.woken.load(Ordering::Relaxed)
    }

    fn wake(&self) {
        // Relaxed: as above.
        self.woken.store(true, Ordering::Relaxed);
        Arc::clone(&self.thread).wake();
    }

    /// Ends the wait from the waiter's side. Returns whether it was woken before.
    pub(super) fn give_up<K>(self: &Arc<Self>, table: &[Bucket<K>]) -> bool {
        loop {
            // Relaxed: checked with the lock held.
            let bucket = self.bucket.load(Ordering::Relaxed);
            let mut waiters = lock(&table[bucket]);
            if self.bucket.load(Ordering::Relaxed) != bucket {
                continue;
            }
            let before = waiters.len();
            waiters.retain(|(_, other)| !Arc::ptr_eq(other, self));
            // A waker has taken it, and may not have marked it yet.
            return waiters.len() == before;
        }
    }
}

/// A key with the bucket in which its waiters are.
#[derive(Clone, Copy)]
pub(super) struct Place<K> {
    pub(super) key: K,
    pub(super) bucket: usize,
}

/// Adds a new waiter, if `fits` says so with the lock held. Returns the result of `fits`.
///
/// # Errors
/// No memory.
pub(super) fn add<K>(
    table: &[Bucket<K>],
    place: Place<K>,
    waiter: &Arc<Waiter>,
    fits: impl FnOnce() -> Option<bool>,
) -> Result<Option<bool>, TryReserveError> {
    let mut waiters = lock(&table[place.bucket]);
    let fits = fits();
    if fits == Some(true) {
        waiters.try_reserve(1)?;
        // Relaxed: read with the lock held.
        waiter.bucket.store(place.bucket, Ordering::Relaxed);
        waiters.push((place.key, Arc::clone(waiter)));
    }
    Ok(fits)
}

/// Takes up to `most` waiters of a key with one of the bits out of a bucket.
fn take<K: PartialEq>(
    waiters: &mut Vec<(K, Arc<Waiter>)>,
    key: &K,
    most: usize,
    bits: u32,
) -> Vec<Arc<Waiter>> {
    let mut taken = Vec::new();
    waiters.retain(|(of, waiter)| {
        let wanted = of == key && waiter.bits & bits != 0 && taken.len() < most;
        if wanted {
            taken.push(Arc::clone(waiter));
        }
        !wanted
    });
    taken
}

/// Wakes up to `most` waiters of a key that wait for one of the bits. Returns how many.
pub(super) fn wake<K: PartialEq>(
    table: &[Bucket<K>],
    place: Place<K>,
    most: usize,
    bits: u32,
) -> usize {
    let taken = take(&mut lock(&table[place.bucket]), &place.key, most, bits);
    taken.iter().for_each(|waiter| waiter.wake());
    taken.len()
}

/// Wakes up to `most` waiters of one key, and makes up to `others` more wait for another, if `fits`
/// says so with both locks held. Returns how many both are.
///
/// # Errors
/// The result of `fits`. Nothing has changed.
pub(super) fn requeue<K: PartialEq + Copy>(
    table: &[Bucket<K>],
    from: Place<K>,
    to: Place<K>,
    (most, others): (usize, usize),
    fits: impl FnOnce() -> Option<bool>,
) -> Result<usize, Option<bool>> {
    // In the order of the buckets, so that two requeues do not wait for each other.
    let (low, high) = (from.bucket.min(to.bucket), from.bucket.max(to.bucket));
    let mut low_bucket = lock(&table[low]);
    let mut high_bucket = (low != high).then(|| lock(&table[high]));
    match fits() {
        Some(true) => {}
        said => return Err(said),
    }
    let source = match &mut high_bucket {
        Some(high_bucket) if from.bucket == high => high_bucket,
        _ => &mut low_bucket,
    };
    let woken = take(source, &from.key, most, u32::MAX);
    let moved = take(source, &from.key, others, u32::MAX);
    let target = match &mut high_bucket {
        Some(high_bucket) if to.bucket == high => high_bucket,
        _ => &mut low_bucket,
    };
    for waiter in &moved {
        // Relaxed: with both locks held.
        waiter.bucket.store(to.bucket, Ordering::Relaxed);
        target.push((to.key, Arc::clone(waiter)));
    }
    drop((low_bucket, high_bucket));
    woken.iter().for_each(|waiter| waiter.wake());
    Ok(woken.len() + moved.len())
}
