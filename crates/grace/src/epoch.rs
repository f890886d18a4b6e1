//! The hosted engine: epochs, by crossbeam-epoch's default collector.
//!
//! Correctness: the collector runs a function that was deferred in epoch `e` only after the global
//! epoch has advanced twice beyond `e`. The epoch cannot advance past a pinned thread that has not
//! seen the current epoch. Pinning is a store and a full fence. The collector acquires every
//! thread's epoch before it runs deferred functions, which pairs with the release of unpinning.
//!
//! Most deferred functions do not free a piece. Each is a token for a batch of pieces, which the
//! thread that retired them frees: see [`thread_batches`].

mod thread_batches;

use crate::batch::RetiredPiece;
use crate::{Concurrent, Reclaim};
use core::ptr::NonNull;
use std::thread_local;
use thread_batches::{AddOutcome, BatchToken, LeftBatch, ThreadBatches};

thread_local! {
    static HOME: ThreadBatches = ThreadBatches::new();
}

/// The largest number of deferred functions in one of the collector's bags. A guard or a flush runs
/// the functions of up to eight bags, so each batch that is handed over gets a bag of its own.
const BAG: usize = 64;

/// Frees a batch. This thread collects no other batch meanwhile.
///
/// # Safety
/// As for [`LeftBatch::free`].
unsafe fn free_quietly(left: LeftBatch) {
    let mut left = Some(left);
    // SAFETY: the caller's promise.
    let free =
        |left: &mut Option<LeftBatch>| unsafe { left.take().into_iter().for_each(|l| l.free()) };
    let done = HOME.try_with(|home| home.freeing(|| free(&mut left)));
    if done.is_err() {
        // The thread is ending: its `ThreadBatches` is gone, and cannot collect.
        free(&mut left);
    }
}

/// The thread ends.
impl Drop for ThreadBatches {
    fn drop(&mut self) {
        if !self.is_empty() {
            Epoch::pin().hand_over(self);
        }
    }
}

/// Epoch-based reclamation on the default collector of crossbeam-epoch (feature `std`).
///
/// - A guard costs one thread-local store and one fence.
/// - Retiring costs two words written to a batch of 62 that belongs to the thread.
/// - A full batch costs one allocation, every second one two. Filling it also frees this thread's
///   batches that are due.
/// - Every second full batch, and every 128th guard of a thread, asks the collector to run a
///   bounded number of deferred functions.
///
/// A thread frees the pieces that it retired itself, so the memory stays in its processor's cache.
/// Fewer than ten batches wait for a thread that retires nothing more, until it flushes or ends. If
/// a guard is held for long, and after a flush, any thread that takes a guard frees pieces that are
/// due: at most eight batches of 62 pieces at once.
///
/// A guard that is forgotten blocks every free in the program until it ends, even after the guard's
/// thread has ended. A reference taken under it may have been sent to another thread, and stays
/// valid as long as the guard.
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
/// // SAFETY: no other code has a pointer to the box.
/// unsafe { Epoch::retire(&guard, ptr.cast(), free) };
/// // SAFETY: the guard delays the end of the grace period.
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
    /// Hands this thread's batches over to the collector, and tries to free pieces that are due.
    ///
    /// Several calls, each under a new guard, free all pieces that this thread has retired before,
    /// provided that no other thread stays in a section. Pieces that other threads retired may have
    /// to wait for those threads. May allocate, and may run a few hundred deferred frees. It runs
    /// none if it is called from a free.
    pub fn flush(&self) {
        // The `ThreadBatches` of a thread that is ending may be gone. Then it holds no pieces.
        let nested = HOME.try_with(|home| {
            self.hand_over(home);
            home.is_collecting()
        });
        if nested == Ok(true) {
            // A flush would run frees within a free, and so nest as deep as there are due pieces.
            self.seal();
        } else {
            self.0.flush();
        }
    }

    /// Hands this thread's pieces over, batch by batch, to be freed by any thread.
    fn hand_over(&self, home: &ThreadBatches) {
        for (n, left) in home.leave().enumerate() {
            if n > 0 {
                self.seal();
            }
            // SAFETY: when each piece was retired, the caller promised that no later guard reaches
            // it, so no guard from now on does; and that it may be freed on any thread. The closure
            // captures three words, so it is stored inline, not boxed.
            unsafe { self.0.defer_unchecked(move || free_quietly(left)) }
        }
    }

    /// Makes the collector queue all functions deferred so far, in a bag without later ones. The
    /// collector queues a bag when it is full, or at a flush. A flush would run frees, so this
    /// fills the bag.
    fn seal(&self) {
        for _ in 0..BAG {
            self.0.defer(|| ());
        }
    }

    /// Defers the token of a full batch, and frees this thread's batches that are due.
    #[cold]
    fn closed(&self, home: &ThreadBatches, token: BatchToken) {
        self.0.defer(move || token.pass());
        // A flush passes on one of the collector's bags, which another thread may take. A bag has
        // two kilobytes, however few functions are in it.
        home.collect(|| self.0.flush());
        if home.is_full() {
            self.hand_over(home);
            self.seal();
        }
    }

    /// Ends the section and begins a new one, if this is the thread's only guard. Costs less than
    /// dropping the guard and taking another. A loop that reads for long should call this now and
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
        let kept = HOME.try_with(|home| match home.add(RetiredPiece { ptr, free }) {
            AddOutcome::Open => true,
            AddOutcome::Closed(token) => {
                guard.closed(home, token);
                true
            }
            AddOutcome::NoMemory => false,
        });
        if kept != Ok(true) {
            // SAFETY: the caller promises that no later guard reaches `ptr`, and that `free(ptr)`
            // may run on any thread at any later time. The closure captures two words, so it is
            // stored inline, not boxed.
            unsafe { guard.0.defer_unchecked(move || free(ptr)) }
        }
    }

    fn flush(guard: &EpochGuard) {
        guard.flush();
    }
}

// SAFETY: see the module's head: `free` does not begin before every guard that existed at `retire`
// is dropped. Unpinning releases, and the collector acquires that before it frees.
unsafe impl Concurrent for Epoch {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::BATCH;
    use crate::patience;
    use core::cell::Cell;
    use std::boxed::Box;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::thread;

    /// Flushes until `done` returns true. Guards of other tests may delay this for some time.
    fn settle(done: impl Fn() -> bool) {
        patience::until("a retired piece is freed", || {
            Epoch::pin().flush();
            done()
        });
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
    fn a_repinned_guard_releases_earlier_pieces() {
        let (flag, ptr) = flag();
        let mut guard = Epoch::pin();
        // SAFETY: `mark` fits; nothing is really freed.
        unsafe { Epoch::retire(&guard, ptr, mark) };
        patience::until("a piece is freed under a guard that was repinned later", || {
            guard.flush();
            guard.repin();
            flag.load(Ordering::Acquire)
        });
    }

    /// The nesting of frees that retire another piece each.
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
        // One free runs in the caller's flush, and one in the flush of a piece that this retired.
        let deepest = nest.deepest.load(Ordering::Relaxed);
        assert!(deepest <= 2, "{deepest} frees are nested");
    }
}
