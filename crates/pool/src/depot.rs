//! The depots: for each class a lock, the chunks behind it, and the state of their blocks.
//!
//! The lock is taken once per batch. It is never held during a call of the global allocator, which
//! may be slow and may use this pool itself.
//!
//! A grace period frees nodes in a burst, which is larger than a cache. So a depot has a *shelf*:
//! it holds the batches that threads free until other threads allocate them. A batch that passes
//! over the shelf costs a copy instead of a bit of a map per block.
//!
//! Blocks on the shelf keep their chunks allocated. So a depot is *sparse* when at most half of its
//! memory is in use: then it leaves nothing on its shelf, and tells the freeing threads to leave
//! nothing in their caches. A program that drops a large tree so gets the chunks freed, although
//! the last blocks to be freed come from all of them.

use crate::chunk::{Chunk, Chunks};
use crate::queue::Queue;
use crate::slab::{SLAB, Slab};
use crate::{CLASSES, LARGE, LINE, PoolStats};
use core::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// From this many bytes on, a depot grows by large chunks.
const MANY: usize = 1 << 20;

/// The bytes of chunks without blocks out that a depot keeps: the small ones and a large one.
pub(super) const SPARE: usize = 2 * LARGE;

/// The number of blocks that the shelf holds.
const SHELF: usize = 1024;

/// The data behind the lock of a class.
pub(super) struct Depot {
    /// Bytes per block.
    size: usize,
    /// The number of blocks on the shelf, and their addresses.
    shelved: usize,
    shelf: [*mut u8; SHELF],
    /// The slabs with free blocks.
    queue: Queue,
    /// The chunk that has slabs left to carve. No other chunk has any.
    fresh: Option<NonNull<Chunk>>,
    /// Bytes of all chunks, and of the chunks without blocks out.
    held: usize,
    idle: usize,
    /// The number of blocks that are out, without those on the shelf.
    used: usize,
}

// SAFETY: the depot owns its chunks, and any thread may read, change and free them.
unsafe impl Send for Depot {}

impl Depot {
    pub(super) const fn new(size: usize) -> Self {
        Depot {
            size,
            shelved: 0,
            shelf: [ptr::null_mut(); SHELF],
            queue: Queue::new(),
            fresh: None,
            held: 0,
            idle: 0,
            used: 0,
        }
    }

    /// Takes blocks until `out` is full or none is left. Returns their number.
    pub(super) fn take(&mut self, out: &mut [NonNull<u8>]) -> usize {
        let taken = match self.unshelve(out) {
            0 => self.unmap(out),
            taken => taken,
        };
        self.used += taken;
        taken
    }

    /// Takes blocks from the shelf.
    fn unshelve(&mut self, out: &mut [NonNull<u8>]) -> usize {
        let taken = out.len().min(self.shelved);
        self.shelved -= taken;
        for (place, &block) in out.iter_mut().zip(&self.shelf[self.shelved..][..taken]) {
            // SAFETY: `give` wrote the places below `shelved`, and no null pointer.
            *place = unsafe { NonNull::new_unchecked(block) };
        }
        taken
    }

    /// Takes blocks from the slabs.
    fn unmap(&mut self, out: &mut [NonNull<u8>]) -> usize {
        let mut taken = 0;
        while taken < out.len() {
            let Some(slab) = self.queue.front().or_else(|| self.carve()) else { break };
            // SAFETY: the depot owns the slabs in its queue and their chunks.
            unsafe {
                if slab.as_ref().is_idle() {
                    let chunk = &mut *slab.as_ref().chunk.as_ptr();
                    if chunk.busy == 0 {
                        self.idle -= chunk.bytes();
                    }
                    chunk.busy += 1;
                }
                taken += Slab::take(slab, &mut out[taken..]);
                if slab.as_ref().is_full() {
                    self.queue.remove(slab);
                }
            }
        }
        taken
    }

    /// Carves a slab out of the fresh chunk, and queues it.
    fn carve(&mut self) -> Option<NonNull<Slab>> {
        let chunk = self.fresh?;
        // SAFETY: the depot owns the fresh chunk, which has an unused slab that is not carved yet.
        unsafe {
            let header = &mut *chunk.as_ptr();
            let n = header.carved;
            header.carved += 1;
            if header.is_carved() {
                self.fresh = None;
            }
            let slab = Slab::carve(Chunk::slab(chunk, n), chunk, self.size);
            self.queue.push(slab);
            Some(slab)
        }
    }

