//! The count of one CPU's chains of tables that are not back yet. While it is not 0, one reference
//! of the `Paging` is kept for them ([`Paging::keep`](crate::Paging)).
//!
//! # Why it is right
//! The CPU that adds the first chain takes the reference. The CPU that takes the last chain away
//! drops it. The count may rise again between the two steps. Then there are two references for a
//! moment, never none, since the CPU that adds a chain has a reference of its own. (Model:
//! `loom_tests.rs`.)

#[cfg(all(test, loom))]
mod loom_tests;

use crate::sync::AtomicU64;
use core::sync::atomic::Ordering;

/// The count. Its own CPU adds; any CPU subtracts.
#[derive(Debug, Default)]
pub(crate) struct KeptChains(AtomicU64);

impl KeptChains {
    /// Adds a chain. Returns whether it is the first: then the caller takes the reference.
    pub(crate) fn add(&self) -> bool {
        // Relaxed: the caller has a reference of its own, and the chain is counted before any CPU
        // can take it away.
        self.0.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// Removes a chain. Returns whether it was the last: then the caller drops the reference.
    pub(crate) fn sub(&self) -> bool {
        // AcqRel: the CPU that removes the last chain may end the `Paging`, so it must come after
        // all uses by other CPUs; pairs with itself.
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}
