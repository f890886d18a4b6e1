//! A slab: 64 KiB of blocks of one size, and a map of the free ones.
//!
//! A slab is aligned to its size, so the address of a block gives its slab. The map has a bit for
//! each cache line of the slab, which is set if a free block begins there. So no step divides by
//! the block size, and a scan of at most 16 words finds the lowest free block. The pool never
//! touches a free block.

use crate::LINE;
use crate::chunk::Chunk;
use core::mem::offset_of;
use core::ptr::{self, NonNull};

/// The size and the alignment of a slab.
pub(super) const SLAB: usize = 64 << 10;
/// The bytes before the first block: the slab's header, and in a chunk's first slab the chunk's
/// header.
pub(super) const HEADER: usize = 256;

const WORD: usize = u64::BITS as usize;

/// The header of a slab, at its start. The holder of the depot's lock may read and change it.
#[repr(C)]
pub(super) struct Slab {
    pub(super) chunk: NonNull<Chunk>,
    /// The neighbours in the depot's queue.
    pub(super) prev: Option<NonNull<Slab>>,
    pub(super) next: Option<NonNull<Slab>>,
    /// The number of free blocks, and of all blocks.
    free: u32,
    blocks: u32,
    map: [u64; SLAB / LINE / WORD],
}

const _: () = assert!(size_of::<Slab>() + size_of::<Chunk>() <= HEADER);
const _: () = assert!(offset_of!(Slab, chunk) == 0);

/// The number of blocks of `size` bytes in a slab. They lie at its end, so that blocks of 256 bytes
/// are aligned to 256.
pub(super) const fn blocks(size: usize) -> usize {
    (SLAB - HEADER) / size
}

impl Slab {
    /// Makes a slab whose blocks of `size` bytes, a multiple of a cache line, are all free.
    ///
    /// # Safety
    /// `place` is the start of a slab of `chunk`, and the caller owns that slab alone.
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
    /// The block's pointer may come from a user, with provenance for the block only. So this reads
    /// the header through the chunk's exposed provenance, and returns a pointer with the chunk's
    /// own provenance.
    ///
    /// # Safety
    /// The block came from [`take`](Self::take), and the caller holds the depot's lock.
    pub(super) unsafe fn of(block: NonNull<u8>) -> NonNull<Slab> {
        let start = block.addr().get() & !(SLAB - 1);
        // SAFETY: the block lies in a slab; the header at the slab's start begins with this field.
        let chunk = unsafe { ptr::with_exposed_provenance::<NonNull<Chunk>>(start).read() };
        // SAFETY: the start of a slab is not null.
        unsafe { NonNull::new_unchecked(chunk.cast::<Slab>().as_ptr().with_addr(start)) }
    }

    /// Whether no block is out.
    pub(super) fn is_idle(&self) -> bool {
        self.free == self.blocks
    }

    /// Whether every block is out.
    pub(super) fn is_full(&self) -> bool {
        self.free == 0
    }

    /// Takes free blocks, the lowest first, until `out` is full or none is left. Returns their
    /// number.
    ///
    /// # Safety
    /// `this` is a slab, with the provenance of its chunk, and the caller holds the depot's lock.
    pub(super) unsafe fn take(this: NonNull<Slab>, out: &mut [NonNull<u8>]) -> usize {
        // SAFETY: the lock gives exclusive access to the header, and this is its only reference
        // now.
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

    /// Marks a block as free, by its address.
    pub(super) fn put(&mut self, block: usize) {
        let line = block % SLAB / LINE;
        let bit = 1 << (line % WORD);
        debug_assert!(self.map[line / WORD] & bit == 0, "a block was freed twice");
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
