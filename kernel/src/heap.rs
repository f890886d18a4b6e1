//! The heap: a quarter of memory, set aside at boot. Frames come from the rest, so running out of
//! frames does not affect the heap.

use crate::machine::Kernel;
use core::alloc::{GlobalAlloc, Layout};
use core::sync::atomic::{AtomicUsize, Ordering};
use machine::{Irqs, lock};
use spin::mutex::SpinMutex;
use talc::base::{Talc, binning::DefaultBinning};
use talc::source::Manual;

/// The bytes of the heap, and those in use.
static BYTES: AtomicUsize = AtomicUsize::new(0);
static USED: AtomicUsize = AtomicUsize::new(0);

/// Whether less than an eighth of the heap is free. Most calls then fail, so that memory is left
/// for those that give it back, end or wait. A load.
#[cfg(target_arch = "x86_64")]
pub(crate) fn is_short() -> bool {
    // Relaxed, here and below: only the number.
    USED.load(Ordering::Relaxed) > BYTES.load(Ordering::Relaxed) / 8 * 7
}

struct Heap(SpinMutex<Talc<Manual, DefaultBinning>>);

#[global_allocator]
static HEAP: Heap = Heap(SpinMutex::new(Talc::new(Manual)));

// SAFETY: Talc implements it. Interrupts are off, because handlers allocate and free, too.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _section = Kernel.irqs_off();
        let mut heap = lock(&Kernel, &self.0);
        // SAFETY: the caller's promise is passed on.
        let found = unsafe { heap.allocate(layout) };
        let Some(found) = found else { return core::ptr::null_mut() };
        // The lock is held, so no locked instruction is needed.
        USED.store(USED.load(Ordering::Relaxed) + layout.size(), Ordering::Relaxed);
        found.as_ptr()
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let _section = Kernel.irqs_off();
        let mut heap = lock(&Kernel, &self.0);
        USED.store(USED.load(Ordering::Relaxed) - layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { heap.deallocate(at, layout) }
    }
}

/// Gives the heap its memory. Returns false if it is too little for any allocation.
///
/// # Safety
/// No other code uses this memory, ever.
pub(crate) unsafe fn start(at: *mut u8, bytes: usize) -> bool {
    BYTES.store(bytes, Ordering::Relaxed);
    // SAFETY: the caller's promise is passed on.
    unsafe { HEAP.0.lock().claim(at, bytes) }.is_some()
}
