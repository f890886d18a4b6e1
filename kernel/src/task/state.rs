//! Whether a thread runs, waits or is ready, and whether it has to look for signals.
//!
//! | state | the thread | belongs to |
//! |---|---|---|
//! | `Running` | a CPU runs it, or works for it | that CPU |
//! | `Waiting` | as `Running`; its call has found that it must wait | that CPU |
//! | `Parked` | it waits, and no CPU has it | no CPU, until it is woken |
//! | `Ready` | it is in a queue | the queue |
//!
//! A wake-up turns `Waiting` into `Running`: the CPU finds that it must not park the thread, and
//! goes on. It turns `Parked` into `Ready`, and its caller puts the thread into a queue. In all
//! other states it does nothing.
//!
//! # Why no wake-up is lost
//! A thread says that it waits, and then looks for its event. A waker brings the event about, and
//! then looks at the state. A SequentiallyConsistent fence lies between the two steps of both, so
//! one of them sees what the other has done. Each wake-up of a parked thread wins an exchange, so
//! the thread is in one queue at most. `crates/machine/tests/thread_state_loom.rs` runs this file
//! under loom.

use super::sync::{AtomicBool, AtomicU8, Ordering, fence};

const RUNNING: u8 = 0;
const WAITING: u8 = 1;
const PARKED: u8 = 2;
const READY: u8 = 3;

/// The state of a thread.
pub(crate) struct State {
    state: AtomicU8,
    /// A signal may be pending, or the thread is to end.
    attention: AtomicBool,
    /// A signal does not end its waiting.
    deep: AtomicBool,
}

impl State {
    /// That of a new thread: parked, in no queue.
    pub(crate) fn parked() -> State {
        State {
            state: AtomicU8::new(PARKED),
            attention: AtomicBool::new(false),
            deep: AtomicBool::new(false),
        }
    }

    /// The thread will wait, unless it is woken from now on. The caller then looks whether the
    /// event has come already. Cost: a store and a fence.
    pub(crate) fn begin_wait(&self) {
        // Relaxed: the fence orders it before the look at the event. It pairs with that of `wake`.
        self.state.store(WAITING, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The thread does not wait.
    pub(crate) fn end_wait(&self) {
        // Relaxed: only this CPU uses the state now, but for wake-ups, which change nothing.
        self.state.store(RUNNING, Ordering::Relaxed);
    }

    /// Gives the thread up, if it still has to wait. Its registers are saved. Returns false if it
    /// has been woken; then this CPU still has it.
    pub(crate) fn park(&self) -> bool {
        // Release: this CPU's changes to the thread come before; pairs with the Acquire of `wake`,
        // from which the queue's lock passes them on.
        self.state.compare_exchange(WAITING, PARKED, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// The thread is going into a queue.
    pub(crate) fn set_ready(&self) {
        // Relaxed: the queue's lock orders it.
        self.state.store(READY, Ordering::Relaxed);
    }

    /// The thread was taken from a queue.
    pub(crate) fn set_running(&self) {
        // Relaxed: as above.
        self.state.store(RUNNING, Ordering::Relaxed);
        self.deep.store(false, Ordering::Relaxed);
    }

    /// Until it runs again, a signal does not end its waiting: for those that look.
    pub(crate) fn set_deep(&self) {
        // Relaxed, here and below: only to be shown.
        self.deep.store(true, Ordering::Relaxed);
    }

    /// Whether the thread waits, and then whether a signal ends that.
    pub(crate) fn waits(&self) -> Option<bool> {
        let waits = matches!(self.state.load(Ordering::Relaxed), WAITING | PARKED);
        waits.then(|| !self.deep.load(Ordering::Relaxed))
    }

    /// Ends the waiting, after its event has come. Returns true if the caller has to put the thread
    /// into a queue.
    #[must_use]
    pub(crate) fn wake(&self) -> bool {
        // Orders the event before the look at the state; pairs with that of `begin_wait`.
        fence(Ordering::SeqCst);
        loop {
            // Relaxed: the exchanges decide.
            let (from, to) = match self.state.load(Ordering::Relaxed) {
                WAITING => (WAITING, RUNNING),
                PARKED => (PARKED, READY),
                _ => return false,
            };
            // Acquire: pairs with the Release of `park`.
            let woken = self.state.compare_exchange(from, to, Ordering::Acquire, Ordering::Relaxed);
            if woken.is_ok() {
                return from == PARKED;
            }
        }
    }

    /// Makes the thread look for signals, and for its end, before it goes on. Returns as
    /// [`wake`](Self::wake).
    #[must_use]
    pub(crate) fn call_attention(&self) -> bool {
        // Relaxed: the fence of `wake` follows. Either a thread that is about to wait sees it after
        // `begin_wait`, or `wake` sees that it waits.
        self.attention.store(true, Ordering::Relaxed);
        self.wake()
    }

    /// Whether the thread has to look for signals and for its end.
    pub(crate) fn has_attention(&self) -> bool {
        // Relaxed: the signals and the end, at which the thread then looks, have locks.
        self.attention.load(Ordering::Relaxed)
    }

    /// Clears the mark, before the thread looks.
    pub(crate) fn take_attention(&self) {
        // Relaxed: a sender sets the mark after it has changed the signals or the end under their
        // lock. So if this comes after the sender's, the look that follows comes after that lock.
        self.attention.store(false, Ordering::Relaxed);
    }
}
