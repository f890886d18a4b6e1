//! The system's allocator, which can count the bytes that this thread requests.
//!
//! It counts the requested sizes, not those of the C library's blocks, so the figure depends on the
//! map alone.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// The bytes, while this thread counts.
    static BYTES: Cell<Option<isize>> = const { Cell::new(None) };
}

/// Cost while off: a load from a thread-local line, and a branch.
fn count(bytes: isize) {
    if let Some(sum) = BYTES.get() {
        BYTES.set(Some(sum + bytes));
    }
}

// SAFETY: every call is the system allocator's. Counting neither allocates nor panics: a
// thread-local with a constant initial value and no destructor is always accessible.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's obligations.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's obligations.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's obligations.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: the caller's obligations.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

/// Runs `make`. Returns its result, and the bytes that this thread requested and did not free
/// meanwhile.
pub(crate) fn counted<T>(make: impl FnOnce() -> T) -> (T, isize) {
    BYTES.set(Some(0));
    let made = make();
    (made, BYTES.take().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_remaining_bytes() {
        let ((), none) = counted(|| drop(vec![0u8; 1000]));
        let (kept, bytes) = counted(|| {
            let mut grown = Vec::<u8>::with_capacity(10);
            grown.reserve_exact(300);
            (grown, Box::new(0u64))
        });
        assert_eq!((none, bytes), (0, 308));
        drop(kept);
        // Counting is off again.
        assert_eq!(BYTES.get(), None);
    }
}
