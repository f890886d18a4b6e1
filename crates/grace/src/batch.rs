//! Batches of retired pieces: heap blocks in linked lists.
//!
//! Each CPU (or thread) has its own batches. It fills one block, closes it with the number of the
//! grace period that the block must wait for, and appends it to its list. Pieces are freed from the
//! front of the list. Up to [`SPARES`] empty blocks are kept, so a CPU whose batches are freed as
//! fast as they fill does not allocate.
//!
//! Retiring cannot fail, so it must not depend on the heap:
//!
//! - A CPU gets one block when it starts, or learns that there is no memory for one.
//! - Whenever a block is begun, a spare block is allocated if there is memory.
//! - If there is none, a piece goes into any block with room: the open block, else the last closed
//!   block, which then waits for a later period.
//!
//! A piece has no room only if the CPU has retired a whole block of pieces since memory ran out,
//! and none of these was freed.

use alloc::alloc::{alloc, dealloc};
use core::alloc::Layout;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

/// The number of pieces of a batch.
pub(crate) const BATCH: usize = if cfg!(loom) { 2 } else { 62 };

/// The largest number of empty blocks that a CPU keeps.
const SPARES: usize = 2;

/// A retired piece.
#[derive(Clone, Copy)]
pub(crate) struct RetiredPiece {
    pub(crate) ptr: NonNull<()>,
    pub(crate) free: unsafe fn(NonNull<()>),
}

pub(crate) struct Block {
    pub(crate) next: Option<NonNull<Block>>,
    target: u64,
    /// The number of pieces that have been freed. The oldest is freed first: an allocator hands out
    /// first the memory that was freed last, and the piece retired last is most likely still in the
    /// cache.
    freed: usize,
    len: usize,
    items: [MaybeUninit<RetiredPiece>; BATCH],
}

impl Block {
    fn new() -> Option<NonNull<Block>> {
        #[cfg(all(test, not(loom)))]
        if tests::NO_MEMORY.get() {
            return None;
        }
        // SAFETY: the size is not 0.
        let block = NonNull::new(unsafe { alloc(Layout::new::<Block>()) })?.cast::<Block>();
        let items = [const { MaybeUninit::uninit() }; BATCH];
        // SAFETY: just allocated with this layout.
        unsafe { block.write(Block { next: None, target: 0, freed: 0, len: 0, items }) };
        Some(block)
    }

    /// # Safety
    /// The block came from `new`, and no code uses it any more.
    unsafe fn free(block: NonNull<Block>) {
        // SAFETY: the caller's promise; a block needs no drop.
        unsafe { dealloc(block.as_ptr().cast(), Layout::new::<Block>()) }
    }
}

impl core::fmt::Debug for Block {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Block")
            .field("target", &self.target)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}

/// A linked list of blocks, which it owns.
#[derive(Default)]
pub(crate) struct List {
    pub(crate) ends: Option<(NonNull<Block>, NonNull<Block>)>,
    /// An upper bound of the targets in the list.
    newest: u64,
}

impl List {
    pub(crate) const fn new() -> List {
        List { ends: None, newest: 0 }
    }

    /// A list of one block.
    ///
    /// # Safety
    /// The caller owns the block, and it is in no other list.
    pub(crate) unsafe fn of(block: NonNull<Block>) -> List {
        // SAFETY: the caller's promise.
        List { ends: Some((block, block)), newest: unsafe { block.as_ref() }.target }
    }

    /// Adds a piece to the last block if it has room. All pieces of that block then wait for
    /// `target`.
    fn add(&mut self, item: RetiredPiece, target: impl FnOnce() -> u64) -> bool {
        let Some((_, mut last)) = self.ends else { return false };
        // SAFETY: this list owns its blocks.
        let block = unsafe { last.as_mut() };
        if block.len == BATCH {
            // The block has room at its front if some of its pieces have been freed.
            block.items.copy_within(block.freed.., 0);
            block.len -= core::mem::take(&mut block.freed);
        }
        let Some(place) = block.items.get_mut(block.len) else { return false };
        place.write(item);
        block.len += 1;
        block.target = target();
        self.newest = self.newest.max(block.target);
        true
    }

    /// Removes the first block and returns it as a list.
    #[cfg(feature = "std")]
    pub(crate) fn pop(&mut self) -> Option<List> {
        let (mut first, last) = self.ends?;
        // SAFETY: this list owns its blocks, and gives up the first.
        unsafe {
            self.ends = first.as_mut().next.take().map(|next| (next, last));
            Some(List::of(first))
        }
    }

