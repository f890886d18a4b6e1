//! The count of changes after which pages are swept, for the second look of a fault.
//!
//! A call stores the new VMAs, then counts, then sweeps the pages. A fault reads the count before
//! its first look at the VMAs, and again with the table's lock held.
//!
//! If the count is the same, the VMA of the first look still decides, or a sweep is still to come:
//!
//! - If the first read has seen a call's count, the first look has seen the VMAs of that call: they
//!   were stored before.
//! - If it has not, and the call's sweep has held the table's lock before the fault, the second
//!   read sees the count: it was stored before the sweep. So the count differs.
//! - Otherwise the call's sweep takes the lock after the fault, and finds its page.
//!
//! If the count differs, the fault looks at the VMAs again. Calls that sweep nothing do not count:
//! no page that a fault maps by the older VMA differs from what it would map by the newer one.
//!
//! There is one exception: munmap of an untouched VMA sweeps nothing, and a part of the VMA may
//! stay and be marked later. A fault that finds such a mark always looks again
//! ([`vma::TouchMark::LookAgain`]): its count is [`Changes::NEVER`].

#[cfg(not(loom))]
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
#[cfg(loom)]
use loom::sync::atomic::AtomicU64;

use machine::{SharedAccess, Step};

/// Written only by the holder of the mmap lock, so that no CPU waits to count.
pub(crate) struct Changes(AtomicU64);

impl Changes {
    /// A count that is never reached.
    pub(crate) const NEVER: u64 = u64::MAX;

    pub(crate) fn new() -> Self {
        Changes(AtomicU64::new(0))
    }

    /// The VMAs have changed, and a sweep follows. The caller holds the mmap lock.
    pub(crate) fn count(&self, machine: &impl Step) {
        machine.step(SharedAccess::Other);
        // Relaxed: only the holder of the mmap lock writes it. Release: pairs with `now`. The
        // VMAs were stored before.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// The count before the first look.
    pub(crate) fn now(&self, machine: &impl Step) -> u64 {
        machine.step(SharedAccess::Other);
        // Acquire: pairs with `count`.
        self.0.load(Ordering::Acquire)
    }

    /// Whether nothing was counted since. Called with the table's lock held.
    pub(crate) fn is(&self, machine: &impl Step, seen: u64) -> bool {
        machine.step(SharedAccess::Other);
        // Relaxed: a count before a sweep is ordered by the table's lock, or by the entry that
        // leads to a newer table.
        self.0.load(Ordering::Relaxed) == seen
    }
}
