//! The machine's physical memory: zeroed pages of the host, which the host provides on first touch.

use machine::{Frame, FrameRange};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory begins at 4 GiB, so that an address cut to 32 bits is noticed, and frame 0 is not memory.
const FIRST: u64 = 1 << 20;

pub(crate) struct Arena {
    base: NonNull<u8>,
    len: usize,
    span: FrameRange,
}

// SAFETY: it only hands out pointers; their users are responsible for the accesses.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    pub(crate) fn new(frames: u64) -> Option<Arena> {
        let span = FrameRange::new(Frame::new(FIRST)?, frames)?;
        let len = usize::try_from(frames).ok()?.checked_mul(4096)?;
        // Not from the heap, which clears the memory that it reuses: a small test never touches
        // most of its memory.
        // SAFETY: a new mapping, so the memory has no other user.
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

    /// The value of a word now, and with it what the CPU that stored it had made visible.
    pub(crate) fn load(&self, frame: Frame, index: usize) -> Option<u64> {
        // Acquire: pairs with the Release of the CPU that stored an entry, and linked its target.
        self.word(frame, index).map(|word| word.load(Ordering::Acquire))
    }

    /// Word `index` of a frame, or of the block that begins there, as the hardware sees it. All of
    /// the machine's own accesses to memory use this.
    #[inline]
    pub(crate) fn word(&self, frame: Frame, index: usize) -> Option<&AtomicU64> {
        let base = self.frame_ptr(frame.checked_add((index / 512) as u64)?)?;
        // SAFETY: within the frame, aligned, and alive as long as the arena. Code that concurrently
        // accesses the same memory by other means than atomic words breaks the contract of
        // `Memory::entry` or of `Translated`.
        Some(unsafe { base.cast::<AtomicU64>().add(index % 512).as_ref() })
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and has no user: the machine is gone.
        let result = unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        debug_assert_eq!(result, 0, "munmap failed");
    }
}