    pub(crate) fn append(&mut self, mut other: List) {
        let Some((first, last)) = other.ends.take() else { return };
        match &mut self.ends {
            // SAFETY: this list owns its blocks.
            Some((_, end)) => unsafe { core::mem::replace(end, last).as_mut().next = Some(first) },
            None => self.ends = Some((first, last)),
        }
        self.newest = self.newest.max(other.newest);
    }
}

impl Drop for List {
    /// Frees the blocks. The pieces in them leak.
    fn drop(&mut self) {
        let mut next = self.ends.take().map(|(first, _)| first);
        while let Some(block) = next {
            // SAFETY: the list owns its blocks.
            next = unsafe { block.as_ref().next };
            // SAFETY: as above.
            unsafe { Block::free(block) };
        }
    }
}

/// The pieces that one CPU, or one thread, has retired.
pub(crate) struct Batches {
    /// The block that is being filled. Never full.
    open: Option<NonNull<Block>>,
    closed: List,
    /// Empty blocks.
    spare: [Option<NonNull<Block>>; SPARES],
}

impl Batches {
    pub(crate) const fn new() -> Batches {
        Batches { open: None, closed: List::new(), spare: [None; SPARES] }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_none() && self.closed.ends.is_none()
    }

    /// Adds a piece. Returns `false` if there is no memory for it.
    pub(crate) fn push(&mut self, item: RetiredPiece, target: impl FnOnce() -> u64) -> bool {
        let Some(mut open) = self.open.or_else(|| self.begin()) else {
            return self.closed.add(item, target);
        };
        self.open = Some(open);
        // SAFETY: this CPU owns the block.
        let block = unsafe { open.as_mut() };
        block.items[block.len].write(item);
        block.len += 1;
        if block.len == BATCH {
            self.close(target);
        }
        true
    }

    /// Returns an empty block, and allocates a spare one if there is memory.
    #[cold]
    fn begin(&mut self) -> Option<NonNull<Block>> {
        let block = self.spare.iter_mut().find_map(Option::take).or_else(Block::new);
        self.prepare();
        block
    }

    /// Makes sure that there is a spare block. Returns whether there is one.
    pub(crate) fn prepare(&mut self) -> bool {
        if self.spare.iter().all(Option::is_none) {
            self.spare[0] = Block::new();
        }
        self.spare.iter().any(Option::is_some)
    }

    /// Closes the open block. Returns the last period that a batch here waits for.
    pub(crate) fn close(&mut self, target: impl FnOnce() -> u64) -> Option<u64> {
        if let Some(mut open) = self.open.take() {
            // SAFETY: this CPU owns the block.
            unsafe {
                open.as_mut().target = target();
                self.closed.append(List::of(open));
            }
        }
        self.closed.ends.map(|_| self.closed.newest)
    }

    /// Takes over the batches that another CPU has left.
    pub(crate) fn take_over(&mut self, list: List) {
        self.closed.append(list);
    }

    /// Closes and returns all batches. Spare blocks stay here; there is one if there is memory.
    pub(crate) fn leave(&mut self, target: impl FnOnce() -> u64) -> List {
        self.prepare();
        self.close(target);
        core::mem::take(&mut self.closed)
    }

    /// Removes a piece whose grace period is over.
    pub(crate) fn pop_due(&mut self, done: u64) -> Option<RetiredPiece> {
        let (mut first, last) = self.closed.ends?;
        // SAFETY: this list owns its blocks.
        let block = unsafe { first.as_mut() };
        if block.target > done {
            return None;
        }
        // SAFETY: a closed block in the list has at least one piece that is not freed, since its
        // last one takes it off the list, below. All pieces below `len` were written.
        let item = unsafe { block.items[block.freed].assume_init() };
        block.freed += 1;
        if block.freed == block.len {
            (block.freed, block.len) = (0, 0);
            self.closed.ends = block.next.take().map(|next| (next, last));
            match self.spare.iter_mut().find(|spare| spare.is_none()) {
                Some(spare) => *spare = Some(first),
                // SAFETY: the block was just removed from the list, and is empty.
                None => unsafe { Block::free(first) },
            }
        }
        Some(item)
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        for block in core::iter::once(self.open.take()).chain(self.spare).flatten() {
            // SAFETY: this value owns its blocks. Pieces in them leak.
            unsafe { Block::free(block) };
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use core::cell::Cell;

    std::thread_local! {
        /// Whether allocating a block fails.
        pub(crate) static NO_MEMORY: Cell<bool> = const { Cell::new(false) };
    }
}
