//! Atomic words, from the standard library or from loom, so that loom runs the same code.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::AtomicU64;

/// A 32-bit word; its methods are those of the standard library.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u32;
    fn store(&self, value: u32, order: Ordering);
    fn compare_exchange(
        &self,
        old: u32,
        new: u32,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u32, u32>;
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
            #[inline(always)]
            fn compare_exchange(
                &self,
                old: u32,
                new: u32,
                success: Ordering,
                failure: Ordering,
            ) -> Result<u32, u32> {
                self.compare_exchange(old, new, success, failure)
            }
        }
    };
}

word!(core::sync::atomic::AtomicU32);
#[cfg(loom)]
word!(loom::sync::atomic::AtomicU32);