    /// Takes blocks back. Returns the chunks to be freed.
    ///
    /// # Safety
    /// The blocks came from [`take`](Self::take) of this depot, and have no user any more.
    pub(super) unsafe fn give(&mut self, blocks: &[NonNull<u8>]) -> Chunks {
        self.used -= blocks.len();
        let mut chunks = Chunks::new();
        if self.is_sparse() {
            self.clear_shelf(&mut chunks);
        } else if let Some(places) = self.shelf[self.shelved..].get_mut(..blocks.len()) {
            for (place, block) in places.iter_mut().zip(blocks) {
                *place = block.as_ptr();
            }
            self.shelved += blocks.len();
            return chunks;
        }
        for &block in blocks {
            // SAFETY: the caller's promise.
            unsafe { self.map(block, &mut chunks) };
        }
        chunks
    }

    /// Whether at most half of the held memory is in use, and more is held than a depot keeps
    /// anyway.
    pub(super) fn is_sparse(&self) -> bool {
        self.held > SPARE + 2 * self.used * self.size
    }

    /// Puts the blocks on the shelf back into their slabs.
    fn clear_shelf(&mut self, chunks: &mut Chunks) {
        for at in 0..core::mem::take(&mut self.shelved) {
            // SAFETY: `give` wrote the places below `shelved`: not null, and blocks of this depot.
            unsafe { self.map(NonNull::new_unchecked(self.shelf[at]), chunks) };
        }
    }

    /// Puts a block into its slab. If no block of the chunk is out then, and the depot keeps enough
    /// such chunks, moves the chunk to `chunks`.
    ///
    /// # Safety
    /// As for [`give`](Self::give).
    unsafe fn map(&mut self, block: NonNull<u8>, chunks: &mut Chunks) {
        // SAFETY: the caller's promise; the block lies in a slab of this depot, and a slab without
        // a free block is not in the queue.
        unsafe {
            let slab = Slab::of(block);
            let header = &mut *slab.as_ptr();
            let full = header.is_full();
            header.put(block.addr().get());
            if header.is_idle() {
                let chunk = header.chunk;
                (*chunk.as_ptr()).busy -= 1;
                if chunk.as_ref().busy == 0 {
                    self.idle += chunk.as_ref().bytes();
                    if self.idle > SPARE {
                        self.detach(chunk);
                        chunks.push(chunk);
                    }
                }
            }
            if full {
                self.queue.push(slab);
            }
        }
    }

    /// Removes a chunk from the depot.
    ///
    /// # Safety
    /// The depot owns the chunk, and no block of it is out.
    unsafe fn detach(&mut self, chunk: NonNull<Chunk>) {
        // SAFETY: the depot owns the chunk; since no block is out, each of its carved slabs is in
        // the queue.
        unsafe {
            for n in 0..chunk.as_ref().carved {
                self.queue.remove(Chunk::slab(chunk, n).cast());
            }
            self.held -= chunk.as_ref().bytes();
            self.idle -= chunk.as_ref().bytes();
            self.fresh = self.fresh.filter(|&fresh| fresh != chunk);
        }
    }

    /// Removes every chunk without a block out, and returns them.
    pub(super) fn trim(&mut self) -> Chunks {
        let mut chunks = Chunks::new();
        self.clear_shelf(&mut chunks);
        // Removing slabs would break the walk of the queue, so the walk only collects the chunks.
        let mut found = Chunks::new();
        let mut at = self.queue.front();
        while let Some(slab) = at {
            // SAFETY: the depot owns the slabs in its queue and their chunks. A chunk without
            // blocks out has its first slab in the queue, once.
            unsafe {
                let chunk = slab.as_ref().chunk;
                if chunk.as_ref().busy == 0 && Chunk::slab(chunk, 0) == slab.cast() {
                    found.push(chunk);
                }
                at = slab.as_ref().next;
            }
        }
        while let Some(chunk) = found.pop() {
            // SAFETY: the depot owns the chunk, no block of it is out, and no other chain has it.
            unsafe {
                self.detach(chunk);
                chunks.push(chunk);
            }
        }
        chunks
    }

