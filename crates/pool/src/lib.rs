//! An allocator of blocks of a few sizes, cut from large chunks and cached per thread.
//!
//! It serves structures such as trees whose readers take no lock: a writer allocates nodes, and the
//! thread that ends a grace period frees them. Nodes have one or two sizes. A general allocator
//! serves any size, and pays for that with time, with a header per block, and with memory. The pool
//! has three layers:
//!
//! ```text
//! thread   cache of a class: up to 256 blocks                 pop, push: no atomics
//!            |  ^  128 blocks at a time
//! depot    lock of a class: a shelf of 1,024 blocks           a copy
//!            |  ^
//!          queue of slabs that have free blocks               a bit per block
//!            |  ^  when it is empty; when no block is out
//! chunks   64 KiB; 2 MiB (a huge page) from 1 MiB on          the global allocator
//! ```
//!
//! A *class* is a block size: a multiple of 64 bytes, up to 512. A *slab* is 64 KiB, with a header
//! of 256 bytes and blocks of one class. A *chunk* is one slab, or 32. A block is *out* if its
//! slab's map does not mark it as free: a user, a cache or the shelf has it.
//!
//! # Correctness
//!
//! **A block has one owner.** A block is marked free in its slab's map, or lies on the shelf, or
//! lies in one cache, or belongs to its user. It moves between depot and cache under the depot's
//! lock. So every use of it before it came back happens before the next allocation of it, on any
//! thread. It moves between a cache and a user on the cache's own thread. (Users pass it on by
//! their own protocol: a grace period.) No step depends on the thread that allocated the block.
//!
//! **A chunk is freed only when no block of it is out.** A slab counts its free blocks, and a chunk
//! its slabs with blocks out. Both counts change together with the maps, under the lock. When a
//! chunk is detached, each of its slabs has free blocks, so all are in the queue; they are removed
//! from it. So the depot holds no pointer into the chunk when the chunk is freed, after the lock is
//! released.
//!
//! **No block is lost** when a thread ends: see `cache.rs` and `exit.rs`. If the global allocator
//! fails, nothing has changed (I7): the free blocks stay where they are.
//!
//! **User and pool share no memory.** The pool's state is in the headers and the caches; the pool
//! never touches a block. So a free of one node does not disturb readers of its neighbours.

mod cache;
mod chunk;
mod depot;
mod exit;
mod queue;
mod slab;
#[cfg(test)]
mod tests;

use core::alloc::Layout;
use core::ptr::{self, NonNull};
use std::alloc::{alloc, dealloc};

/// Block sizes are multiples of a cache line.
const LINE: usize = 64;
/// The number of block sizes: one line, two, and so on.
const CLASSES: usize = 8;
/// The larger of the two chunk sizes: a huge page.
const LARGE: usize = 2 << 20;

/// The allocator: blocks of up to 512 bytes, from chunks that threads share, with a cache for each
/// thread.
///
/// The global allocator serves larger blocks, and those aligned to more than 64 bytes.
///
/// # Cost
///
/// Allocating or freeing takes a few instructions on two cache lines of the thread's own, with one
/// branch. At most every 128th call moves a batch between the cache and the depot, under a lock: it
/// copies the batch, or handles it block by block, with one or two cache lines of a slab's header
/// each. Consecutive allocations tend to be consecutive in memory.
///
/// A call may allocate and sleep (lock, global allocator), so the pool is not for signal handlers.
/// Like the global allocator, it must not be used between `fork` and `exec` if the program has
/// several threads.
///
/// # Memory
///
/// Chunks come from the program's global allocator, 64 KiB each. Once a class has 1 MiB, its chunks
/// have 2 MiB each, and the pool asks Linux for huge pages. At most 1 % goes to headers and
/// remainders of slabs. Besides the blocks in use, the pool holds at worst:
///
/// - 4 MiB per class that is used, in chunks without any block in use (a tree uses one or two
///   classes);
/// - 256 blocks per thread and class, until the thread ends or calls [`trim`](Self::trim);
/// - 1,024 blocks per class between threads, while more than half of what the class holds is in
///   use;
/// - the free blocks of chunks that have one block in use or in one of these places: blocks do not
///   move.
///
/// So a thread that frees all its blocks reduces each class to 4 MiB, if no other thread has blocks
/// in its cache; [`trim`](Self::trim) reduces it to nothing.
///
/// ```
/// use pool::Pool;
/// let layout = std::alloc::Layout::from_size_align(256, 64).unwrap();
/// let block = Pool::take(layout).expect("no memory");
/// // SAFETY: the block came from the pool with this layout, and has no other user.
/// unsafe { Pool::give_back(block, layout) };
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Pool;

