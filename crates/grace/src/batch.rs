//! Batches of retired pieces: blocks of the heap, in lists.
//!
//! A CPU, or a thread, has some of its own: it fills one block, closes it with the number of the
//! period that it must wait for, and puts it at the end of its list; pieces are freed from the
//! front. Emptied blocks are kept, [`SPARES`] at most, so that a CPU whose batches are freed as
//! fast as they fill does not allocate.
//!
//! Retiring cannot fail, so the heap must not be what it depends on. A CPU that starts has a block
//! ready, and says so if it can have none. Whenever a block is begun another is got ready, if there
//! is memory. If there is none, pieces go where there is room: in that one; in the last closed
//! block, which waits longer then. Only when a CPU has a whole block's worth of pieces more than it
//! had when the heap gave out, and no grace period has ended since, is there no room for a piece.

use alloc::alloc::{alloc, dealloc};
use core::alloc::Layout;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

/// As many pieces as wait together.
pub(crate) const BATCH: usize = if cfg!(loom) { 2 } else { 62 };

/// As many empty blocks as a CPU keeps.
const SPARES: usize = 2;

/// A retired piece.
#[derive(Clone, Copy)]
pub(crate) struct Item {
    pub(crate) ptr: NonNull<()>,
    pub(crate) free: unsafe fn(NonNull<()>),
}

pub(crate) struct Block {
    pub(crate) next: Option<NonNull<Block>>,
    target: u64,
    /// Pieces that have been freed: the first of them, since what was used last is best used again
    /// first, and that is what an allocator hands out which was freed last.
    freed: usize,
    len: usize,
    items: [MaybeUninit<Item>; BATCH],
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
    /// It came from `new`, and nobody uses it any more.
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

/// Blocks in a row, which the list owns.
#[derive(Default)]
pub(crate) struct List {
    pub(crate) ends: Option<(NonNull<Block>, NonNull<Block>)>,
    /// The largest target among them, or larger.
    newest: u64,
}

impl List {
    pub(crate) const fn new() -> List {
        List { ends: None, newest: 0 }
    }

    /// A list of one block.
    ///
    /// # Safety
    /// The block is the caller's, and in no other list.
    pub(crate) unsafe fn of(block: NonNull<Block>) -> List {
        // SAFETY: the caller's promise.
        List { ends: Some((block, block)), newest: unsafe { block.as_ref() }.target }
    }

    /// Adds a piece to the last block, if that has room: all that is in it waits for `target` then.
    fn add(&mut self, item: Item, target: impl FnOnce() -> u64) -> bool {
        let Some((_, mut last)) = self.ends else { return false };
        // SAFETY: this list owns its blocks.
        let block = unsafe { last.as_mut() };
        if block.len == BATCH {
            // There is room at its beginning if some are freed.
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

    /// Takes the first block off, as a list of its own.
    #[cfg(feature = "std")]
    pub(crate) fn pop(&mut self) -> Option<List> {
        let (mut first, last) = self.ends?;
        // SAFETY: this list owns its blocks, and gives the first away.
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
    /// Gives the blocks back; what they hold is never freed.
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

/// What one CPU, or one thread, has retired.
pub(crate) struct Batches {
    /// Being filled; never full.
    open: Option<NonNull<Block>>,
    closed: List,
    /// Empty.
    spare: [Option<NonNull<Block>>; SPARES],
}

impl Batches {
    pub(crate) const fn new() -> Batches {
        Batches { open: None, closed: List::new(), spare: [None; SPARES] }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_none() && self.closed.ends.is_none()
    }

    /// Adds a piece; `false` if there is no memory for it.
    pub(crate) fn push(&mut self, item: Item, target: impl FnOnce() -> u64) -> bool {
        let Some(mut open) = self.open.or_else(|| self.begin()) else {
            return self.closed.add(item, target);
        };
        self.open = Some(open);
        // SAFETY: ours.
        let block = unsafe { open.as_mut() };
        block.items[block.len].write(item);
        block.len += 1;
        if block.len == BATCH {
            self.close(target);
        }
        true
    }

    /// An empty block, with another in hand if there is memory.
    #[cold]
    fn begin(&mut self) -> Option<NonNull<Block>> {
        let block = self.spare.iter_mut().find_map(Option::take).or_else(Block::new);
        self.prepare();
        block
    }

    /// Has an empty block in hand. Returns whether there is one.
    pub(crate) fn prepare(&mut self) -> bool {
        if self.spare.iter().all(Option::is_none) {
            self.spare[0] = Block::new();
        }
        self.spare.iter().any(Option::is_some)
    }

    /// Closes what is being filled. Returns the last period that something here waits for.
    pub(crate) fn close(&mut self, target: impl FnOnce() -> u64) -> Option<u64> {
        if let Some(mut open) = self.open.take() {
            // SAFETY: ours.
            unsafe {
                open.as_mut().target = target();
                self.closed.append(List::of(open));
            }
        }
        self.closed.ends.map(|_| self.closed.newest)
    }

    /// Takes over what another has left.
    pub(crate) fn take_over(&mut self, list: List) {
        self.closed.append(list);
    }

    /// All that is here, closed. Blocks in hand stay, and there is one if there is memory.
    pub(crate) fn leave(&mut self, target: impl FnOnce() -> u64) -> List {
        self.prepare();
        self.close(target);
        core::mem::take(&mut self.closed)
    }

    /// A piece whose period is over.
    pub(crate) fn pop_due(&mut self, done: u64) -> Option<Item> {
        let (mut first, last) = self.closed.ends?;
        // SAFETY: ours.
        let block = unsafe { first.as_mut() };
        if block.target > done {
            return None;
        }
        // SAFETY: a closed block has an item that is not freed until it is taken off the list,
        // below, and all below `len` were written.
        let item = unsafe { block.items[block.freed].assume_init() };
        block.freed += 1;
        if block.freed == block.len {
            (block.freed, block.len) = (0, 0);
            self.closed.ends = block.next.take().map(|next| (next, last));
            match self.spare.iter_mut().find(|spare| spare.is_none()) {
                Some(spare) => *spare = Some(first),
                // SAFETY: ours, and empty.
                None => unsafe { Block::free(first) },
            }
        }
        Some(item)
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        for block in core::iter::once(self.open.take()).chain(self.spare).flatten() {
            // SAFETY: ours; what it holds is never freed.
            unsafe { Block::free(block) };
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use core::cell::Cell;

    std::thread_local! {
        /// Whether the heap has given out, for blocks.
        pub(crate) static NO_MEMORY: Cell<bool> = const { Cell::new(false) };
    }
}
