//! The engine for structures with one owner: no reader is concurrent with the writer.

use crate::Reclaim;
use core::ptr::NonNull;

/// No concurrent readers: retiring frees at once.
///
/// It is not [`Concurrent`](crate::Concurrent), so a structure that requires that bound cannot let
/// a reader run concurrently with a writer with it.
///
/// Cost: a guard costs nothing, and retiring costs the free itself.
///
/// ```
/// use grace::{Reclaim, Single};
/// let guard = Single::pin();
/// # let _ = guard;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Single;

/// The guard of [`Single`]. It protects nothing, since no writer is concurrent with its holder.
///
/// ```
/// use grace::{Reclaim, Single, SingleGuard};
/// let _guard: SingleGuard = Single::pin();
/// ```
#[derive(Debug)]
pub struct SingleGuard(());

impl SingleGuard {
    /// The guard, for a constant.
    pub const NEW: SingleGuard = SingleGuard(());
}

// SAFETY: `free` is called exactly once, from within `retire`.
unsafe impl Reclaim for Single {
    type Guard = SingleGuard;

    fn pin() -> SingleGuard {
        SingleGuard(())
    }

    unsafe fn retire(_: &SingleGuard, ptr: NonNull<()>, free: unsafe fn(NonNull<()>)) {
        // SAFETY: the caller promises that no code accesses `ptr`, and that `free` fits it.
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
        // SAFETY: `free` uses the pointer as a number only.
        unsafe { Single::retire(&guard, NonNull::without_provenance(64.try_into().unwrap()), free) }
        assert_eq!(FREED.load(Ordering::Relaxed), 1);
    }
}
