//! The machine's physical memory: one block of the host's, zeroed, which the host backs as it is touched.

use machine::{Frame, FrameRange};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Memory begins at 4 GiB, so that an address cut to 32 bits is noticed, and frame 0 is none.
const FIRST: u64 = 1 << 20;

pub(crate) struct Arena {
    base: NonNull<u8>,
    layout: Layout,
    span: FrameRange,
}

// SAFETY: it only hands out pointers; what is done with them is their users' affair.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    pub(crate) fn new(frames: u64) -> Option<Arena> {
        let span = FrameRange::new(Frame::new(FIRST)?, frames)?;
        let layout =
            Layout::from_size_align(usize::try_from(frames).ok()?.checked_mul(4096)?, 4096).ok()?;
        if layout.size() == 0 {
            return None;
        }
        // SAFETY: the size is not 0.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Arena { base, layout, span })
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
        // SAFETY: within the block.
        Some(unsafe { self.base.add(index * 4096) })
    }

    /// Word `index` of a frame, as the hardware sees it. All that the machine itself does to memory goes through here.
    #[inline]
    pub(crate) fn word(&self, frame: Frame, index: usize) -> Option<&AtomicU64> {
        if index >= 512 {
            return None;
        }
        let base = self.frame_ptr(frame)?;
        // SAFETY: within the frame, aligned, alive as long as the arena. Those who use the same memory at the same
        // time in another way than by atomic words break the promises of `Memory::entry` or of `Translated`.
        Some(unsafe { base.cast::<AtomicU64>().add(index).as_ref() })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, freed once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}
