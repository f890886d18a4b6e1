//! The batches that idle CPUs have left.
//!
//! An idle CPU pushes its blocks, already linked, onto one chain. The CPU that reclaims next takes
//! the whole chain. No single block is ever taken off, so the chain has no ABA problem.

#[cfg(all(test, loom))]
mod loom_tests;

use crate::batch::{Batches, Block, List};
use crate::sync::{AtomicPtr, Ordering};
use core::ptr::{self, NonNull};

/// Blocks that any CPU may take.
#[derive(Debug)]
pub(super) struct Chain(AtomicPtr<Block>);

impl Chain {
    #[cfg(not(loom))]
    pub(super) const fn new() -> Chain {
        Chain(AtomicPtr::new(ptr::null_mut()))
    }

    #[cfg(loom)]
    pub(super) fn new() -> Chain {
        Chain(AtomicPtr::new(ptr::null_mut()))
    }

    pub(super) fn is_empty(&self) -> bool {
        // Relaxed: a hint. `take` checks again.
        self.0.load(Ordering::Relaxed).is_null()
    }

    pub(super) fn push(&self, mut list: List) {
        let Some((first, mut last)) = list.ends.take() else { return };
        // Relaxed: the compare-exchange checks it.
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            // SAFETY: this list owns the blocks until the compare-exchange succeeds.
            unsafe { last.as_mut() }.next = NonNull::new(head);
            // Release: the blocks are written. Pairs with the Acquire of `take`. Relaxed on
            // failure: the value is only linked to.
            match self.0.compare_exchange_weak(
                head,
                first.as_ptr(),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    fn take(&self) -> List {
        // Acquire: pairs with the Release of each `push`. Their exchanges form a release sequence.
        let first = self.0.swap(ptr::null_mut(), Ordering::Acquire);
        // SAFETY: the CPU that swaps the blocks out owns them all.
        unsafe { list_of(NonNull::new(first)) }
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        // A model that has failed has lost its atomics.
        #[cfg(loom)]
        if std::thread::panicking() {
            return;
        }
        drop(self.take());
    }
}

/// # Safety
/// No other code owns the blocks from `first` on.
unsafe fn list_of(first: Option<NonNull<Block>>) -> List {
    let mut list = List::new();
    let mut next = first;
    while let Some(mut block) = next {
        // SAFETY: the caller's promise.
        unsafe {
            next = block.as_mut().next.take();
            list.append(List::of(block));
        }
    }
    list
}

impl Batches {
    /// Takes over the batches that idle CPUs have left.
    pub(super) fn adopt(&mut self, orphans: &Chain) {
        if !orphans.is_empty() {
            self.take_over(orphans.take());
        }
    }
}
