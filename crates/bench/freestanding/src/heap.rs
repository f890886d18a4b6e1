//! The program's allocator: free lists for small blocks, pages of the system for large ones.
//!
//! There is one thread, so there is no lock. Blocks up to [`MOST`] bytes are multiples of 64 bytes,
//! aligned to 64. Each size has a LIFO list of freed blocks, like a kernel's node cache. Cost of
//! either call: a load and a store of the list's head, and one access to the block.

use crate::linux;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::UnsafeCell;
use core::ptr;

const STEP: usize = 64;
const MOST: usize = 1024;
/// Bytes that are mapped at once.
const CHUNK: usize = 64 << 20;
const PAGE: usize = 4096;

struct HeapState {
    /// The first freed block of each size. Each block holds the address of the next one.
    free: [*mut *mut u8; MOST / STEP + 1],
    /// The rest of the current chunk.
    next: *mut u8,
    left: usize,
    /// Bytes that are allocated.
    bytes: isize,
}

struct Heap(UnsafeCell<HeapState>);

// SAFETY: the program has one thread, no signal handlers, and the functions below do not nest.
unsafe impl Sync for Heap {}

#[global_allocator]
static HEAP: Heap = Heap(UnsafeCell::new(HeapState {
    free: [ptr::null_mut(); MOST / STEP + 1],
    next: ptr::null_mut(),
    left: 0,
    bytes: 0,
}));

fn is_small(layout: Layout) -> bool {
    layout.size() <= MOST && layout.align() <= STEP
}

impl HeapState {
    fn small(&mut self, class: usize) -> *mut u8 {
        let head = self.free[class];
        if !head.is_null() {
            // SAFETY: a freed block, which holds the next one's address.
            self.free[class] = unsafe { head.read() }.cast();
            return head.cast();
        }
        let size = class * STEP;
        if self.left < size {
            let chunk = linux::map(CHUNK);
            if chunk.is_null() {
                return chunk;
            }
            linux::huge(chunk, CHUNK);
            (self.next, self.left) = (chunk, CHUNK);
        }
        let block = self.next;
        // SAFETY: inside the chunk, which has so many bytes left.
        self.next = unsafe { block.add(size) };
        self.left -= size;
        block
    }
}

// SAFETY: blocks are disjoint, long enough, and aligned: small ones to 64 bytes, large ones to a
// page.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: one thread, and nothing in here allocates.
        let state = unsafe { &mut *self.0.get() };
        state.bytes += layout.size() as isize;
        if is_small(layout) {
            state.small(layout.size().div_ceil(STEP))
        } else if layout.align() <= PAGE {
            linux::map(layout.size().next_multiple_of(PAGE))
        } else {
            ptr::null_mut()
        }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: one thread, and nothing in here allocates.
        let state = unsafe { &mut *self.0.get() };
        state.bytes -= layout.size() as isize;
        if is_small(layout) {
            let class = layout.size().div_ceil(STEP);
            let block: *mut *mut u8 = block.cast();
            // SAFETY: the block is ours again, and large enough for an address.
            unsafe { block.write(state.free[class].cast()) };
            state.free[class] = block;
        } else {
            // SAFETY: it was mapped with this length.
            unsafe { linux::unmap(block, layout.size().next_multiple_of(PAGE)) };
        }
    }
}

/// Runs `make`. Returns its result, and the bytes that were requested and not freed meanwhile.
pub(crate) fn counted<T>(make: impl FnOnce() -> T) -> (T, isize) {
    // SAFETY: one thread; the place is not borrowed outside of the allocator's functions.
    let bytes = || unsafe { (*HEAP.0.get()).bytes };
    let before = bytes();
    let made = make();
    (made, bytes() - before)
}
