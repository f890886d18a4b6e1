//! The caches: for each thread and class, up to 256 blocks at hand.
//!
//! A cache is a stack in an array. Its *mark* says in one number what both fast paths must know, so
//! that each has one branch:
//!
//! | mark | state | `pop` looks at slot | `push` looks at slot |
//! |---|---|---|---|
//! | 0 | closed | -2: none | -1: none |
//! | 1 | empty | -1: none | 0 |
//! | n + 1 | n blocks | n - 1 | n |
//! | 257 | full | 255 | 256: none |
//!
//! A cache is closed until its thread first gets to the depot, and again from when the thread ends.
//! The caches are plain cells without a destructor, so reaching them needs no check of whether they
//! exist yet or still. The destructor is that of [`Leave`], touched on the slow path only: it
//! empties and closes the caches. Whatever the thread allocates and frees after that (in
//! destructors of other thread-local values) finds them closed and goes to the depot. On the slow
//! path "closed" is decided by whether `Leave` can still be reached, never by the mark.
//!
//! The slow path may get into the global allocator, which may use this pool: on return the cache
//! may be in any state. So blocks are put into it one by one, as far as it has room, and never
//! assumed to fit.

use super::{CLASSES, depot};
use crate::alloc::AllocError;
use core::cell::Cell;
use core::ptr::{self, NonNull};
use std::thread_local;

/// Blocks that a cache can hold.
pub(super) const KEEP: usize = 256;
/// Blocks that move between a cache and its depot at a time.
pub(super) const BATCH: usize = KEEP / 2;

/// The blocks of one class that one thread has at hand.
pub(super) struct Cache {
    mark: Cell<usize>,
    /// Null above the mark, or what was there before.
    slots: [Cell<*mut u8>; KEEP],
}

impl Cache {
    /// A closed cache. All zeros, so that a new thread's come for nothing.
    pub(super) const fn new() -> Self {
        Cache { mark: Cell::new(0), slots: [const { Cell::new(ptr::null_mut()) }; KEEP] }
    }

    /// Takes the block that was pushed last; none if the cache is empty or closed.
    #[inline(always)]
    pub(super) fn pop(&self) -> Option<NonNull<u8>> {
        let mark = self.mark.get();
        let slot = self.slots.get(mark.wrapping_sub(2))?;
        self.mark.set(mark - 1);
        // SAFETY: the slots below the mark hold what was pushed, which is not null.
        Some(unsafe { NonNull::new_unchecked(slot.get()) })
    }

    /// Keeps a block; false if the cache is full or closed.
    #[inline(always)]
    pub(super) fn push(&self, block: NonNull<u8>) -> bool {
        let mark = self.mark.get();
        let Some(slot) = self.slots.get(mark.wrapping_sub(1)) else { return false };
        slot.set(block.as_ptr());
        self.mark.set(mark + 1);
        true
    }

    /// Opens the cache if it is closed.
    pub(super) fn open(&self) {
        self.mark.set(self.mark.get().max(1));
    }

    /// Closes the cache, which must be empty.
    pub(super) fn close(&self) {
        debug_assert!(self.mark.get() <= 1);
        self.mark.set(0);
    }

    /// Takes up to a batch of those blocks that have been here longest. Returns how many.
    pub(super) fn oldest(&self, out: &mut [NonNull<u8>; BATCH]) -> usize {
        let len = self.mark.get().saturating_sub(1);
        let n = len.min(BATCH);
        for (place, slot) in out.iter_mut().zip(&self.slots[..n]) {
            // SAFETY: the slots below the mark hold what was pushed, which is not null.
            *place = unsafe { NonNull::new_unchecked(slot.get()) };
        }
        for at in n..len {
            self.slots[at - n].set(self.slots[at].get());
        }
        self.mark.set(self.mark.get() - n);
        n
    }
}

