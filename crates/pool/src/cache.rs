//! The caches: up to 256 free blocks for each thread and class.
//!
//! A cache is a stack in an array. One number, its *mark*, holds all that the fast paths need, so
//! each of them has one branch:
//!
//! | mark | state | `pop` reads slot | `push` writes slot |
//! |---|---|---|---|
//! | 0 | closed | -2: none | -1: none |
//! | 1 | empty | -1: none | 0 |
//! | n + 1 | n blocks | n - 1 | n |
//! | 257 | full | 255 | 256: none |
//!
//! A cache is closed until its thread first reaches the depot, and again after the thread ended.
//! The caches are plain cells without a destructor, so an access needs no check that they exist.
//! When the thread ends, [`leave`] empties and closes them (`exit.rs`). Destructors of other
//! thread-local values may still allocate and free after that; they find the caches closed and go
//! to the depot. The slow path decides "closed" by [`may_keep`], never by the mark.
//!
//! The slow path may call the global allocator, which may use this pool. So the cache may be in any
//! state when the call returns. The slow path therefore pushes blocks one by one, while there is
//! room, and never assumes that they fit.

use crate::exit::may_keep;
use crate::{CLASSES, depot};
use core::cell::Cell;
use core::ptr::{self, NonNull};
use std::thread_local;

/// The number of blocks that a cache holds.
pub(super) const KEEP: usize = 256;
/// The number of blocks that move between a cache and its depot at a time.
pub(super) const BATCH: usize = KEEP / 2;

/// The free blocks of one class that one thread holds.
pub(super) struct Cache {
    mark: Cell<usize>,
    /// Above the mark: null, or blocks that were there before.
    slots: [Cell<*mut u8>; KEEP],
}

impl Cache {
    /// A closed cache. All zeros, so that the caches of a new thread cost nothing.
    pub(super) const fn new() -> Self {
        Cache { mark: Cell::new(0), slots: [const { Cell::new(ptr::null_mut()) }; KEEP] }
    }

    /// Takes the block that was pushed last; `None` if the cache is empty or closed.
    #[inline(always)]
    pub(super) fn pop(&self) -> Option<NonNull<u8>> {
        let mark = self.mark.get();
        let slot = self.slots.get(mark.wrapping_sub(2))?;
        self.mark.set(mark - 1);
        // SAFETY: the slots below the mark hold pushed blocks, which are not null.
        Some(unsafe { NonNull::new_unchecked(slot.get()) })
    }

    /// Keeps a block. Returns false if the cache is full or closed.
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

    /// Takes up to a batch of the blocks that have been here longest. Returns their number.
    pub(super) fn oldest(&self, out: &mut [NonNull<u8>; BATCH]) -> usize {
        let len = self.mark.get().saturating_sub(1);
        let n = len.min(BATCH);
        for (place, slot) in out.iter_mut().zip(&self.slots[..n]) {
            // SAFETY: the slots below the mark hold pushed blocks, which are not null.
            *place = unsafe { NonNull::new_unchecked(slot.get()) };
        }
        for at in n..len {
            self.slots[at - n].set(self.slots[at].get());
        }
        self.mark.set(self.mark.get() - n);
        n
    }
}

/// Empties and closes the caches of the calling thread.
pub(super) fn leave() {
    for class in 0..CLASSES {
        flush(class);
        close(class);
    }
}

thread_local! {
    static CACHES: [Cache; CLASSES] = const { [const { Cache::new() }; CLASSES] };
}

/// Allocates a block of a class. Cost: two cache lines of the thread's own, one branch, no atomics;
/// at most every 128th call goes to the depot.
#[inline]
pub(super) fn allocate(class: usize) -> Option<NonNull<u8>> {
    match CACHES.try_with(|caches| caches[class].pop()) {
        Ok(Some(block)) => Some(block),
        _ => refill(class),
    }
}

/// Takes a block back. Cost: as for [`allocate`].
///
/// # Safety
/// The block came from [`allocate`] with the same class, on any thread, and has no user any more.
#[inline]
pub(super) unsafe fn deallocate(class: usize, block: NonNull<u8>) {
    if CACHES.try_with(|caches| caches[class].push(block)) != Ok(true) {
        // SAFETY: the caller's promise; the cache did not keep the block.
        unsafe { spill(class, block) }
    }
}

/// Takes a batch from the depot: the first block for the caller, the others for the cache.
#[cold]
#[inline(never)]
fn refill(class: usize) -> Option<NonNull<u8>> {
    let want = if may_keep() { BATCH } else { 1 };
    let mut batch = [NonNull::dangling(); BATCH];
    let taken = depot::take(class, &mut batch[..want])?;
    let (first, rest) = (batch[0], &batch[1..taken]);
    if !rest.is_empty() {
        // The lowest address is pushed last and popped first, so blocks are allocated in ascending
        // order.
        let fill = |caches: &[Cache; CLASSES]| {
            caches[class].open();
            rest.iter().rev().take_while(|&&block| caches[class].push(block)).count()
        };
        let kept = CACHES.try_with(fill).unwrap_or(0);
        if kept < rest.len() {
            // SAFETY: the blocks have just come from the depot, and the cache did not keep them.
            unsafe { depot::give(class, &rest[..rest.len() - kept]) };
        }
    }
    Some(first)
}

/// Moves the oldest batch to the depot and keeps the block. If the cache is closed, moves the block
/// itself.
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
    // SAFETY: the caller's promise for the block; blocks in the cache came with the same promise.
    let sparse = unsafe { depot::give(class, &batch[..n]) };
    if sparse {
        flush(class);
        close(class);
    } else if may_keep() {
        // The result is ignored: if the thread has no caches any more, there is nothing to open.
        let _ = CACHES.try_with(|caches| caches[class].open());
    }
}

/// Moves all blocks of the thread's cache to the depot.
pub(super) fn flush(class: usize) {
    let mut batch = [NonNull::dangling(); BATCH];
    while let Ok(n @ 1..) = CACHES.try_with(|caches| caches[class].oldest(&mut batch)) {
        // SAFETY: the blocks of a cache came from the depot of its class, and have no user.
        unsafe { depot::give(class, &batch[..n]) };
    }
}

/// Closes the thread's cache, which must be empty.
fn close(class: usize) {
    // The result is ignored: if the thread has no caches any more, there is nothing to close.
    let _ = CACHES.try_with(|caches| caches[class].close());
}
