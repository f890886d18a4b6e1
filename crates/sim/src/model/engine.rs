//! Grace periods of a model: they end when its threads have.

use ::grace::{Concurrent, Reclaim};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::ptr::NonNull;

type Retired = (NonNull<()>, unsafe fn(NonNull<()>));

thread_local! {
    /// Retired by the model that runs on this host thread.
    static RETIRED: RefCell<Vec<Retired>> = const { RefCell::new(Vec::new()) };
}

/// An engine whose grace periods last to the end of an execution. A guard is nothing, and costs
/// loom no step.
#[derive(Clone, Copy, Debug)]
pub struct ModelGrace;

/// A guard of [`ModelGrace`].
#[derive(Debug)]
pub struct ModelGuard(PhantomData<*mut ()>);

impl ModelGrace {
    /// The objects that a panicked execution has left are lost.
    pub(super) fn begin() {
        RETIRED.with_borrow_mut(Vec::clear);
    }

    /// Frees all that was retired.
    ///
    /// # Safety
    /// All other threads of the model have ended, and this one has no guard.
    pub unsafe fn end() {
        while let Some((ptr, free)) = RETIRED.with_borrow_mut(Vec::pop) {
            // SAFETY: the caller of `retire` promised that it may be called once, when no guard
            // from before exists. All threads have ended, and a guard stays on its thread.
            unsafe { free(ptr) };
        }
    }
}

// SAFETY: `end` frees each piece once.
unsafe impl Reclaim for ModelGrace {
    type Guard = ModelGuard;

    fn pin() -> ModelGuard {
        ModelGuard(PhantomData)
    }

    unsafe fn retire(_: &ModelGuard, ptr: NonNull<()>, free: unsafe fn(NonNull<()>)) {
        RETIRED.with_borrow_mut(|retired| retired.push((ptr, free)));
    }
}

// SAFETY: nothing is freed while another thread runs, and the end of a thread happens before the
// frees, which come after its join.
unsafe impl Concurrent for ModelGrace {}
