//! The hosted engine: epochs, kept by crossbeam-epoch's default collector.
//!
//! Why the promise holds: the collector frees what is deferred in epoch `e` only after the global
//! epoch has advanced twice beyond it, and the epoch cannot advance past a pinned thread that has
//! not seen the current one. Pinning is a store and a full fence; the collector's scan and its
//! free come after an acquire of every thread's epoch, which pairs with the release of unpinning.
//!
//! What is deferred is for the most part not the thing itself, but a token for a batch of them,
//! which the thread that retired them frees: see [`home`].

mod home;

use crate::batch::Item;
use crate::{Concurrent, Reclaim};
use core::ptr::NonNull;
use home::{Added, Home, Left, Token};
use std::thread_local;

thread_local! {
    static HOME: Home = Home::new();
}

/// Deferred functions that a bag of the collector's holds, at most. A guard, or a flush, runs those
/// of eight bags: so each batch that is handed over has a bag to itself.
const BAG: usize = 64;

/// Frees a batch, and collects no other meanwhile.
///
/// # Safety
/// As for [`Left::free`].
unsafe fn free_quietly(left: Left) {
    let mut left = Some(left);
    // SAFETY: the caller's promise.
    let free = |left: &mut Option<Left>| unsafe { left.take().into_iter().for_each(|l| l.free()) };
    let done = HOME.try_with(|home| home.freeing(|| free(&mut left)));
    if done.is_err() {
        // The thread is ending: it has no home to collect from.
        free(&mut left);
    }
}

/// The thread has ended.
impl Drop for Home {
    fn drop(&mut self) {
        if !self.is_empty() {
            Epoch::pin().hand_over(self);
        }
    }
}

/// Epoch-based reclamation on the default collector of crossbeam-epoch (feature `std`).
///
/// Cost of a guard: one thread-local store and one fence. Cost of retiring: two words written to a
/// batch of the thread's own, of 62. A full batch costs an allocation, and every second one
/// another; and it frees those of the thread's that have come due. Every second one, and every
/// 128th guard of a thread, tries to have a bounded number of others come due.
///
/// A thread frees what it has retired itself, so that the memory stays with the processor that has
/// it in its cache. So not quite ten batches may wait for a thread that retires nothing more, until
/// it flushes or ends. Beside a guard that stays long, and after a flush, any thread that takes a
/// guard frees what has come due: at most eight batches of 62 pieces at once.
///
/// A guard that is forgotten holds up every free in the program, for ever, even after its thread
/// has ended: a reference taken under it may have been sent elsewhere, and is good for as long as
/// the guard.
///
/// ```
/// use grace::{Epoch, Reclaim};
/// use std::ptr::NonNull;
///
/// unsafe fn free(ptr: NonNull<()>) {
///     // SAFETY: retired once, below, and made by `Box::into_raw`.
///     drop(unsafe { Box::from_raw(ptr.cast::<u64>().as_ptr()) });
/// }
/// let ptr = NonNull::from(Box::leak(Box::new(7u64)));
/// let guard = Epoch::pin();
/// // SAFETY: nobody else knows of the box.
/// unsafe { Epoch::retire(&guard, ptr.cast(), free) };
/// // SAFETY: the guard is older than the end of the grace period.
/// assert_eq!(unsafe { *ptr.as_ref() }, 7);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Epoch;

/// The guard of [`Epoch`]. It stays on the thread that took it.
///
/// ```
/// use grace::{Epoch, EpochGuard, Reclaim};
/// let outer: EpochGuard = Epoch::pin();
/// let nested = Epoch::pin();
/// drop(outer);
/// nested.flush();
/// ```
#[derive(Debug)]
pub struct EpochGuard(crossbeam_epoch::Guard);

impl EpochGuard {
    /// Hands this thread's batch over to the collector and tries to free what has come due.
    ///
    /// Several calls, each under a new guard, bring everything that this thread has retired before
    /// to its end, provided that no other thread stays in a section. What other threads have
    /// retired may wait for them. May allocate and run deferred frees, a few hundred at most; none
    /// if it is called from one.
    pub fn flush(&self) {
        // A thread that is ending may have no home any more, and then nothing in it.
        let nested = HOME.try_with(|home| {
            self.hand_over(home);
            home.is_collecting()
        });
        if nested == Ok(true) {
            // Else as many frees would be on one stack as are due.
            self.seal();
        } else {
            self.0.flush();
        }
    }