/// Empties and closes the caches of a thread when the thread ends.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        for class in 0..CLASSES {
            flush(class);
            close(class);
        }
    }
}

thread_local! {
    static CACHES: [Cache; CLASSES] = const { [const { Cache::new() }; CLASSES] };
    static LEAVE: Leave = const { Leave };
}

/// Whether the thread may keep blocks: if so, `Leave` is there to take them back.
fn may_keep() -> bool {
    LEAVE.try_with(|_| ()).is_ok()
}

/// A block of that class. Cost: two cache lines of the thread's own, one branch, no atomics; once
/// in 128 times or less a trip to the depot.
#[inline]
pub(super) fn allocate(class: usize) -> Result<NonNull<u8>, AllocError> {
    match CACHES.try_with(|caches| caches[class].pop()) {
        Ok(Some(block)) => Ok(block),
        _ => refill(class),
    }
}

/// Takes a block back. Costs as [`allocate`] does.
///
/// # Safety
/// The block came from [`allocate`] with the same class, on any thread, and nobody uses it.
#[inline]
pub(super) unsafe fn deallocate(class: usize, block: NonNull<u8>) {
    if CACHES.try_with(|caches| caches[class].push(block)) != Ok(true) {
        // SAFETY: the caller's promise; the cache has not kept the block.
        unsafe { spill(class, block) }
    }
}

/// Gets a batch from the depot: the first block for the caller, the others for the cache.
#[cold]
#[inline(never)]
fn refill(class: usize) -> Result<NonNull<u8>, AllocError> {
    let want = if may_keep() { BATCH } else { 1 };
    let mut batch = [NonNull::dangling(); BATCH];
    let taken = depot::take(class, &mut batch[..want])?;
    let (first, rest) = (batch[0], &batch[1..taken]);
    if !rest.is_empty() {
        // The lowest goes in last and comes out first: blocks are handed out in ascending order.
        let fill = |caches: &[Cache; CLASSES]| {
            caches[class].open();
            rest.iter().rev().take_while(|&&block| caches[class].push(block)).count()
        };
        let kept = CACHES.try_with(fill).unwrap_or(0);
        if kept < rest.len() {
            // SAFETY: they have just come from the depot, and the cache has not kept them.
            unsafe { depot::give(class, &rest[..rest.len() - kept]) };
        }
    }
    Ok(first)
}

/// Keeps the block in place of the oldest batch, which goes to the depot; or gives the block
/// itself, if the cache is closed.
///
/// # Safety
/// As for [`deallocate`].
#[cold]
#[inline(never)]
unsafe fn spill(class: usize, block: NonNull<u8>) {
    let mut batch = [block; BATCH];
    let swap = |caches: &[Cache; CLASSES]| match caches[class].oldest(&mut batch) {
        0 => 1, // closed: the batch is still the block
        n => {
            caches[class].push(block); // there is room now
            n
        }
    };
    let n = CACHES.try_with(swap).unwrap_or(1);
    // SAFETY: the caller's promise for the block, and that of its like for those in the cache.
    let sparse = unsafe { depot::give(class, &batch[..n]) };
    if sparse {
        flush(class);
        close(class);
    } else if may_keep() {
        // Ignored: where there are no caches there is nothing to open.
        let _ = CACHES.try_with(|caches| caches[class].open());
    }
}

/// Gives all blocks of the thread's cache to the depot.
pub(super) fn flush(class: usize) {
    let mut batch = [NonNull::dangling(); BATCH];
    while let Ok(n @ 1..) = CACHES.try_with(|caches| caches[class].oldest(&mut batch)) {
        // SAFETY: what a cache holds came from the depot of its class, and nobody uses it.
        unsafe { depot::give(class, &batch[..n]) };
    }
}

/// Closes the thread's cache, which is empty.
fn close(class: usize) {
    // Ignored: where there are no caches there is nothing to close.
    let _ = CACHES.try_with(|caches| caches[class].close());
}
