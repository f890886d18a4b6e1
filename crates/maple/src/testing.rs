//! Helpers of the unit tests: an allocator and an entry type that count, and that fail on demand.

use crate::{AllocError, Entry, Error, Global, NodeAlloc, Raw};
use core::alloc::Layout;
use core::ptr::NonNull;
use std::cell::Cell;
use std::thread_local;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static BUDGET: Cell<Option<usize>> = const { Cell::new(None) };
    static ENTRIES: Cell<isize> = const { Cell::new(0) };
    static VISITS: Cell<usize> = const { Cell::new(0) };
    static VECTORS: Cell<u8> = const { Cell::new(u8::MAX) };
}

/// The number of arguments that [`with_vectors`] accepts: scalar, AVX2, AVX-512.
pub(crate) const KINDS: u8 = 3;

/// Runs `work` with at most this kind of SIMD: 0 for scalar, 1 for AVX2, 2 for AVX-512. A CPU or a
/// build without that kind uses the best one that it has.
pub(crate) fn with_vectors<T>(most: u8, work: impl FnOnce() -> T) -> T {
    struct Restore(u8);
    impl Drop for Restore {
        fn drop(&mut self) {
            VECTORS.set(self.0);
        }
    }
    let _restore = Restore(VECTORS.replace(most));
    work()
}

/// The limit set by [`with_vectors`] on this thread.
#[allow(dead_code)] // In builds without SIMD.
pub(crate) fn vectors() -> u8 {
    VECTORS.get()
}

/// Counts a node that a descent enters.
pub(crate) fn visit() {
    VISITS.set(VISITS.get() + 1);
}

/// The number of nodes that the descents of this thread have entered.
pub(crate) fn visits() -> usize {
    VISITS.get()
}

/// Spends from the budget, which nodes and entries share. When it is used up, every allocation
/// fails.
fn spend() -> Result<(), AllocError> {
    BUDGET.with(|budget| match budget.get() {
        Some(0) => Err(AllocError),
        Some(n) => {
            budget.set(Some(n - 1));
            Ok(())
        }
        None => Ok(()),
    })
}

/// The global allocator with a count of live nodes, and with failures on demand. Each thread has
/// its own.
pub(crate) struct Flaky;

impl Flaky {
    /// The number of nodes that this thread allocated, less those that it freed.
    pub(crate) fn live() -> isize {
        LIVE.get()
    }

    /// Runs `work` with a budget of `n` allocations.
    pub(crate) fn failing_after<T>(n: usize, work: impl FnOnce() -> T) -> T {
        BUDGET.set(Some(n));
        let outcome = work();
        BUDGET.set(None);
        outcome
    }
}

// SAFETY: passes calls on to `Global`, or refuses.
unsafe impl NodeAlloc for Flaky {
    fn allocate(layout: Layout) -> Result<NonNull<u8>, AllocError> {
        spend()?;
        let block = Global::allocate(layout)?;
        LIVE.set(LIVE.get() + 1);
        Ok(block)
    }

    unsafe fn deallocate(ptr: NonNull<u8>, layout: Layout) {
        LIVE.set(LIVE.get() - 1);
        // SAFETY: the caller's promise.
        unsafe { Global::deallocate(ptr, layout) }
    }
}

/// A number in a box. A duplicate costs one allocation from the budget.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(crate) struct Owned(std::boxed::Box<u64>);

impl Owned {
    pub(crate) fn new(value: u64) -> Self {
        ENTRIES.set(ENTRIES.get() + 1);
        Owned(std::boxed::Box::new(value))
    }

    /// The number of entries that this thread made, less those that it dropped.
    pub(crate) fn live() -> isize {
        ENTRIES.get()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        ENTRIES.set(ENTRIES.get() - 1);
    }
}

// SAFETY: the word is the box's pointer.
unsafe impl Entry for Owned {
    type Ref<'g> = &'g u64;
    const NEEDS_DROP: bool = true;

    fn try_into_raw(self) -> Result<Raw, Self> {
        let inner = core::mem::ManuallyDrop::new(self);
        // SAFETY: the box is moved out once, and `self` is not dropped.
        Entry::try_into_raw(unsafe { core::ptr::read(&inner.0) }).map_err(Owned)
    }

    unsafe fn from_raw(raw: Raw) -> Self {
        // SAFETY: the caller's promise.
        Owned(unsafe { Entry::from_raw(raw) })
    }

    unsafe fn borrow<'g>(raw: Raw) -> &'g u64 {
        // SAFETY: the caller's promise.
        unsafe { <std::boxed::Box<u64> as Entry>::borrow(raw) }
    }

    unsafe fn try_dup(raw: Raw) -> Result<Raw, Error> {
        spend()?;
        // SAFETY: the caller's promise.
        Owned::new(*unsafe { Self::borrow(raw) }).try_into_raw().map_err(|_| Error::OutOfMemory)
    }
}
