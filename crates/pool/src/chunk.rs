//! Chunks: the memory that the pool gets from the global allocator, one slab or 32 at a time.

use crate::slab::{HEADER, SLAB, Slab};
use core::alloc::Layout;
use core::ptr::NonNull;
use std::alloc::{alloc, dealloc};

/// The header of a chunk. It lies behind the header of the chunk's first slab.
pub(super) struct Chunk {
    /// The next chunk in [`Chunks`]; `None` while a depot has the chunk.
    next: Option<NonNull<Chunk>>,
    /// The number of all slabs, of carved ones (from the first on), and of those with blocks out.
    slabs: u32,
    pub(super) carved: u32,
    pub(super) busy: u32,
}

/// The offset of the header in the chunk.
const AT: usize = HEADER - size_of::<Chunk>();

const _: () = assert!(AT.is_multiple_of(align_of::<Chunk>()) && AT >= size_of::<Slab>());

impl Chunk {
    /// The size of the chunk in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.slabs as usize * SLAB
    }

    /// Whether every slab has been carved.
    pub(super) fn is_carved(&self) -> bool {
        self.carved == self.slabs
    }

    /// The start of slab `n`.
    ///
    /// # Safety
    /// `this` is a chunk with at least `n + 1` slabs.
    pub(super) unsafe fn slab(this: NonNull<Chunk>, n: u32) -> NonNull<u8> {
        // SAFETY: the header lies `AT` bytes into the chunk, which is as long as its slabs.
        unsafe { this.cast::<u8>().sub(AT).add(n as usize * SLAB) }
    }
}

/// Chunks outside any depot, chained through their headers. Dropping them frees them; that must
/// happen without the depot's lock.
#[must_use = "drop this after releasing the depot's lock"]
pub(super) struct Chunks(Option<NonNull<Chunk>>);

impl Chunks {
    pub(super) const fn new() -> Self {
        Chunks(None)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Allocates a chunk of `bytes`, a multiple of a slab and a power of two. Empty if there is no
    /// memory.
    pub(super) fn allocate(bytes: usize) -> Self {
        let Ok(layout) = Layout::from_size_align(bytes, bytes) else { return Chunks(None) };
        // SAFETY: the size is not zero.
        let Some(start) = NonNull::new(unsafe { alloc(layout) }) else { return Chunks(None) };
        advise(start, bytes);
        // `Slab::of` uses the exposed provenance.
        start.as_ptr().expose_provenance();
        // SAFETY: a chunk is larger than a header, and `AT` keeps the alignment.
        let chunk = unsafe { start.add(AT).cast::<Chunk>() };
        let slabs = (bytes / SLAB) as u32;
        // SAFETY: as above; the memory is new and owned here.
        unsafe { chunk.write(Chunk { next: None, slabs, carved: 0, busy: 0 }) };
        Chunks(Some(chunk))
    }

    /// Adds a chunk.
    ///
    /// # Safety
    /// No block of the chunk is out, and no depot has it any more.
    pub(super) unsafe fn push(&mut self, chunk: NonNull<Chunk>) {
        // SAFETY: the caller passes the chunk on.
        unsafe { (*chunk.as_ptr()).next = self.0 };
        self.0 = Some(chunk);
    }

    pub(super) fn pop(&mut self) -> Option<NonNull<Chunk>> {
        let chunk = self.0?;
        // SAFETY: this owns the chunks in the chain.
        self.0 = unsafe { (*chunk.as_ptr()).next.take() };
        Some(chunk)
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        while let Some(chunk) = self.pop() {
            // SAFETY: this owns the chunk. It came from the global allocator with this layout,
            // which was valid then, and its first slab lies at its start.
            unsafe {
                let bytes = chunk.as_ref().bytes();
                let layout = Layout::from_size_align_unchecked(bytes, bytes);
                dealloc(Chunk::slab(chunk, 0).as_ptr(), layout);
            }
        }
    }
}

/// Asks for a huge page if the chunk is as large as one. It is only a hint: without a huge page the
/// chunk works, with more TLB misses. So the result is ignored.
fn advise(start: NonNull<u8>, bytes: usize) {
    #[cfg(all(target_os = "linux", not(miri)))]
    if bytes == super::LARGE {
        // SAFETY: the range is owned here, and the advice does not change its contents.
        unsafe { libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE) };
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = (start, bytes);
}
