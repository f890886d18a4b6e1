//! A fair lock for readers and writers: phase-fair, by tickets (Brandenburg and Anderson, 2010).
//!
//! Readers and writers take turns. A reader waits for at most one writer. A writer waits for the
//! writers that came before it, and for the readers of one phase. So none starves. A reader costs
//! two atomic additions, as in any lock that counts readers. It is the best lock for the locked
//! baselines of the experiments.

use crate::machine::Kernel;
use core::sync::atomic::{AtomicU32, Ordering};
use lock_api::{GuardSend, RawRwLock, RawRwLockFair};
use machine::Step;

/// The unit in which readers are counted. The bits below it belong to the present writer.
const READER: u32 = 0x100;
const WRITER: u32 = 3;
/// A writer is present. The other bit tells consecutive writers apart.
const PRESENT: u32 = 2;
const PHASE: u32 = 1;

/// The lock. A CPU that waits for it answers cross-calls.
pub(crate) struct PhaseFair {
    /// Readers that have arrived, and the writer's bits.
    came: AtomicU32,
    /// Readers that have left.
    gone: AtomicU32,
    /// The ticket of the next writer, and the ticket whose turn it is.
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

// SAFETY: a writer has the turn, has set its bits, and has waited for all readers that arrived
// before. A reader that arrives later sees the writer's bits and waits until they change, which
// happens when that writer unlocks.
unsafe impl RawRwLock for PhaseFair {
    #[expect(clippy::declare_interior_mutable_const, reason = "the trait wants it")]
    const INIT: Self = {
        const ZERO: AtomicU32 = AtomicU32::new(0);
        PhaseFair { came: ZERO, gone: ZERO, tickets: ZERO, turn: ZERO }
    };
    type GuardMarker = GuardSend;

    fn lock_shared(&self) {
        // Acquire, here and below: pairs with the Release of the writer that unlocked.
        let writer = self.came.fetch_add(READER, Ordering::Acquire) & WRITER;
        if writer != 0 {
            Self::wait(|| self.came.load(Ordering::Acquire) & WRITER != writer);
        }
    }

    fn try_lock_shared(&self) -> bool {
        // Relaxed: the exchange checks it again.
        let came = self.came.load(Ordering::Relaxed);
        let next = came.wrapping_add(READER);
        // Acquire: as in `lock_shared`. Relaxed on failure: nothing was locked.
        came & WRITER == 0
            && self.came.compare_exchange(came, next, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    unsafe fn unlock_shared(&self) {
        // Release: pairs with the Acquire of the writer that waits for this reader.
        self.gone.fetch_add(READER, Ordering::Release);
    }

    fn lock_exclusive(&self) {
        // Relaxed: only the number matters; the wait below orders.
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        // Acquire: pairs with the Release of the previous writer.
        Self::wait(|| self.turn.load(Ordering::Acquire) == ticket);
        // Relaxed: later readers wait because they read it, and the loop below waits for the
        // earlier ones.
        let came = self.came.fetch_add(PRESENT | ticket & PHASE, Ordering::Relaxed);
        // Acquire: pairs with the Release of each reader that leaves.
        Self::wait(|| self.gone.load(Ordering::Acquire) == came & !(READER - 1));
    }

    fn try_lock_exclusive(&self) -> bool {
        // A ticket cannot be returned. No code here tries.
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

// SAFETY: every unlock of this lock is fair.
unsafe impl RawRwLockFair for PhaseFair {
    unsafe fn unlock_shared_fair(&self) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.unlock_shared() }
    }

    unsafe fn unlock_exclusive_fair(&self) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.unlock_exclusive() }
    }
}
