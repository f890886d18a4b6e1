//! The node allocator of hosted programs: blocks of a few sizes, from large chunks, cached by
//! threads.
//!
//! Nodes are blocks of one or two sizes, allocated by a writer under its lock and freed by
//! whichever thread ends a grace period. A general allocator pays for what nodes do not need (any
//! size, aligned) with time, with a header for each block, and with pages. Here:
//!
//! ```text
//! thread   cache of a class: up to 256 blocks                 pop, push: no atomics
//!            |  ^  32 blocks at a time
//! depot    lock of a class: a shelf of 1,024 blocks          a copy
//!            |  ^
//!          queue of slabs that have free blocks              a bit a block
//!            |  ^  when it has none; when none is out
//! chunks   64 KiB; 2 MiB (a huge page) from 1 MiB on         the global allocator
//! ```
//!
//! A *class* is a size in multiples of 64 bytes, up to 512. A *slab* is 64 KiB with a header of 256
//! bytes and blocks of one class; a *chunk* is one slab, or 32.
//!
//! # Why it is right
//!
//! **A block has one owner.** It is marked free in its slab's map, or lies on the shelf, or in one
//! cache, or is its user's. It goes from the depot to a cache and back under the depot's lock, so
//! everything that was done with it before it came back happens before it is handed out again, on
//! whichever thread. It goes between a cache and a user on the cache's own thread. (From user to
//! user by what the users agree on: a grace period.) That a block was allocated by another thread
//! makes no difference to any step.
//!
//! **A chunk goes back only when nobody has a block of it.** A slab counts its free blocks, and a
//! chunk its slabs with blocks out; caches and the shelf count as users. Both change with the maps,
//! under the lock. When a chunk is let go all its slabs are in the queue, since each has free
//! blocks, and are taken out of it; so the depot knows no part of it any more when it is given
//! back, after the lock is released.
//!
//! **No block is lost** when a thread ends: see `cache.rs`. Nor when the global allocator fails:
//! then nothing has changed (I7), and what was at hand stays there.
//!
//! **User and pool do not meet in memory.** What the pool knows is in the headers and the caches;
//! blocks are not touched. So a reader that still looks at a node is not disturbed by its
//! neighbours' fate.

mod cache;
mod chunk;
mod depot;
mod queue;
mod slab;
#[cfg(test)]
mod tests;

use crate::alloc::{AllocError, Global, NodeAlloc};
use core::alloc::Layout;
use core::ptr::NonNull;

/// Blocks are multiples of a cache line.
const LINE: usize = 64;
/// Sizes of blocks: one line, two, and so on.
const CLASSES: usize = 8;
/// The larger of the two sizes of chunks: a huge page.
const LARGE: usize = 2 << 20;

/// Blocks of up to 512 bytes, from chunks that threads share, with a cache for each thread.
///
/// For programs with an operating system (feature `std`). Larger blocks, and those aligned to more
/// than 64 bytes, are passed on to [`Global`].
///
/// # Cost
///
/// Allocating or freeing is a few instructions on two cache lines of the thread's own, with one
/// branch. Once in 128 times a batch goes to or comes from the depot of its class, under a lock:
/// copied, or block by block with one or two lines of a slab's header each. Consecutive allocations
/// tend to be consecutive in memory.
///
/// It may allocate and sleep (lock, global allocator), so it is not for signal handlers. Between
/// `fork` and `exec` it must not be used if the program has several threads, as with the global
/// allocator.
///
/// # Memory
///
/// Chunks come from the program's global allocator: 64 KiB each; once a class has 1 MiB, 2 MiB
/// each, for which Linux is asked for huge pages. At most 1 % goes to headers and remainders of
/// slabs. What is held beyond the blocks in use is, at worst:
///
/// - 4 MiB in each class that is used, in chunks without any block in use (a tree uses one or two
///   classes);
/// - 256 blocks for each thread and class, until the thread ends or calls [`trim`](Self::trim);
/// - 1,024 blocks of each class between threads, while more than half of what the class holds is in
///   use;
/// - what is free in chunks that have one block in use or among those just named: blocks do not
///   move.
///
/// So a thread that frees all it has gets to 4 MiB for each class, if no other thread has blocks in
/// its cache, and to nothing by [`trim`](Self::trim).
///
/// ```
/// use maple::{MapleTree, Pool};
/// let tree = MapleTree::<u32, grace::Epoch, Pool>::new_in();
/// tree.store_range(1..=2, 3)?;
/// # Ok::<(), maple::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Pool;

/// What the [`Pool`] holds, in all classes.
///
/// ```
/// use maple::Pool;
/// let stats = Pool::stats();
/// assert!(stats.used <= stats.held);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes of the chunks had from the global allocator.
    pub held: usize,
    /// Bytes of the blocks that are in use or in some thread's cache.
    pub used: usize,
}

impl Pool {
    /// Gives back what can be: the blocks in the calling thread's cache, and all chunks of which
    /// then no block is in use or in another thread's cache.
    ///
    /// Takes the locks of all classes, one after the other, and calls the global allocator.
    ///
    /// ```
    /// use maple::{MapleTree, Pool};
    /// let mut tree = MapleTree::<u32, grace::Single, Pool>::new_in();
    /// tree.get_mut().store_range(1..=2, 3)?;
    /// drop(tree);
    /// Pool::trim();
    /// assert_eq!(Pool::stats().held, 0); // no other thread has used it
    /// # Ok::<(), maple::Error>(())
    /// ```
    pub fn trim() {
        for class in 0..CLASSES {
            cache::flush(class);
            depot::trim(class);
        }
    }

    /// What the pool holds now; while other threads use it, a sum over moments that follow each
    /// other.
    ///
    /// Takes the locks of all classes, one after the other.
    pub fn stats() -> PoolStats {
        (0..CLASSES).map(depot::stats).fold(PoolStats::default(), |sum, class| PoolStats {
            held: sum.held + class.held,
            used: sum.used + class.used,
        })
    }
}

/// The class of a layout, or none if it is not ours. Known when compiling where the layout is.
#[inline(always)]
const fn class_of(layout: Layout) -> Option<usize> {
    let class = layout.size().saturating_sub(1) / LINE;
    if class < CLASSES && layout.align() <= LINE { Some(class) } else { None }
}

// SAFETY: a block is its user's alone until it comes back (see the module), and its class is at
// least as large and aligned as the layout. The same layout has the same class when the block comes
// back.
unsafe impl NodeAlloc for Pool {
    #[inline]
    fn allocate(layout: Layout) -> Result<NonNull<u8>, AllocError> {
        match class_of(layout) {
            Some(class) => cache::allocate(class),
            None => Global::allocate(layout),
        }
    }

    #[inline]
    unsafe fn deallocate(ptr: NonNull<u8>, layout: Layout) {
        match class_of(layout) {
            // SAFETY: the caller's promise; `allocate` went the same way with this layout.
            Some(class) => unsafe { cache::deallocate(class, ptr) },
            // SAFETY: likewise.
            None => unsafe { Global::deallocate(ptr, layout) },
        }
    }
}
