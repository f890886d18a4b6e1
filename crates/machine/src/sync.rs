//! The atomics of protocols between CPUs: core's, or loom's in models.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering, fence},
};

/// Core's cell, with loom's methods.
#[cfg(not(loom))]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        UnsafeCell(core::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Whether a model has failed. Its atomics are gone then, and unwinding code must not touch them.
/// Always false outside models.
#[inline(always)]
pub(crate) fn model_is_over() -> bool {
    #[cfg(all(test, loom))]
    return crate::loom_tests::is_over();
    #[cfg(not(all(test, loom)))]
    false
}
