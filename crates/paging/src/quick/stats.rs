//! One CPU's list, and its statistics.

use super::stack::Stack;
use super::{QUICK_MAX, QUICK_NEAR};
use core::iter::Sum;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The list of one CPU: first the fields of the fast path, then the others.
#[repr(C, align(64))]
#[derive(Default)]
pub(super) struct List {
    /// Pages that were put on the list. The fast path of taking a page counts nothing: the number
    /// taken follows from the other counts.
    pub(super) kept: AtomicU64,
    pub(super) stack: Stack<AtomicU32, QUICK_NEAR, { QUICK_MAX as usize - QUICK_NEAR }>,
    // Off the fast path.
    pub(super) made: AtomicU64,
    pub(super) remote: AtomicU64,
    pub(super) full: AtomicU64,
    pub(super) trimmed: AtomicU64,
    pub(super) given: AtomicU64,
    /// Pages that went from the list to the frame source, for any reason.
    pub(super) left: AtomicU64,
}

// The near pages are on the cache line of their length.
const _: () = assert!(core::mem::offset_of!(List, stack) == 8 && 8 + (2 + QUICK_NEAR) * 4 <= 64);

/// The statistics of a quicklist.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QuickStats {
    /// Pages that are on the lists now.
    pub held: u64,
    /// Pages taken from a list.
    pub taken: u64,
    /// Pages made: from the frame source, cleared and constructed.
    pub made: u64,
    /// Pages put on a list.
    pub kept: u64,
    /// Pages returned to the frame source because they are of another node.
    pub remote: u64,
    /// Pages returned to the frame source because the list was full.
    pub full: u64,
    /// Pages returned by [`trim`](super::QuickLists::trim).
    pub trimmed: u64,
    /// Pages returned because another CPU asked for them
    /// ([`shortage`](super::QuickLists::shortage)).
    pub given: u64,
}

impl List {
    pub(super) fn stats(&self) -> QuickStats {
        // Relaxed, all: statistics.
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let (kept, held) = (count(&self.kept), self.stack.len().into());
        QuickStats {
            held,
            // Read from another CPU, it may miss concurrent changes.
            taken: kept.saturating_sub(held + count(&self.left)),
            made: count(&self.made),
            kept,
            remote: count(&self.remote),
            full: count(&self.full),
            trimmed: count(&self.trimmed),
            given: count(&self.given),
        }
    }
}

impl Sum for QuickStats {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| QuickStats {
            held: sum.held + one.held,
            taken: sum.taken + one.taken,
            made: sum.made + one.made,
            kept: sum.kept + one.kept,
            remote: sum.remote + one.remote,
            full: sum.full + one.full,
            trimmed: sum.trimmed + one.trimmed,
            given: sum.given + one.given,
        })
    }
}

/// Adds one to a count that only this CPU changes.
#[inline]
pub(crate) fn bump(count: &AtomicU64) {
    add(count, 1);
}

/// Adds `more` to such a count.
#[inline]
pub(super) fn add(count: &AtomicU64, more: usize) {
    // Relaxed: a statistic. Load and store: only this CPU changes it, with interrupts disabled.
    count.store(count.load(Ordering::Relaxed) + more as u64, Ordering::Relaxed);
}
