//! The depots: for each class a lock, and behind it the chunks and which of their blocks are free.
//!
//! The lock is taken once for a batch, never while the global allocator is at work: that may be
//! slow, and it may use this pool itself.
//!
//! On top lies a *shelf*, where batches that threads give wait for threads that take: nodes are
//! freed in bursts, when a grace period ends, which a cache is too small for. To pass a batch over
//! the shelf costs a copy, not a bit of a map for each block. What lies there keeps its chunk, so a
//! depot that is *sparse* has nothing on its shelf, and asks the threads that free to keep nothing
//! either: a program that drops a large tree gets the chunks back, though the last blocks to be
//! freed come from all of them.

use super::chunk::{Chunk, Chunks};
use super::queue::Queue;
use super::slab::{SLAB, Slab};
use super::{CLASSES, LARGE, LINE, PoolStats};
use crate::alloc::AllocError;
use core::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// From these bytes on a depot grows by large chunks.
const MANY: usize = 1 << 20;

/// Bytes of chunks without blocks out that a depot keeps: the small ones and a large one.
pub(super) const SPARE: usize = 2 * LARGE;

/// Blocks that the shelf has room for.
const SHELF: usize = 1024;

/// What is behind the lock of a class.
pub(super) struct Depot {
    /// Bytes of a block.
    size: usize,
    /// Blocks on the shelf, and where they lie.
    shelved: usize,
    shelf: [*mut u8; SHELF],
    /// The slabs with free blocks.
    queue: Queue,
    /// The chunk that has slabs left to carve. The others have none.
    fresh: Option<NonNull<Chunk>>,
    /// Bytes of all chunks, and of those with no block out.
    held: usize,
    idle: usize,
    /// Blocks that are out, those on the shelf not counted.
    used: usize,
}

