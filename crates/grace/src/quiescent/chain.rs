//! What CPUs that went away have left.
//!
//! It is pushed onto one chain, block by block linked already, and whoever reclaims next takes all
//! of the chain: there is no point at which a pushed block could be taken alone, so the chain has
//! no ABA problem.

#[cfg(all(test, loom))]
mod loom_tests;

use crate::batch::{Batches, Block, List};
use crate::sync::{AtomicPtr, Ordering};
use core::ptr::{self, NonNull};

/// Blocks that anybody may take.
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
        // Relaxed: a hint; `take` looks again.
        self.0.load(Ordering::Relaxed).is_null()
    }

    pub(super) fn push(&self, mut list: List) {
        let Some((first, mut last)) = list.ends.take() else { return };
        // Relaxed: the exchange checks it.
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            // SAFETY: the blocks are this list's until the exchange succeeds.
            unsafe { last.as_mut() }.next = NonNull::new(head);
            // Release: the blocks are written; pairs with the Acquire of `take`. Relaxed on
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
        // Acquire: pairs with the Release of each `push`, whose exchanges follow one another in a
        // release sequence.
        let first = self.0.swap(ptr::null_mut(), Ordering::Acquire);
        // SAFETY: whoever swaps them out owns them all.
        unsafe { list_of(NonNull::new(first)) }
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        // A model that has failed is over: its atomics are gone.
        #[cfg(loom)]
        if std::thread::panicking() {
            return;
        }
        drop(self.take());
    }
}

/// # Safety
/// The blocks from `first` on belong to nobody else.
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
    /// Takes over what CPUs have left that went away.
    pub(super) fn adopt(&mut self, orphans: &Chain) {
        if !orphans.is_empty() {
            self.take_over(orphans.take());
        }
    }
}
