//! Chunks: what the pool has from the global allocator, one slab or 32.

use super::slab::{HEADER, SLAB, Slab};
use core::alloc::Layout;
use core::ptr::NonNull;
use std_alloc::alloc::{alloc, dealloc};

/// The header of a chunk, in the header of its first slab, behind that slab's own.
pub(super) struct Chunk {
    /// The next of [`Chunks`]; nothing while a depot has the chunk.
    next: Option<NonNull<Chunk>>,
    /// Slabs that there are, that have been carved (from the first on), and that have blocks out.
    slabs: u32,
    pub(super) carved: u32,
    pub(super) busy: u32,
}

/// Where the header lies.
const AT: usize = HEADER - size_of::<Chunk>();

const _: () = assert!(AT.is_multiple_of(align_of::<Chunk>()) && AT >= size_of::<Slab>());

impl Chunk {
    /// The bytes of the chunk.
    pub(super) fn bytes(&self) -> usize {
        self.slabs as usize * SLAB
    }

    /// Every slab has been carved.
    pub(super) fn is_carved(&self) -> bool {
        self.carved == self.slabs
    }

    /// Where slab `n` lies.
    ///
    /// # Safety
    /// `this` is a chunk with at least `n + 1` slabs.
    pub(super) unsafe fn slab(this: NonNull<Chunk>, n: u32) -> NonNull<u8> {
        // SAFETY: the header lies that far into the chunk, which is as long as its slabs.
        unsafe { this.cast::<u8>().sub(AT).add(n as usize * SLAB) }
    }
}

/// Chunks that no depot has, chained through their headers. Dropping them gives them back to the
/// global allocator: to be done without the depot's lock.
#[must_use = "to be dropped without the depot's lock"]
pub(super) struct Chunks(Option<NonNull<Chunk>>);

impl Chunks {
    pub(super) const fn new() -> Self {
        Chunks(None)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// A new chunk of that size, a multiple of a slab and a power of two; or none if there is no
    /// memory.
    pub(super) fn allocate(bytes: usize) -> Self {
        let Ok(layout) = Layout::from_size_align(bytes, bytes) else { return Chunks(None) };
        // SAFETY: the size is not zero.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { return Chunks(None) };
        advise(start, bytes);
        // `Slab::of` gets it back.
        start.expose_provenance();
        // SAFETY: a chunk is larger than a header, and `AT` keeps the alignment.
        let chunk = unsafe { start.add(AT).cast::<Chunk>() };
        let slabs = (bytes / SLAB) as u32;
        // SAFETY: as above; the memory is ours.
        unsafe { chunk.write(Chunk { next: None, slabs, carved: 0, busy: 0 }) };
        Chunks(Some(chunk))
    }

    /// Adds a chunk.
    ///
    /// # Safety
    /// No block of it is out, and no depot has it any more.
    pub(super) unsafe fn push(&mut self, chunk: NonNull<Chunk>) {
        // SAFETY: the chunk is the caller's, who gives it to us.
        unsafe { (*chunk.as_ptr()).next = self.0 };
        self.0 = Some(chunk);
    }

    pub(super) fn pop(&mut self) -> Option<NonNull<Chunk>> {
        let chunk = self.0?;
        // SAFETY: the chunks in the chain are ours.
        self.0 = unsafe { (*chunk.as_ptr()).next.take() };
        Some(chunk)
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        while let Some(chunk) = self.pop() {
            // SAFETY: the chunk is ours. It came from the global allocator with this layout, which
            // was a valid one, and its first slab lies at its start.
            unsafe {
                let bytes = chunk.as_ref().bytes();
                let layout = Layout::from_size_align_unchecked(bytes, bytes);
                dealloc(Chunk::slab(chunk, 0).as_ptr(), layout);
            }
        }
    }
}

/// Asks for a huge page where the chunk is as large as one. Only advice: without it the chunk
/// serves as well, with more misses of the TLB, so the answer does not matter.
fn advise(start: NonNull<u8>, bytes: usize) {
    #[cfg(all(target_os = "linux", not(miri)))]
    if bytes == super::LARGE {
        // SAFETY: the range is ours, and the advice does not change its contents.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = (start, bytes);
}
