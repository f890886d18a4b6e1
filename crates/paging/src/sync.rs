//! Words of a lock and of a counter, as the standard library has it and as loom has it: so that
//! loom runs the same lines.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::AtomicU64;

/// A word of 32 bits; its methods are the standard library's.
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
