//! The heap: a part of memory that is set aside at boot, a quarter. Frames are another matter, so
//! whoever takes the last of those leaves the heap as it is.

use crate::machine::Kernel;
use core::alloc::{GlobalAlloc, Layout};
use machine::{Irqs, lock};
use spin::mutex::SpinMutex;
use talc::base::{Talc, binning::DefaultBinning};
use talc::source::Manual;

struct Heap(SpinMutex<Talc<Manual, DefaultBinning>>);

#[global_allocator]
static HEAP: Heap = Heap(SpinMutex::new(Talc::new(Manual)));

// SAFETY: Talc's, with interrupts off, since handlers allocate and free too.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _section = Kernel.irqs_off();
        // SAFETY: passed on.
        let found = unsafe { lock(&Kernel, &self.0).allocate(layout) };
        found.map_or(core::ptr::null_mut(), |found| found.as_ptr())
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let _section = Kernel.irqs_off();
        // SAFETY: passed on.
        unsafe { lock(&Kernel, &self.0).deallocate(at, layout) }
    }
}

/// Gives the heap its memory. Returns whether it is enough for anything.
///
/// # Safety
/// Nobody else uses the memory, ever.
pub(crate) unsafe fn start(at: *mut u8, bytes: usize) -> bool {
    // SAFETY: passed on.
    unsafe { HEAP.0.lock().claim(at, bytes) }.is_some()
}
