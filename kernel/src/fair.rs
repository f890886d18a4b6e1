//! A lock for readers and writers that lets nobody starve: phase-fair, by tickets (Brandenburg and
//! Anderson, 2010).
//!
//! Readers and writers take turns. A reader waits for one writer at most, a writer for those that
//! came before it and for the readers of one phase. A reader takes two atomic additions, as with
//! any lock that counts readers. It is the best that the paths with a lock can have, which the
//! experiments compare with those without.

use crate::machine::Kernel;
use core::sync::atomic::{AtomicU32, Ordering};
use lock_api::{GuardSend, RawRwLock, RawRwLockFair};
use machine::Step;

/// Readers are counted by this; below it are the bits of the writer that is there.
const READER: u32 = 0x100;
const WRITER: u32 = 3;
/// A writer is there; the other bit tells it from the one before.
const PRESENT: u32 = 2;
const PHASE: u32 = 1;

/// The lock. Who waits answers to requests of other CPUs.
pub(crate) struct PhaseFair {
    /// Readers that have come, and the writer's bits.
    came: AtomicU32,
    /// Readers that have gone.
    gone: AtomicU32,
    /// The next writer's ticket, and the ticket of the one whose turn it is.
    tickets: AtomicU32,
    turn: AtomicU32,
}

impl PhaseFair {
    fn wait(mut until: impl FnMut() -> bool) {
        while !until() {
            Kernel.relax();
        }
    }
}

// SAFETY: a writer has the turn, has announced itself, and waits for all readers that came before;
// one that comes later sees the writer's bits and waits until they change, which they do when that
// writer has gone.
unsafe impl RawRwLock for PhaseFair {
    #[expect(clippy::declare_interior_mutable_const, reason = "the trait wants it")]
    const INIT: Self = {
        const ZERO: AtomicU32 = AtomicU32::new(0);
        PhaseFair { came: ZERO, gone: ZERO, tickets: ZERO, turn: ZERO }
    };
    type GuardMarker = GuardSend;

    fn lock_shared(&self) {
        // Acquire, here and below: pairs with the Release of the writer that has gone.
        let writer = self.came.fetch_add(READER, Ordering::Acquire) & WRITER;
        if writer != 0 {
            Self::wait(|| self.came.load(Ordering::Acquire) & WRITER != writer);
        }
    }

    fn try_lock_shared(&self) -> bool {
        // Relaxed: the exchange looks again.
        let came = self.came.load(Ordering::Relaxed);
        let next = came.wrapping_add(READER);
        // Acquire: as in `lock_shared`. Relaxed: nothing was taken.
        came & WRITER == 0
            && self.came.compare_exchange(came, next, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    unsafe fn unlock_shared(&self) {
        // Release: pairs with the Acquire of the writer that waits for it.
        self.gone.fetch_add(READER, Ordering::Release);
    }

    fn lock_exclusive(&self) {
        // Relaxed: only the number counts; the wait orders.
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        // Acquire: pairs with the Release of the writer before.
        Self::wait(|| self.turn.load(Ordering::Acquire) == ticket);
        // Relaxed: readers that come from now on wait by reading it; those before are waited for
        // below.
        let came = self.came.fetch_add(PRESENT | ticket & PHASE, Ordering::Relaxed);
        // Acquire: pairs with the Release of each reader that goes.
        Self::wait(|| self.gone.load(Ordering::Acquire) == came & !(READER - 1));
    }

    fn try_lock_exclusive(&self) -> bool {
        // A ticket cannot be given back; nobody here tries.
        false
    }

    unsafe fn unlock_exclusive(&self) {
        // Release, both: pair with the Acquire of readers, and of the next writer.
        self.came.fetch_and(!WRITER, Ordering::Release);
        // Relaxed: only the writer that has the turn writes it.
        let next = self.turn.load(Ordering::Relaxed).wrapping_add(1);
        self.turn.store(next, Ordering::Release);
    }
}

// SAFETY: it is fair in any case.
unsafe impl RawRwLockFair for PhaseFair {
    unsafe fn unlock_shared_fair(&self) {
        // SAFETY: passed on.
        unsafe { self.unlock_shared() }
    }

    unsafe fn unlock_exclusive_fair(&self) {
        // SAFETY: passed on.
        unsafe { self.unlock_exclusive() }
    }
}
