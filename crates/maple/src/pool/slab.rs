//! A slab: 64 KiB of blocks of one size, and a map of those that are free.
//!
//! Slabs are aligned to their size, so the address of a block gives its slab. The map has a bit for
//! each line of the slab, set where a free block begins: no division finds it, and looking for the
//! lowest free block is a scan of at most 16 words. Free blocks themselves are never touched.

use super::LINE;
use super::chunk::Chunk;
use core::mem::offset_of;
use core::ptr::{self, NonNull};

/// Bytes and alignment of a slab.
pub(super) const SLAB: usize = 64 << 10;
/// Bytes in front of the first block: the slab's header, and in a chunk's first slab the chunk's.
pub(super) const HEADER: usize = 256;

const WORD: usize = u64::BITS as usize;

/// The header of a slab, at its start. Whoever has the depot's lock may read and change it.
#[repr(C)]
pub(super) struct Slab {
    pub(super) chunk: NonNull<Chunk>,
    /// Neighbours in the depot's queue.
    pub(super) prev: Option<NonNull<Slab>>,
    pub(super) next: Option<NonNull<Slab>>,
    /// Blocks that are free, and blocks that there are.
    free: u32,
    blocks: u32,
    map: [u64; SLAB / LINE / WORD],
}

const _: () = assert!(size_of::<Slab>() + size_of::<Chunk>() <= HEADER);
const _: () = assert!(offset_of!(Slab, chunk) == 0);

/// Blocks of `size` bytes in a slab. They lie at its end, so that those of 256 bytes are aligned to
/// that.
pub(super) const fn blocks(size: usize) -> usize {
    (SLAB - HEADER) / size
}

impl Slab {
    /// Makes a slab of free blocks of `size` bytes, a multiple of a line.
    ///
    /// # Safety
    /// `place` is the start of a slab of `chunk` that is nobody else's.
    pub(super) unsafe fn carve(
        place: NonNull<u8>,
        chunk: NonNull<Chunk>,
        size: usize,
    ) -> NonNull<Slab> {
        let count = blocks(size);
        let mut map = [0; SLAB / LINE / WORD];
        for line in (0..count).map(|n| (SLAB - (n + 1) * size) / LINE) {
            map[line / WORD] |= 1 << (line % WORD);
        }
        let count = count as u32; // at most SLAB / LINE
        let slab = place.cast::<Slab>();
        // SAFETY: the caller's promise; a slab is aligned and large enough for its header.
        unsafe {
            slab.write(Slab { chunk, prev: None, next: None, free: count, blocks: count, map })
        };
        slab
    }

    /// The slab of a block.
    ///
    /// The block's pointer may come from its user with leave to touch the block alone. So the
    /// header is reached through the chunk, whose provenance is exposed; what is returned has the
    /// chunk's own.
    ///
    /// # Safety
    /// The block came from [`take`](Self::take), and the caller holds the depot's lock.
    pub(super) unsafe fn of(block: NonNull<u8>) -> NonNull<Slab> {
        let start = block.addr().get() & !(SLAB - 1);
        // SAFETY: the block lies in a slab, whose header is at its start and begins with this
        // field.
        let chunk = unsafe { ptr::with_exposed_provenance::<NonNull<Chunk>>(start).read() };
        // SAFETY: the start of a slab is not null.
        unsafe { NonNull::new_unchecked(chunk.cast::<Slab>().as_ptr().with_addr(start)) }
    }

    /// No block is out.
    pub(super) fn is_idle(&self) -> bool {
        self.free == self.blocks
    }

    /// Every block is out.
    pub(super) fn is_full(&self) -> bool {
        self.free == 0
    }

    /// Takes free blocks, the lowest first, until `out` is full or none is left. Returns how many.
    ///
    /// # Safety
    /// `this` is a slab, with the provenance of its chunk, and the caller holds the depot's lock.
    pub(super) unsafe fn take(this: NonNull<Slab>, out: &mut [NonNull<u8>]) -> usize {
        // SAFETY: the lock makes the header ours; nothing else refers to it during this call.
        let slab = unsafe { &mut *this.as_ptr() };
        let mut taken = 0;
        'full: for (index, word) in slab.map.iter_mut().enumerate() {
            while *word != 0 {
                let Some(place) = out.get_mut(taken) else { break 'full };
                let line = index * WORD + word.trailing_zeros() as usize;
                *word &= *word - 1;
                // SAFETY: the line is one of the slab's.
                *place = unsafe { this.cast::<u8>().add(line * LINE) };
                taken += 1;
            }
        }
        slab.free -= taken as u32;
        taken
    }

    /// Takes a block back, by its address.
    pub(super) fn put(&mut self, block: usize) {
        let line = block % SLAB / LINE;
        let bit = 1 << (line % WORD);
        debug_assert!(self.map[line / WORD] & bit == 0, "a block is freed twice");
        self.map[line / WORD] |= bit;
        self.free += 1;
    }

    /// Panics unless the count and the map agree.
    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!(self.map.iter().map(|word| word.count_ones()).sum::<u32>(), self.free);
        assert!(self.free <= self.blocks);
    }
}
