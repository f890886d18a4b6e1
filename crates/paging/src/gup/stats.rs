//! Counts of pages pinned by the fast path and by the locked path.

use crate::quick::bump;
use core::iter::Sum;
use core::sync::atomic::{AtomicU64, Ordering};

/// The number of calls of [`get_user_pages_fast`](crate::PageTables::get_user_pages_fast).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GupStats {
    /// Calls that pinned all pages without a lock.
    pub fast_gup: u64,
    /// Calls that used the locked path for at least one page.
    pub fast_gup_slow: u64,
}

impl Sum for GupStats {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| GupStats {
            fast_gup: sum.fast_gup + one.fast_gup,
            fast_gup_slow: sum.fast_gup_slow + one.fast_gup_slow,
        })
    }
}

/// The counters of one CPU.
#[derive(Debug, Default)]
pub(crate) struct GupCounter {
    fast: AtomicU64,
    slow: AtomicU64,
}

impl GupCounter {
    /// Counts a call on this CPU, with interrupts disabled.
    #[inline]
    pub(crate) fn count(&self, slow: bool) {
        bump(if slow { &self.slow } else { &self.fast });
    }

    pub(crate) fn get(&self) -> GupStats {
        // Relaxed: statistics.
        GupStats {
            fast_gup: self.fast.load(Ordering::Relaxed),
            fast_gup_slow: self.slow.load(Ordering::Relaxed),
        }
    }
}
