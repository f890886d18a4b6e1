//! How often pages were taken with and without the locked path.

use crate::quick::bump;
use core::iter::Sum;
use core::sync::atomic::{AtomicU64, Ordering};

/// How often [`get_user_pages_fast`](crate::PageTables::get_user_pages_fast) was called.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GupStats {
    /// Calls that had all pages without a lock.
    pub fast_gup: u64,
    /// Calls that took the locked path for some page.
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

/// Of one CPU.
#[derive(Debug, Default)]
pub(crate) struct GupCounter {
    fast: AtomicU64,
    slow: AtomicU64,
}

impl GupCounter {
    /// One more call, on this CPU, with interrupts off.
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
