//! Keeps the pieces that a thread has retired, so that the same thread frees them.
//!
//! The collector lets any thread run a function that is due. If these functions freed the pieces, a
//! thread's allocator cache would fill with memory that another processor wrote last, and each
//! reuse would cost a cache-line bounce: with two threads that write to separate structures, half
//! of the allocated cache lines are at the other processor. So a thread keeps its retired pieces in
//! [`Batches`], and defers only a *token* for each batch. The token is a few bytes. When the
//! collector runs it, it marks the batch as due. The thread frees the batch when it closes the next
//! one.
//!
//! # Correctness
//!
//! A batch is closed and numbered after all its pieces were retired, and its token is deferred
//! after that. So when the token runs, the grace period of every piece in the batch is over. This
//! also holds for all batches with lower numbers, which were closed earlier. [`LastDue`] is the
//! largest number of a token that has run, and the thread frees the batches up to it. The thread
//! that runs a token has acquired the ends of all relevant sections (the collector's promise). It
//! releases that with the number, and the freeing thread acquires it.
//!
//! # Bounds
//!
//! A thread that retires nothing more does not look for due batches. The pieces that wait for it
//! are bounded: one open batch, [`MOST`] closed batches, and the pieces that frees retire
//! meanwhile. With more, the thread hands all batches over to the collector, and any thread may
//! free them once the collector has queued the tokens, which can take one more batch. A thread also
//! hands all batches over when it flushes, since a flush asks for early frees, and when it ends.

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::batch::{Batches, List, RetiredPiece};
use crate::sync::{AtomicU64, Ordering};
use core::cell::{Cell, RefCell};
use std::sync::Arc;

/// The largest number of closed batches that wait for a thread. With short guards, three or four
/// wait.
const MOST: u64 = 8;

/// The number of the last batch of a thread that is due.
struct LastDue(AtomicU64);

/// The deferred function: marks a batch as due.
pub(super) struct BatchToken {
    number: u64,
    due: Arc<LastDue>,
}

impl BatchToken {
    /// Marks the batch as due. Its grace period is over.
    pub(super) fn pass(self) {
        // Release: the accesses of the sections that have ended come before the Acquire in
        // `collect`, which this pairs with. Tokens may run concurrently and in any order.
        self.due.0.fetch_max(self.number, Ordering::Release);
    }
}

/// The pieces that one thread has retired and will free itself.
pub(super) struct ThreadBatches {
    batches: RefCell<Batches>,
    /// The number of the last batch that was closed.
    closed: Cell<u64>,
    /// The number of the last batch whose token the collector has queued. Tokens are queued two at
    /// a time.
    flushed: Cell<u64>,
    due: Arc<LastDue>,
    collecting: Cell<bool>,
}

/// The state of the batch after a piece was added.
pub(super) enum AddOutcome {
    /// It has room for more.
    Open,
    /// It is full. The caller must defer its token.
    Closed(BatchToken),
    /// There is no memory for the piece.
    NoMemory,
}

impl ThreadBatches {
    pub(super) fn new() -> ThreadBatches {
        ThreadBatches {
            batches: RefCell::new(Batches::new()),
            closed: Cell::new(0),
            flushed: Cell::new(0),
            due: Arc::new(LastDue(AtomicU64::new(0))),
            collecting: Cell::new(false),
        }
    }

    /// Adds a piece. Cost: two words written; an allocation for each batch.
    #[inline]
    pub(super) fn add(&self, item: RetiredPiece) -> AddOutcome {
        let number = self.closed.get() + 1;
        let mut closed = false;
        let close = || {
            closed = true;
            number
        };
        if !self.batches.borrow_mut().push(item, close) {
            return AddOutcome::NoMemory;
        }
        if !closed {
            return AddOutcome::Open;
        }
        self.closed.set(number);
        AddOutcome::Closed(BatchToken { number, due: Arc::clone(&self.due) })
    }

    /// Queues the tokens with `flush` if there are two, and frees the batches that are due. Does
    /// nothing if called from within itself: both steps run frees, which may retire pieces, so
    /// frees would nest as deep as batches wait.
    pub(super) fn collect(&self, flush: impl FnOnce()) {
        if self.collecting.replace(true) {
            return;
        }
        // Also clears the flag when a free panics.
        let _end = Collecting(&self.collecting);
        let closed = self.closed.get();
        if closed - self.flushed.get() >= 2 {
            self.flushed.set(closed);
            flush();
        }
        // Acquire: pairs with the Release of `pass`.
        let done = self.due.0.load(Ordering::Acquire);
        loop {
            // The borrow ends before the free, which may retire pieces.
            let due = self.batches.borrow_mut().pop_due(done);
            let Some(RetiredPiece { ptr, free }) = due else { break };
            // SAFETY: promised at `retire`. The grace period is over, and the piece has left its
            // batch.
            unsafe { free(ptr) }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.batches.borrow().is_empty()
    }

    /// Whether more batches wait than should.
    pub(super) fn is_full(&self) -> bool {
        // Relaxed: nothing is freed because of it.
        self.closed.get() - self.due.0.load(Ordering::Relaxed) > MOST
    }

    /// Removes all pieces and returns them batch by batch, for the caller to defer each batch by
    /// itself.
    pub(super) fn leave(&self) -> impl Iterator<Item = LeftBatch> + use<> {
        let mut batches = self.batches.borrow_mut();
        let mut all = if batches.is_empty() { List::new() } else { batches.leave(|| 0) };
        drop(batches);
        core::iter::from_fn(move || all.pop().map(LeftBatch))
    }

    /// Whether this thread is running a free at the moment.
    pub(super) fn is_collecting(&self) -> bool {
        self.collecting.get()
    }

    /// Runs `free`, which frees pieces that are due, without collecting on this thread meanwhile.
    pub(super) fn freeing(&self, free: impl FnOnce()) {
        let _end = Freeing { collecting: &self.collecting, before: self.collecting.replace(true) };
        free();
    }
}

/// Ends [`ThreadBatches::freeing`], also when a free panics.
struct Freeing<'a> {
    collecting: &'a Cell<bool>,
    before: bool,
}

impl Drop for Freeing<'_> {
    fn drop(&mut self) {
        self.collecting.set(self.before);
    }
}

struct Collecting<'a>(&'a Cell<bool>);

impl Drop for Collecting<'_> {
    fn drop(&mut self) {
        self.0.set(false);
    }
}

/// A batch that a thread has handed over, to be freed by any thread.
pub(super) struct LeftBatch(List);

impl LeftBatch {
    /// Frees the batch.
    ///
    /// # Safety
    /// The grace period of all its pieces is over.
    pub(super) unsafe fn free(self) {
        let mut batches = Batches::new();
        batches.take_over(self.0);
        while let Some(RetiredPiece { ptr, free }) = batches.pop_due(u64::MAX) {
            // SAFETY: promised at `retire`, and by the caller. The piece has left its batch.
            unsafe { free(ptr) }
        }
    }
}
