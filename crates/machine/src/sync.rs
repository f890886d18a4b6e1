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

/// Orders an atomic update of this CPU before its loads that follow: a SeqCst fence, for a protocol
/// in which each of two CPUs stores first and then looks. On x86-64 an update does so by itself,
/// and this is free. Any context.
///
/// ```
/// use core::sync::atomic::{AtomicU64, Ordering};
/// let (pins, entry) = (AtomicU64::new(0), AtomicU64::new(7));
/// pins.fetch_add(1, Ordering::Acquire);
/// machine::after_update();
/// assert_eq!(entry.load(Ordering::Acquire), 7);
/// ```
#[inline(always)]
pub fn after_update() {
    if cfg!(any(loom, not(target_arch = "x86_64"))) {
        fence(Ordering::SeqCst);
    } else {
        core::sync::atomic::compiler_fence(Ordering::SeqCst);
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