    /// Bytes of the chunk to grow by.
    pub(super) fn growth(&self) -> usize {
        if self.held < MANY { SLAB } else { LARGE }
    }

    /// Adds a new chunk. Only called after `take` returned nothing, so no slab is left to carve.
    pub(super) fn grow(&mut self, chunk: NonNull<Chunk>) {
        debug_assert!(self.fresh.is_none());
        // SAFETY: the caller passes a chunk that it owns alone.
        let bytes = unsafe { chunk.as_ref().bytes() };
        self.held += bytes;
        self.idle += bytes;
        self.fresh = Some(chunk);
    }

    pub(super) fn stats(&self) -> PoolStats {
        PoolStats { held: self.held, used: self.used * self.size }
    }

    /// Panics unless the counts and the queue agree.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut chunks = std::collections::BTreeMap::<_, u32>::new();
        for slab in self.queue.check() {
            // SAFETY: the test owns the depot alone.
            let slab = unsafe { slab.as_ref() };
            *chunks.entry(slab.chunk).or_default() += u32::from(slab.is_idle());
        }
        let mut idle = 0;
        for (&chunk, &idle_slabs) in &chunks {
            // SAFETY: as above.
            let header = unsafe { chunk.as_ref() };
            assert_eq!(header.busy, header.carved - idle_slabs);
            assert_eq!(self.fresh == Some(chunk), !header.is_carved());
            idle += if header.busy == 0 { header.bytes() } else { 0 };
        }
        assert_eq!(self.idle, idle);
        assert!(self.idle <= SPARE && self.idle <= self.held);
    }
}

/// A depot and its lock, on cache lines of their own. 128 bytes, since the prefetcher fetches lines
/// in pairs.
#[repr(align(128))]
struct Locked(Mutex<Depot>);

static DEPOTS: [Locked; CLASSES] = {
    const fn depot(lines: usize) -> Locked {
        Locked(Mutex::new(Depot::new(lines * LINE)))
    }
    [depot(1), depot(2), depot(3), depot(4), depot(5), depot(6), depot(7), depot(8)]
};

/// Ignores poisoning: no code that runs with the lock held panics, except checks of the pool
/// itself.
fn lock(class: usize) -> MutexGuard<'static, Depot> {
    DEPOTS[class].0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes between one block and as many as fit into `out`; the lowest addresses come first. Returns
/// their number; `None` when no block is left and the global allocator has no memory.
pub(super) fn take(class: usize, out: &mut [NonNull<u8>]) -> Option<usize> {
    let bytes = {
        let mut depot = lock(class);
        match depot.take(out) {
            0 => depot.growth(),
            taken => return Some(taken),
        }
    };
    let mut grown = Chunks::allocate(bytes);
    if grown.is_empty() && bytes > SLAB {
        grown = Chunks::allocate(SLAB);
    }
    let mut depot = lock(class);
    // Other threads may have freed blocks or grown the depot meanwhile; then the new chunk is
    // freed.
    let mut taken = depot.take(out);
    if taken == 0
        && let Some(chunk) = grown.pop()
    {
        depot.grow(chunk);
        taken = depot.take(out);
    }
    drop(depot);
    drop(grown);
    (taken > 0).then_some(taken)
}

/// Takes blocks back. Returns whether the caller should keep none in its cache.
///
/// # Safety
/// The blocks came from [`take`] of this class, and have no user any more.
pub(super) unsafe fn give(class: usize, blocks: &[NonNull<u8>]) -> bool {
    let mut depot = lock(class);
    // SAFETY: the caller's promise.
    let chunks = unsafe { depot.give(blocks) };
    let sparse = depot.is_sparse();
    drop(depot);
    drop(chunks);
    sparse
}

/// Frees the chunks of a class that have no block out.
pub(super) fn trim(class: usize) {
    let chunks = lock(class).trim();
    // The lock has been released.
    drop(chunks);
}

/// The memory of a class.
pub(super) fn stats(class: usize) -> PoolStats {
    lock(class).stats()
}
