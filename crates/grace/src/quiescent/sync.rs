//! The one place that knows whether we run on real atomics or under loom.

#[cfg(not(loom))]
pub(super) use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
#[cfg(loom)]
pub(super) use loom::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// A fence of the engine, by the function that it is in: a model can leave one out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(hidden)]
#[cfg_attr(not(loom), expect(unreachable_pub, reason = "models choose one"))]
pub enum Fence {
    Target,
    Pass,
    Advance,
}

/// A sequentially consistent fence.
#[cfg(not(loom))]
#[inline(always)]
pub(super) fn fence(_: Fence) {
    core::sync::atomic::fence(Ordering::SeqCst);
}

#[cfg(loom)]
pub(super) fn fence(which: Fence) {
    if LEFT_OUT.get() != Some(which) {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }
}

#[cfg(loom)]
std::thread_local! {
    static LEFT_OUT: core::cell::Cell<Option<Fence>> = const { core::cell::Cell::new(None) };
}

/// Runs `f` on an engine that lacks a fence. A model runs on one thread of the host, and so does its mutant.
#[cfg(loom)]
#[doc(hidden)]
pub fn without<T>(which: Fence, f: impl FnOnce() -> T) -> T {
    struct Restore(Option<Fence>);
    impl Drop for Restore {
        fn drop(&mut self) {
            LEFT_OUT.set(self.0);
        }
    }
    let _restore = Restore(LEFT_OUT.replace(Some(which)));
    f()
}

/// Keeps the compiler from moving accesses across it. To the hardware it is nothing: a CPU sees its own accesses in order.
#[inline(always)]
pub(super) fn compiler_fence() {
    core::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// Memory of one CPU, with the interface of loom's cell.
#[cfg(not(loom))]
pub(super) struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(super) const fn new(value: T) -> Self {
        UnsafeCell(core::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(super) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

#[cfg(loom)]
pub(super) use loom::cell::UnsafeCell;