    /// Lets any thread free what waits for this one, a batch at a time.
    fn hand_over(&self, home: &Home) {
        for (n, left) in home.leave().enumerate() {
            if n > 0 {
                self.seal();
            }
            // SAFETY: it was promised of each piece in it, when that was retired, that no guard
            // taken since then reaches it, so none taken from now on does; and that it may be freed
            // on any thread. Three captured words: kept inline, not boxed.
            unsafe { self.0.defer_unchecked(move || free_quietly(left)) }
        }
    }

    /// Has the collector queue what was deferred so far, in a bag that holds nothing deferred
    /// later. It takes a bag when that is full, or at a flush, which would run frees: so the bag is
    /// filled.
    fn seal(&self) {
        for _ in 0..BAG {
            self.0.defer(|| ());
        }
    }

    /// Has a batch of this thread's come due, in time, and frees those that have.
    #[cold]
    fn closed(&self, home: &Home, token: Token) {
        self.0.defer(move || token.pass());
        // What a flush passes on is a bag of the collector's, of two kilobytes however little is in
        // it, which another thread may take.
        home.collect(|| self.0.flush());
        if home.is_full() {
            self.hand_over(home);
            self.seal();
        }
    }

    /// Ends the section and begins a new one, when this is the thread's only guard; it costs less
    /// than dropping it and taking another. A loop that reads for long should call this now and
    /// then, so that memory can be reused.
    pub fn repin(&mut self) {
        self.0.repin();
    }
}

// SAFETY: the collector runs a deferred function exactly once, and never before it is deferred.
unsafe impl Reclaim for Epoch {
    type Guard = EpochGuard;
    const FREES_IN_PIN: bool = true;

    fn pin() -> EpochGuard {
        EpochGuard(crossbeam_epoch::pin())
    }

    #[inline]
    unsafe fn retire(guard: &EpochGuard, ptr: NonNull<()>, free: unsafe fn(NonNull<()>)) {
        let kept = HOME.try_with(|home| match home.add(Item { ptr, free }) {
            Added::Open => true,
            Added::Closed(token) => {
                guard.closed(home, token);
                true
            }
            Added::NoMemory => false,
        });
        if kept != Ok(true) {
            // SAFETY: the caller promises that no later guard reaches `ptr` and that `free(ptr)`
            // may run on any thread at any later time. Two captured words: kept inline, not boxed.
            unsafe { guard.0.defer_unchecked(move || free(ptr)) }
        }
    }

    fn flush(guard: &EpochGuard) {
        guard.flush();
    }
}

// SAFETY: see the module's text: no guard alive at `retire` outlives the start of `free`, and
// unpinning (release) is acquired by the collector before it frees.
unsafe impl Concurrent for Epoch {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::BATCH;
    use core::cell::Cell;
    use std::boxed::Box;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    const PATIENCE: Duration = Duration::from_secs(300);

