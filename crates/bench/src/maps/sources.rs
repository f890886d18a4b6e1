//! Other sources of nodes than the pool, for `--nodes`.

use super::own::Source;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::NonNull;
use maple::{AllocError, NodeAlloc};
use mimalloc::MiMalloc;
use std::alloc::System;

/// An allocator, under a name of the names of its maps.
pub(crate) struct From<const MIMALLOC: bool>;

/// The C library's `malloc`, through Rust's `System`.
pub(crate) type Malloc = From<false>;
/// Microsoft's allocator, which also has a heap for each thread.
pub(crate) type Mimalloc = From<true>;

// SAFETY: both allocators make the same promises, for every thread.
unsafe impl<const MIMALLOC: bool> NodeAlloc for From<MIMALLOC> {
    #[inline]
    fn allocate(layout: Layout) -> Result<NonNull<u8>, AllocError> {
        // SAFETY: a node's size is not zero.
        let block = unsafe { if MIMALLOC { MiMalloc.alloc(layout) } else { System.alloc(layout) } };
        NonNull::new(block).ok_or(AllocError)
    }

    #[inline]
    unsafe fn deallocate(ptr: NonNull<u8>, layout: Layout) {
        let ptr = ptr.as_ptr();
        // SAFETY: the caller's promise; `allocate` chose the same allocator.
        unsafe {
            if MIMALLOC { MiMalloc.dealloc(ptr, layout) } else { System.dealloc(ptr, layout) }
        }
    }
}

impl Source for Malloc {
    const OWNED: &'static str = "malloc, one owner";
    const SHARED: &'static str = "malloc, shared, held";
    const EACH: &'static str = "malloc, shared, each";
}

impl Source for Mimalloc {
    const OWNED: &'static str = "mimalloc, one owner";
    const SHARED: &'static str = "mimalloc, shared, held";
    const EACH: &'static str = "mimalloc, shared, each";
}
