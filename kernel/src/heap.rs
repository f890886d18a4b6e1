//! The heap: a quarter of memory, set aside at boot. Frames come from the rest, so running out of
//! frames does not affect the heap.

use crate::machine::Kernel;
use core::alloc::{GlobalAlloc, Layout};
use machine::{Irqs, lock};
use spin::mutex::SpinMutex;
use talc::base::{Talc, binning::DefaultBinning};
use talc::source::Manual;

struct Heap(SpinMutex<Talc<Manual, DefaultBinning>>);

#[global_allocator]
static HEAP: Heap = Heap(SpinMutex::new(Talc::new(Manual)));

// SAFETY: Talc implements it. Interrupts are off, because handlers allocate and free, too.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _section = Kernel.irqs_off();
        // SAFETY: the caller's promise is passed on.
        let found = unsafe { lock(&Kernel, &self.0).allocate(layout) };
        found.map_or(core::ptr::null_mut(), |found| found.as_ptr())
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let _section = Kernel.irqs_off();
        // SAFETY: the caller's promise is passed on.
        unsafe { lock(&Kernel, &self.0).deallocate(at, layout) }
    }
}

/// Gives the heap its memory. Returns false if it is too little for any allocation.
///
/// # Safety
/// No other code uses this memory, ever.
pub(crate) unsafe fn start(at: *mut u8, bytes: usize) -> bool {
    // SAFETY: the caller's promise is passed on.
    unsafe { HEAP.0.lock().claim(at, bytes) }.is_some()
}
