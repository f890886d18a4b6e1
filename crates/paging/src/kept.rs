//! How many chains of tables of one CPU are not back: while there is one, a reference of the
//! `Paging` is kept for them ([`Paging::keep`](crate::Paging)).
//!
//! # Why it is right
//! The CPU that adds the first chain takes the reference; whoever takes the last chain away drops
//! it. The count may rise again between the two: then there are two references for a moment, never
//! none, as the CPU that adds a chain has one of its own. (`kept/loom_tests.rs`.)

#[cfg(all(test, loom))]
mod loom_tests;

use crate::sync::AtomicU64;
use core::sync::atomic::Ordering;

/// The count. Its own CPU adds, any CPU takes away.
#[derive(Debug, Default)]
pub(crate) struct Kept(AtomicU64);

impl Kept {
    /// One chain more. Returns whether it is the first: then the caller takes the reference.
    pub(crate) fn add(&self) -> bool {
        // Relaxed: the caller has a reference, and the chain counts before any CPU can take it
        // away.
        self.0.fetch_add(1, Ordering::Relaxed) == 0
    }

    /// One chain less. Returns whether it was the last: then the caller drops the reference.
    pub(crate) fn sub(&self) -> bool {
        // AcqRel: the CPU that takes the last one away, and may end the `Paging`, comes after all
        // that others did with it; pairs with itself.
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}
