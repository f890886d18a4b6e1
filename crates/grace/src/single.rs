//! The engine for structures with one owner: there is nobody to wait for.

use crate::Reclaim;
use core::ptr::NonNull;

/// No concurrent readers: what is retired is freed at once.
///
/// It is not [`Concurrent`](crate::Concurrent), so no structure that asks for that bound can let a
/// reader run beside a writer with it.
///
/// Cost: a guard is nothing; retiring is the free itself.
///
/// ```
/// use grace::{Reclaim, Single};
/// let guard = Single::pin();
/// # let _ = guard;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Single;

/// The guard of [`Single`]: it protects nothing, because there is nothing to protect from.
///
/// ```
/// use grace::{Reclaim, Single, SingleGuard};
/// let _guard: SingleGuard = Single::pin();
/// ```
#[derive(Debug)]
pub struct SingleGuard(());

// SAFETY: `free` is called exactly once, from within `retire`.
unsafe impl Reclaim for Single {
    type Guard = SingleGuard;

    fn pin() -> SingleGuard {
        SingleGuard(())
    }

    unsafe fn retire(_: &SingleGuard, ptr: NonNull<()>, free: unsafe fn(NonNull<()>)) {
        // SAFETY: the caller promises that nobody looks at `ptr` and that `free` fits it.
        unsafe { free(ptr) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn retire_frees_at_once_and_once() {
        static FREED: AtomicUsize = AtomicUsize::new(0);
        unsafe fn free(ptr: NonNull<()>) {
            assert_eq!(ptr.addr().get(), 64);
            // Relaxed: one thread.
            FREED.fetch_add(1, Ordering::Relaxed);
        }
        let guard = Single::pin();
        // SAFETY: the pointer is only a number to `free`.
        unsafe { Single::retire(&guard, NonNull::without_provenance(64.try_into().unwrap()), free) }
        assert_eq!(FREED.load(Ordering::Relaxed), 1);
    }
}
