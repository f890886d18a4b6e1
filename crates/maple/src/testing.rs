//! Helpers of the unit tests: an allocator and an entry that fail on demand, and that count.

use crate::{AllocError, Entry, Global, NodeAlloc, Raw};
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

/// As many kinds of vectors as [`with_vectors`] allows: none, AVX2, AVX-512.
pub(crate) const KINDS: u8 = 3;

/// Runs `work` with no better vectors than these: 0, none; 1, AVX2; 2, AVX-512. A processor that
/// lacks them, or a build without vectors, runs it by what it has.
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

/// What [`with_vectors`] allows on this thread.
#[allow(dead_code)] // Without vectors.
pub(crate) fn vectors() -> u8 {
    VECTORS.get()
}

/// Counts a node that a path enters.
pub(crate) fn visit() {
    VISITS.set(VISITS.get() + 1);
}

/// Nodes that this thread's paths have entered.
pub(crate) fn visits() -> usize {
    VISITS.get()
}

/// The budget is shared by nodes and entries: the nth allocation of whatever kind fails.
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

/// The global allocator, counted, that fails on demand, for each thread alone.
pub(crate) struct Flaky;

impl Flaky {
    /// Nodes alive that this thread allocated, less those it freed.
    pub(crate) fn live() -> isize {
        LIVE.get()
    }

    /// Runs `work` with only `n` allocations allowed.
    pub(crate) fn failing_after<T>(n: usize, work: impl FnOnce() -> T) -> T {
        BUDGET.set(Some(n));
        let outcome = work();
        BUDGET.set(None);
        outcome
    }
}

// SAFETY: passes on to `Global`, or refuses.
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

/// A number in a box of its own; duplicates cost an allocation from [`Flaky`]'s budget.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(crate) struct Owned(std::boxed::Box<u64>);

impl Owned {
    pub(crate) fn new(value: u64) -> Self {
        ENTRIES.set(ENTRIES.get() + 1);
        Owned(std::boxed::Box::new(value))
    }

    /// Entries alive that this thread made, less those it dropped.
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

    fn into_raw(self) -> Raw {
        let inner = core::mem::ManuallyDrop::new(self);
        // SAFETY: the box is moved out once, and `self` is not dropped.
        Entry::into_raw(unsafe { core::ptr::read(&inner.0) })
    }

    unsafe fn from_raw(raw: Raw) -> Self {
        // SAFETY: the caller's promise.
        Owned(unsafe { Entry::from_raw(raw) })
    }

    unsafe fn borrow<'g>(raw: Raw) -> &'g u64 {
        // SAFETY: the caller's promise.
        unsafe { <std::boxed::Box<u64> as Entry>::borrow(raw) }
    }

    unsafe fn try_dup(raw: Raw) -> Result<Raw, AllocError> {
        spend()?;
        // SAFETY: the caller's promise.
        Ok(Owned::new(*unsafe { Self::borrow(raw) }).into_raw())
    }
}
