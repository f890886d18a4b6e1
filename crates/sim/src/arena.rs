//! The machine's physical memory: pages of the host's, zeroed, which the host provides as they are
//! touched.

use machine::{Frame, FrameRange};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;

/// Memory begins at 4 GiB, so that an address cut to 32 bits is noticed, and frame 0 is none.
const FIRST: u64 = 1 << 20;

pub(crate) struct Arena {
    base: NonNull<u8>,
    len: usize,
    span: FrameRange,
}

// SAFETY: it only hands out pointers; what is done with them is their users' affair.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    pub(crate) fn new(frames: u64) -> Option<Arena> {
        let span = FrameRange::new(Frame::new(FIRST)?, frames)?;
        let len = usize::try_from(frames).ok()?.checked_mul(4096)?;
        // Not from the heap, which clears what it reuses: most of a small test's memory is never
        // touched. SAFETY: a new mapping, of memory that nobody has.
        let base = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(
                ptr::null_mut(),
                len,
                protection,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let base = (base != libc::MAP_FAILED).then_some(base.cast())?;
        Some(Arena { base: NonNull::new(base)?, len, span })
    }

    pub(crate) fn span(&self) -> FrameRange {
        self.span
    }

    #[inline]
    pub(crate) fn index(&self, frame: Frame) -> Option<usize> {
        let index = frame.number().checked_sub(self.span.start().number())?;
        (index < self.span.len()).then_some(index as usize)
    }

    #[inline]
    pub(crate) fn frame_ptr(&self, frame: Frame) -> Option<NonNull<u8>> {
        let index = self.index(frame)?;
        // SAFETY: within the mapping.
        Some(unsafe { self.base.add(index * 4096) })
    }

    /// Word `index` of a frame, as the hardware sees it. All that the machine itself does to memory
    /// goes through here.
    #[inline]
    pub(crate) fn word(&self, frame: Frame, index: usize) -> Option<&AtomicU64> {
        if index >= 512 {
            return None;
        }
        let base = self.frame_ptr(frame)?;
        // SAFETY: within the frame, aligned, alive as long as the arena. Those who use the same
        // memory at the same time in another way than by atomic words break the promises of
        // `Memory::entry` or of `Translated`.
        Some(unsafe { base.cast::<AtomicU64>().add(index).as_ref() })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing refers to it any more: the machine is gone.
        let result = unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert_eq!(result, 0, "the host does not take its memory back");
    }
}