// SAFETY: the depot owns its chunks, which any thread may read, change and give back.
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

    /// Takes blocks until `out` is full or none is left. Returns how many.
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
            // SAFETY: below `shelved` lies what `give` put there, which is not null.
            *place = unsafe { NonNull::new_unchecked(block) };
        }
        taken
    }

    /// Takes blocks from the slabs.
    fn unmap(&mut self, out: &mut [NonNull<u8>]) -> usize {
        let mut taken = 0;
        while taken < out.len() {
            let Some(slab) = self.queue.front().or_else(|| self.carve()) else { break };
            // SAFETY: the slabs in the queue and their chunks are ours.
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

    /// Makes a slab of the fresh chunk, and queues it.
    fn carve(&mut self) -> Option<NonNull<Slab>> {
        let chunk = self.fresh?;
        // SAFETY: the fresh chunk is ours and has a slab that is not carved, which nobody uses.
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

    /// Takes blocks back. Returns the chunks that are not needed any more.
    ///
    /// # Safety
    /// The blocks came from [`take`](Self::take) of this depot, and nobody uses them.
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

    /// Whether at most half of what is held is in use, and it is more than one would keep anyway.
    pub(super) fn is_sparse(&self) -> bool {
        self.held > SPARE + 2 * self.used * self.size
    }

    /// Puts what lies on the shelf into the slabs.
    fn clear_shelf(&mut self, chunks: &mut Chunks) {
        for at in 0..core::mem::take(&mut self.shelved) {
            // SAFETY: below `shelved` lies what `give` put there: not null, and ours.
            unsafe { self.map(NonNull::new_unchecked(self.shelf[at]), chunks) };
        }
    }

    /// Puts a block into its slab. Lets go of the chunk if then no block of it is out and enough
    /// such chunks are kept.
    ///
    /// # Safety
    /// As for [`give`](Self::give).
    unsafe fn map(&mut self, block: NonNull<u8>, chunks: &mut Chunks) {
        // SAFETY: the caller's promise; a block that is out lies in a slab of ours, and a slab that
        // has no free block is not in the queue.
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

    /// Forgets a chunk.
    ///
    /// # Safety
    /// The chunk is ours, and has no block out.
    unsafe fn detach(&mut self, chunk: NonNull<Chunk>) {
        // SAFETY: the chunk is ours; since no block is out, each of its carved slabs is in the
        // queue.
        unsafe {
            for n in 0..chunk.as_ref().carved {
                self.queue.remove(Chunk::slab(chunk, n).cast());
            }
            self.held -= chunk.as_ref().bytes();
            self.idle -= chunk.as_ref().bytes();
            self.fresh = self.fresh.filter(|&fresh| fresh != chunk);
        }
    }

    /// Lets go of what can be: afterwards every chunk has a block out.
    pub(super) fn trim(&mut self) -> Chunks {
        let mut chunks = Chunks::new();
        self.clear_shelf(&mut chunks);
        // The queue must not change under the walk, so first all chunks are found.
        let mut found = Chunks::new();
        let mut at = self.queue.front();
        while let Some(slab) = at {
            // SAFETY: the slabs in the queue and their chunks are ours. A chunk without blocks out
            // has its first slab in the queue, once.
            unsafe {
                let chunk = slab.as_ref().chunk;
                if chunk.as_ref().busy == 0 && Chunk::slab(chunk, 0) == slab.cast() {
                    found.push(chunk);
                }
                at = slab.as_ref().next;
            }
        }
        while let Some(chunk) = found.pop() {
            // SAFETY: the chunk is ours, has no block out, and is in no other chain.
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

    /// Grows by a new chunk. Only after a `take` that got nothing, so nothing is left to carve.
    pub(super) fn grow(&mut self, chunk: NonNull<Chunk>) {
        debug_assert!(self.fresh.is_none());
        // SAFETY: the caller gives us a chunk that is nobody else's.
        let bytes = unsafe { chunk.as_ref().bytes() };
        self.held += bytes;
        self.idle += bytes;
        self.fresh = Some(chunk);
    }

    pub(super) fn stats(&self) -> PoolStats {
        PoolStats { held: self.held, used: self.used * self.size }
    }

    /// Panics unless everything agrees.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let mut chunks = std::collections::BTreeMap::<_, u32>::new();
        for slab in self.queue.check() {
            // SAFETY: the test has the depot to itself.
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

/// A depot and its lock, in cache lines of their own (the prefetcher fetches two at a time).
#[repr(align(128))]
struct Locked(Mutex<Depot>);

static DEPOTS: [Locked; CLASSES] = {
    const fn depot(lines: usize) -> Locked {
        Locked(Mutex::new(Depot::new(lines * LINE)))
    }
    [depot(1), depot(2), depot(3), depot(4), depot(5), depot(6), depot(7), depot(8)]
};

/// Nothing that panics runs with the lock held, but for checks of the pool itself.
fn lock(class: usize) -> MutexGuard<'static, Depot> {
    DEPOTS[class].0.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes at least one block, and at most fills `out`; the lowest addresses come first. Returns how
/// many.
///
/// # Errors
/// When no block is left and the global allocator has no memory.
pub(super) fn take(class: usize, out: &mut [NonNull<u8>]) -> Result<usize, AllocError> {
    let bytes = {
        let mut depot = lock(class);
        match depot.take(out) {
            0 => depot.growth(),
            taken => return Ok(taken),
        }
    };
    let mut grown = Chunks::allocate(bytes);
    if grown.is_empty() && bytes > SLAB {
        grown = Chunks::allocate(SLAB);
    }
    let mut depot = lock(class);
    // Others may have freed blocks or grown the depot meanwhile; then the new chunk goes back.
    let mut taken = depot.take(out);
    if taken == 0
        && let Some(chunk) = grown.pop()
    {
        depot.grow(chunk);
        taken = depot.take(out);
    }
    drop(depot);
    drop(grown);
    if taken == 0 { Err(AllocError) } else { Ok(taken) }
}

/// Takes blocks back. Returns whether the caller had better keep none.
///
/// # Safety
/// They came from [`take`] of this class, and nobody uses them.
pub(super) unsafe fn give(class: usize, blocks: &[NonNull<u8>]) -> bool {
    let mut depot = lock(class);
    // SAFETY: the caller's promise.
    let chunks = unsafe { depot.give(blocks) };
    let sparse = depot.is_sparse();
    drop(depot);
    drop(chunks);
    sparse
}

/// Gives back the chunks of a class that have no block out.
pub(super) fn trim(class: usize) {
    let chunks = lock(class).trim();
    // The lock is free again.
    drop(chunks);
}

/// What a class holds.
pub(super) fn stats(class: usize) -> PoolStats {
    lock(class).stats()
}
