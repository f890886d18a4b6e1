//! An allocator that can count: the system's, and the bytes that this thread asks of it while it
//! counts.
//!
//! It counts what is asked for, not what the C library makes of it: so the figure is the map's own
//! doing.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// The bytes, while this thread counts.
    static BYTES: Cell<Option<isize>> = const { Cell::new(None) };
}

/// Cost while off: one load of a line of the thread's own, and a branch.
fn count(bytes: isize) {
    if let Some(sum) = BYTES.get() {
        BYTES.set(Some(sum + bytes));
    }
}

// SAFETY: all of it is the system allocator's; counting neither allocates nor panics, since a
// thread-local that is a constant and needs no drop is always there.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

/// What `make` returns, and the bytes that this thread asked for and did not give back meanwhile.
pub(crate) fn counted<T>(make: impl FnOnce() -> T) -> (T, isize) {
    BYTES.set(Some(0));
    let made = make();
    (made, BYTES.take().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_what_stays() {
        let ((), none) = counted(|| drop(vec![0u8; 1000]));
        let (kept, bytes) = counted(|| {
            let mut grown = Vec::<u8>::with_capacity(10);
            grown.reserve_exact(300);
            (grown, Box::new(0u64))
        });
        assert_eq!((none, bytes), (0, 308));
        drop(kept);
        // Nobody counts any more.
        assert_eq!(BYTES.get(), None);
    }
}