    /// Flushes until `done` says so; other tests' guards may delay us, but not for ever.
    fn settle(done: impl Fn() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < PATIENCE, "what was retired never came to its end");
            Epoch::pin().flush();
            thread::yield_now();
        }
    }

    unsafe fn mark(ptr: NonNull<()>) {
        // SAFETY: each test retires a leaked `AtomicBool`.
        let flag = unsafe { ptr.cast::<AtomicBool>().as_ref() };
        // Release: pairs with the tests' Acquire loads.
        assert!(!flag.swap(true, Ordering::Release), "freed twice");
    }

    fn flag() -> (&'static AtomicBool, NonNull<()>) {
        let flag: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        (flag, NonNull::from(flag).cast())
    }

    #[test]
    fn freed_in_the_end() {
        let (flag, ptr) = flag();
        // SAFETY: `mark` fits; nothing is really freed.
        unsafe { Epoch::retire(&Epoch::pin(), ptr, mark) };
        settle(|| flag.load(Ordering::Acquire));
    }

    #[test]
    fn not_freed_while_an_older_guard_lives() {
        let (flag, _) = flag();
        let guard = Epoch::pin();
        let (send, receive) = mpsc::channel();
        let writer = thread::spawn(move || {
            // SAFETY: `mark` fits; nothing is really freed.
            unsafe { Epoch::retire(&Epoch::pin(), NonNull::from(flag).cast(), mark) };
            for _ in 0..50 {
                Epoch::pin().flush();
            }
            send.send(flag.load(Ordering::Acquire)).unwrap();
        });
        assert!(!receive.recv().unwrap(), "freed under a guard");
        writer.join().unwrap();
        assert!(!flag.load(Ordering::Acquire));
        drop(guard);
        settle(|| flag.load(Ordering::Acquire));
    }

    #[test]
    fn nested_guard_protects_after_the_outer_is_gone() {
        let (flag, _) = flag();
        let outer = Epoch::pin();
        let inner = Epoch::pin();
        drop(outer);
        thread::scope(|scope| {
            scope.spawn(|| {
                // SAFETY: `mark` fits; nothing is really freed.
                unsafe { Epoch::retire(&Epoch::pin(), NonNull::from(flag).cast(), mark) };
                for _ in 0..50 {
                    Epoch::pin().flush();
                }
            });
        });
        assert!(!flag.load(Ordering::Acquire));
        drop(inner);
        settle(|| flag.load(Ordering::Acquire));
    }

    #[test]
    fn a_repinned_guard_lets_go_of_what_came_before() {
        let (flag, ptr) = flag();
        let mut guard = Epoch::pin();
        // SAFETY: `mark` fits; nothing is really freed.
        unsafe { Epoch::retire(&guard, ptr, mark) };
        let begun = Instant::now();
        while !flag.load(Ordering::Acquire) {
            assert!(begun.elapsed() < PATIENCE, "a repinned guard held on");
            guard.flush();
            guard.repin();
            thread::yield_now();
        }
    }

    /// How deep the ends of pieces were within one another that retire a piece each.
    struct Nest {
        deepest: AtomicUsize,
        ended: AtomicUsize,
    }

    thread_local! {
        static DEPTH: Cell<usize> = const { Cell::new(0) };
    }

    unsafe fn retires(ptr: NonNull<()>) {
        // SAFETY: the test retires a leaked `Nest`.
        let nest = unsafe { ptr.cast::<Nest>().as_ref() };
        let depth = DEPTH.get() + 1;
        DEPTH.set(depth);
        // Relaxed: read after the Acquire of `ended`.
        nest.deepest.fetch_max(depth, Ordering::Relaxed);
        // SAFETY: as above; nothing is really freed.
        unsafe { Epoch::retire(&Epoch::pin(), ptr, ends) };
        DEPTH.set(depth - 1);
    }

    unsafe fn ends(ptr: NonNull<()>) {
        // SAFETY: as above.
        let nest = unsafe { ptr.cast::<Nest>().as_ref() };
        // Release: pairs with the test's Acquire.
        nest.ended.fetch_add(1, Ordering::Release);
    }

    #[test]
    fn pieces_that_retire_others_are_not_freed_within_each_other() {
        const PIECES: usize = if cfg!(miri) { 8 } else { 32 } * BATCH;
        let nest: &'static Nest =
            Box::leak(Box::new(Nest { deepest: AtomicUsize::new(0), ended: AtomicUsize::new(0) }));
        let guard = Epoch::pin();
        for _ in 0..PIECES {
            // SAFETY: `retires` fits; nothing is really freed.
            unsafe { Epoch::retire(&guard, NonNull::from(nest).cast(), retires) };
        }
        drop(guard);
        settle(|| nest.ended.load(Ordering::Acquire) == PIECES);
        // One within a flush of the caller's, and one within what that retired.
        let deepest = nest.deepest.load(Ordering::Relaxed);
        assert!(deepest <= 2, "{deepest} on one stack");
    }
}
