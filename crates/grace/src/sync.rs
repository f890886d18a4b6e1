//! The only module that chooses between core's atomics and loom's.

#[cfg(all(not(loom), feature = "quiescent"))]
pub(crate) use core::sync::atomic::AtomicPtr;
#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(all(loom, feature = "quiescent"))]
pub(crate) use loom::sync::atomic::AtomicPtr;
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Lets another CPU or thread go on.
#[cold]
pub(crate) fn relax() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(all(not(loom), feature = "std"))]
    std::thread::yield_now();
    #[cfg(all(not(loom), not(feature = "std")))]
    core::hint::spin_loop();
}

/// Defines a `new` that is `const`, except under loom, whose atomics have no `const` constructor.
macro_rules! constant {
    ($(#[$doc:meta])* $vis:vis fn $name:ident() -> Self $body:block) => {
        $(#[$doc])*
        #[cfg(not(loom))]
        #[allow(clippy::new_without_default, reason = "most are made once, for a static")]
        $vis const fn $name() -> Self $body
        $(#[$doc])*
        #[cfg(loom)]
        #[allow(clippy::new_without_default, reason = "as above")]
        $vis fn $name() -> Self $body
    };
}
pub(crate) use constant;

/// Keeps the compiler from moving accesses across it. It emits no instruction: a CPU sees its own
/// accesses in order.
#[cfg(feature = "quiescent")]
#[inline(always)]
pub(crate) fn compiler_fence() {
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// Memory of one CPU, with the interface of loom's cell.
#[cfg(all(not(loom), feature = "quiescent"))]
pub(crate) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(all(not(loom), feature = "quiescent"))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        UnsafeCell(core::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

#[cfg(all(loom, feature = "quiescent"))]
pub(crate) use loom::cell::UnsafeCell;