/// The memory that the [`Pool`] holds, in all classes.
///
/// ```
/// use pool::Pool;
/// let stats = Pool::stats();
/// assert!(stats.used <= stats.held);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Bytes of the chunks from the global allocator.
    pub held: usize,
    /// Bytes of the blocks that are in use or in a thread's cache.
    pub used: usize,
}

impl Pool {
    /// Returns a new block, aligned to 64 bytes, or more if the layout asks for it. Its contents
    /// are undefined. Returns `None` when there is no memory.
    ///
    /// The block has no other user until [`give_back`](Self::give_back). Any thread may call
    /// either function. Cost and calling context: see [`Pool`].
    ///
    /// # Misuse
    /// A block that is never given back leaks.
    #[inline]
    pub fn take(layout: Layout) -> Option<NonNull<u8>> {
        match class_of(layout) {
            Some(class) => cache::allocate(class),
            // SAFETY: the size is not zero: that has a class, unless the alignment is large.
            None if layout.size() > 0 => NonNull::new(unsafe { alloc(layout) }),
            None => NonNull::new(ptr::without_provenance_mut(layout.align())),
        }
    }

    /// Takes a block back.
    ///
    /// # Safety
    /// The block came from [`take`](Self::take) with the same layout, and has no user any
    /// more.
    #[inline]
    pub unsafe fn give_back(block: NonNull<u8>, layout: Layout) {
        match class_of(layout) {
            // SAFETY: the caller's promise; `take` chose the same branch for this layout.
            Some(class) => unsafe { cache::deallocate(class, block) },
            // SAFETY: as above.
            None if layout.size() > 0 => unsafe { dealloc(block.as_ptr(), layout) },
            None => {}
        }
    }

    /// Returns free memory to the global allocator: first the blocks in the calling thread's cache
    /// go to their depots, then all chunks without a block in use or in another thread's cache are
    /// freed.
    ///
    /// Takes the locks of all classes, one after the other, and calls the global allocator.
    ///
    /// ```
    /// use pool::Pool;
    /// let layout = std::alloc::Layout::from_size_align(256, 64).unwrap();
    /// let block = Pool::take(layout).expect("no memory");
    /// // SAFETY: the block came from the pool with this layout, and has no other user.
    /// unsafe { Pool::give_back(block, layout) };
    /// Pool::trim();
    /// assert_eq!(Pool::stats().held, 0); // no other thread has used it
    /// ```
    pub fn trim() {
        for class in 0..CLASSES {
            cache::flush(class);
            depot::trim(class);
        }
    }

    /// Sets how threads learn that they end, once for the process; returns false if it was set
    /// before. Call it before other threads use the pool.
    ///
    /// By default, the pool uses the destructor of a thread-local value. The standard library
    /// aborts the process if it finds no memory to register that. A program that must not abort
    /// passes a function that registers the calling thread in another way, such as by the key of
    /// POSIX threads. It returns whether [`thread_ended`](Self::thread_ended) will be called at the
    /// end of the thread. If it returns false, the thread keeps no blocks for now, and each
    /// allocation takes a lock. If it returns true although the call never comes, the blocks in the
    /// thread's cache are lost to the program.
    ///
    /// `register` may be called in any allocation and free, with locks of the program held. It may
    /// allocate, and must not unwind.
    ///
    /// ```
    /// use pool::Pool;
    /// // Threads keep no blocks.
    /// assert!(Pool::watch_threads(|| false));
    /// assert!(!Pool::watch_threads(|| true)); // it is set
    /// ```
    ///
    /// # Misuse
    /// With a function that lies, blocks in the cache of a thread that ends unnoticed are never
    /// used again.
    pub fn watch_threads(register: fn() -> bool) -> bool {
        exit::watch(register)
    }

    /// Returns the blocks in the calling thread's cache, which keeps none from now on: the thread
    /// ends. Only for programs that have called [`watch_threads`](Self::watch_threads).
    ///
    /// Takes the locks of all classes, one after the other, and calls the global allocator.
    pub fn thread_ended() {
        exit::ended();
    }

    /// The memory that the pool holds now. It is not an atomic snapshot: the classes are read one
    /// after the other.
    ///
    /// Takes the locks of all classes, one after the other.
    pub fn stats() -> PoolStats {
        (0..CLASSES).map(depot::stats).fold(PoolStats::default(), |sum, class| PoolStats {
            held: sum.held + class.held,
            used: sum.used + class.used,
        })
    }
}

/// The class of a layout; `None` if the pool does not serve it. A constant if the layout is one.
#[inline(always)]
const fn class_of(layout: Layout) -> Option<usize> {
    let class = layout.size().saturating_sub(1) / LINE;
    if class < CLASSES && layout.align() <= LINE { Some(class) } else { None }
}
