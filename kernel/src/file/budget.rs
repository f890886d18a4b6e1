//! The heap that files may use. Programs make files, pipes and open descriptions as they like, and
//! the kernel's heap does not grow. So each of these is charged before it is made.
//!
//! The budget is a quarter of the heap. Contents of files are frames, and are not counted here.

use crate::errno::Errno;
use crate::machine::Kernel;
use core::sync::atomic::{AtomicUsize, Ordering};
use linux_raw_sys::errno::ENOSPC;
use machine::FrameSource;

static LEFT: AtomicUsize = AtomicUsize::new(0);

/// Sets the budget. Call it once, before the first file.
pub(super) fn start() {
    // The heap is a quarter of memory, so it is a third of the frames, which are the rest.
    let bytes = (Kernel.free_frames() << 12) / 3 / 4;
    // Relaxed: other CPUs use files later.
    LEFT.store(bytes, Ordering::Relaxed);
}

/// Bytes of the heap, which are given back when it is dropped.
pub(super) struct Charge(usize);

impl Charge {
    /// # Errors
    /// ENOSPC: nothing has changed.
    pub(super) fn new(bytes: usize) -> Result<Charge, Errno> {
        // Relaxed: only the number.
        LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes))
            .map(|_| Charge(bytes))
            .map_err(|_| Errno(ENOSPC))
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        // Relaxed: as above.
        LEFT.fetch_add(self.0, Ordering::Relaxed);
    }
}
