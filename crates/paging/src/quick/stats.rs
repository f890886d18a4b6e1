//! A CPU's list, and what is counted of it.

use core::iter::Sum;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

pub(super) const NOTHING: u32 = u32::MAX;

/// The list of one CPU: a line that taking and giving touch, and behind it what they do not.
#[repr(C, align(64))]
pub(super) struct List {
    /// The number of the first frame.
    pub(super) head: AtomicU32,
    pub(super) len: AtomicU32,
    pub(super) taken: AtomicU64,
    pub(super) kept: AtomicU64,
    /// Whether another CPU has asked for the pages. The only word that others write, and only when memory has given out.
    pub(super) asked: AtomicU32,
    // Off the fast path.
    pub(super) made: AtomicU64,
    pub(super) remote: AtomicU64,
    pub(super) full: AtomicU64,
    pub(super) trimmed: AtomicU64,
    pub(super) given: AtomicU64,
}

const _: () = assert!(core::mem::offset_of!(List, asked) < 64 && size_of::<List>() == 128);

impl Default for List {
    fn default() -> Self {
        List {
            head: AtomicU32::new(NOTHING),
            len: AtomicU32::new(0),
            taken: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            made: AtomicU64::new(0),
            remote: AtomicU64::new(0),
            full: AtomicU64::new(0),
            trimmed: AtomicU64::new(0),
            asked: AtomicU32::new(0),
            given: AtomicU64::new(0),
        }
    }
}

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
    /// Pages that went back because another CPU had asked for them ([`shortage`](super::QuickLists::shortage)).
    pub given: u64,
}

impl List {
    /// Whether another CPU has asked for the pages.
    #[inline(always)]
    pub(super) fn is_asked(&self) -> bool {
        // Relaxed: a hint; what it leads to is done by this CPU alone.
        self.asked.load(Ordering::Relaxed) != 0
    }

    pub(super) fn stats(&self) -> QuickStats {
        // Relaxed, all: statistics.
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        QuickStats {
            held: self.len.load(Ordering::Relaxed).into(),
            taken: count(&self.taken),
            made: count(&self.made),
            kept: count(&self.kept),
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
    // Relaxed: a statistic. A load and a store: nobody else changes it, and interrupts are off.
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}
