//! Tests I7 in random address spaces: every allocation of every call fails once, and then nothing
//! may have changed.

extern crate std;

use proptest::{collection::vec, prelude::*};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    ptr, thread_local,
};

use crate::testing::play_failing;

thread_local! {
    /// The allocations of this thread that still succeed; `None`: all.
    static LEFT: Cell<Option<usize>> = const { Cell::new(None) };
}

struct Failing;

// SAFETY: returns memory of the system's allocator, or null, which the contract allows.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match LEFT.get() {
            Some(0) => return ptr::null_mut(),
            left => LEFT.set(left.map(|left| left - 1)),
        }
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the block came from the system's allocator.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 1 } else { 200 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn calls_without_memory_change_nothing(
        bytes in vec(any::<u8>(), 0..if cfg!(miri) { 60 } else { 600 })
    ) {
        play_failing(&bytes, |allowed| LEFT.replace(allowed));
    }
}
