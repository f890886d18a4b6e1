//! Atomic words, from the standard library or from loom, so that loom runs the same code.

use core::sync::atomic::Ordering;
#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicBool, AtomicU64, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, fence};

/// A 32-bit word; its methods are those of the standard library.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, value: u32, order: Ordering);
}

macro_rules! word {
    ($type:ty) => {
        impl Word for $type {
            #[inline(always)]
            fn load(&self, order: Ordering) -> u32 {
                self.load(order)
            }
            #[inline(always)]
            fn store(&self, value: u32, order: Ordering) {
                self.store(value, order)
            }
        }
    };
}

word!(core::sync::atomic::AtomicU32);
#[cfg(loom)]
word!(loom::sync::atomic::AtomicU32);
