//! A CPU's list, and what is counted of it.

use super::stack::Stack;
use super::{QUICK_MAX, QUICK_NEAR};
use core::iter::Sum;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The list of one CPU: what taking and giving touch, and behind it what they do not.
#[repr(C, align(64))]
#[derive(Default)]
pub(super) struct List {
    /// Pages that were put on the list. Taking one counts nothing: how many were taken follows from
    /// the others.
    pub(super) kept: AtomicU64,
    pub(super) stack: Stack<AtomicU32, QUICK_NEAR, { QUICK_MAX as usize - QUICK_NEAR }>,
    // Off the fast path.
    pub(super) made: AtomicU64,
    pub(super) remote: AtomicU64,
    pub(super) full: AtomicU64,
    pub(super) trimmed: AtomicU64,
    pub(super) given: AtomicU64,
    /// Pages that went from the list to the frame source, for whatever reason.
    pub(super) left: AtomicU64,
}

// The pages beside their number are on its line.
const _: () = assert!(core::mem::offset_of!(List, stack) == 8 && 8 + (2 + QUICK_NEAR) * 4 <= 64);

/// What has been counted of a quicklist.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QuickStats {
    /// Pages on the lists at present.
    pub held: u64,
    /// Pages taken off a list, as they were.
    pub taken: u64,
    /// Pages that had to be made: from the frame source, cleared, constructed.
    pub made: u64,
    /// Pages put on a list.
    pub kept: u64,
    /// Pages that went back to the frame source because they are another node's.
    pub remote: u64,
    /// Pages that went back because the list was full.
    pub full: u64,
    /// Pages that [`trim`](super::QuickLists::trim) gave back.
    pub trimmed: u64,
    /// Pages that went back because another CPU had asked for them
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
            // Asked on another CPU, it may be wrong by what happens meanwhile.
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

/// One more, of a count that only this CPU changes.
#[inline]
pub(crate) fn bump(count: &AtomicU64) {
    add(count, 1);
}

/// So many more, of such a count.
#[inline]
pub(super) fn add(count: &AtomicU64, more: usize) {
    // Relaxed: a statistic. A load and a store: nobody else changes it, and interrupts are off.
    count.store(count.load(Ordering::Relaxed) + more as u64, Ordering::Relaxed);
}
