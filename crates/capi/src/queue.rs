//! The retired pieces of a tree, which wait for a grace period.
//!
//! Each tree has one queue, and its writer owns it. Pieces go into blocks. At the end of a write,
//! full blocks are *sealed*: they get a target, or go to `call_rcu` as one. A sealed block whose
//! grace period is over is *due*, and a later call on the tree runs its pieces.
//!
//! Retiring cannot fail, so memory is reserved before a write begins ([`Queue::reserve`]). Pieces
//! that a write will retire only if it succeeds are *staged*: they wait in blocks of their own, and
//! move to the queue after the write.

use crate::errno::Errno;
use crate::memory::{free_object, object};
use crate::rcu::Rcu;
use crate::thread::{DOMAIN, Local};
use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};

/// A function of the program that takes a context and a pointer.
pub(crate) type Callback = unsafe extern "C" fn(ctx: *mut c_void, ptr: *mut c_void);

/// A piece to be freed, or a call to be made, after the grace period.
#[derive(Clone, Copy)]
pub(crate) enum Piece {
    /// Memory of the tree, with the function that frees it.
    Memory(NonNull<()>, unsafe fn(NonNull<()>)),
    /// A function of the program with its arguments.
    Call(Callback, *mut c_void, *mut c_void),
}

impl Piece {
    /// # Safety
    /// The grace period of the piece is over, and it runs once.
    unsafe fn run(self) {
        match self {
            // SAFETY: the caller's promise.
            Piece::Memory(ptr, free) => unsafe { free(ptr) },
            // SAFETY: the program promised that its function may be called now.
            Piece::Call(call, ctx, ptr) => in_callback(|| unsafe { call(ctx, ptr) }),
        }
    }
}

/// Calls a function of the program. The calls that write refuse to run meanwhile.
pub(crate) fn in_callback<T>(call: impl FnOnce() -> T) -> T {
    Local::with(|local| {
        local.callbacks.set(local.callbacks.get() + 1);
        let result = call();
        local.callbacks.set(local.callbacks.get() - 1);
        result
    })
}

/// The number of pieces in a block.
const CAPACITY: usize = 31;

/// The blocks that a write may use that retires so many pieces: those that it fills, one that it
/// seals although it is not full, and one to stage in.
pub(crate) fn blocks_for(pieces: usize) -> usize {
    pieces.div_ceil(CAPACITY) + 2
}

pub(crate) const BLOCK_SIZE: usize = size_of::<Block>();

#[repr(C)]
pub(crate) struct Block {
    /// For the program's `call_rcu`. First, so that its address is the block's.
    head: [usize; 2],
    next: *mut Block,
    target: u64,
    len: usize,
    pieces: [MaybeUninit<Piece>; CAPACITY],
}

impl Block {
    fn new() -> Result<NonNull<Block>, Errno> {
        let block = object::<Block>()?;
        let pieces = [const { MaybeUninit::uninit() }; CAPACITY];
        let empty = Block { head: [0; 2], next: ptr::null_mut(), target: 0, len: 0, pieces };
        // SAFETY: a fresh block of that layout.
        unsafe { block.write(empty) };
        Ok(block)
    }
}

/// Runs the pieces of a block and frees it.
///
/// # Safety
/// The caller owns the block, and the grace period of its pieces is over.
pub(crate) unsafe fn run(block: NonNull<Block>) {
    // SAFETY: the caller owns the block.
    let len = unsafe { (*block.as_ptr()).len };
    for at in 0..len {
        // SAFETY: pieces below `len` were written.
        let piece = unsafe { (&raw const (*block.as_ptr()).pieces[at]).read().assume_init() };
        // SAFETY: the caller's promise.
        unsafe { piece.run() }
    }
    // SAFETY: a block needs no drop, and the caller gives it up.
    unsafe { free_object(block) }
}

/// A list of blocks, which it owns.
pub(crate) struct List {
    first: *mut Block,
    last: *mut Block,
    blocks: usize,
}

impl List {
    pub(crate) const fn new() -> List {
        List { first: ptr::null_mut(), last: ptr::null_mut(), blocks: 0 }
    }

    fn push(&mut self, block: NonNull<Block>) {
        // SAFETY: the list owns its blocks, and the caller gives this one.
        unsafe {
            (*block.as_ptr()).next = ptr::null_mut();
            match self.last.as_mut() {
                Some(last) => last.next = block.as_ptr(),
                None => self.first = block.as_ptr(),
            }
        }
        self.last = block.as_ptr();
        self.blocks += 1;
    }

    fn pop(&mut self) -> Option<NonNull<Block>> {
        let block = NonNull::new(self.first)?;
        // SAFETY: the list owns its blocks.
        self.first = unsafe { block.as_ref() }.next;
        if self.first.is_null() {
            self.last = ptr::null_mut();
        }
        self.blocks -= 1;
        Some(block)
    }

    /// Room in the last block.
    fn room(&self) -> usize {
        // SAFETY: the list owns its blocks.
        unsafe { self.last.as_ref() }.map_or(0, |last| CAPACITY - last.len)
    }

    fn put(&mut self, piece: Piece) {
        // SAFETY: the list owns its blocks; the caller has made sure that the last has room.
        let last = unsafe { &mut *self.last };
        last.pieces[last.len].write(piece);
        last.len += 1;
    }

    /// The number of pieces. Time: the number of blocks.
    fn pieces(&self) -> usize {
        let mut pieces = 0;
        let mut next = self.first.cast_const();
        // SAFETY: the list owns its blocks.
        while let Some(block) = unsafe { next.as_ref() } {
            pieces += block.len;
            next = block.next;
        }
        pieces
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first.is_null()
    }

    /// Runs all pieces.
    ///
    /// # Safety
    /// Their grace periods are over.
    pub(crate) unsafe fn run(mut self) {
        while let Some(block) = self.pop() {
            // SAFETY: the caller's promise.
            unsafe { run(block) }
        }
    }
}

/// The grace periods after which pieces are due.
#[derive(Clone, Copy)]
pub(crate) enum Periods {
    /// At once: nothing reads concurrently with the writer.
    None,
    /// After the read sections of the library.
    Sections,
    /// After those of the program, by its `call_rcu`.
    Program(&'static Rcu),
}

pub(crate) struct Queue {
    filling: List,
    sealed: List,
    staged: List,
    spare: List,
    /// Whether the next end of a write seals all blocks.
    hurry: bool,
    /// The number of spare blocks that are preallocated, and kept after a write.
    preallocated: usize,
    /// Pieces that found no memory, and so are never freed. 0 unless the reserve was too small.
    pub(crate) leaked: usize,
}

/// The number of spare blocks that a queue keeps after a write, if none are preallocated.
const SPARES: usize = 16;

impl Queue {
    pub(crate) const fn new() -> Queue {
        const NONE: List = List::new();
        Queue {
            filling: NONE,
            sealed: NONE,
            staged: NONE,
            spare: NONE,
            hurry: false,
            preallocated: 0,
            leaked: 0,
        }
    }

    /// Makes sure that there is room for this number of pieces.
    #[inline]
    pub(crate) fn reserve(&mut self, pieces: usize) -> Result<(), Errno> {
        let room = self.filling.room() + self.spare.blocks * CAPACITY;
        if room >= pieces { Ok(()) } else { self.grow(pieces) }
    }

    #[cold]
    fn grow(&mut self, pieces: usize) -> Result<(), Errno> {
        while self.filling.room() + self.spare.blocks * CAPACITY < pieces {
            self.spare.push(Block::new()?);
        }
        Ok(())
    }

    /// Has so many spare blocks, and keeps them until it is told to have none.
    pub(crate) fn preallocate(&mut self, blocks: usize) -> Result<(), Errno> {
        self.preallocated = blocks;
        self.trim();
        while self.spare.blocks < blocks {
            self.spare.push(Block::new()?);
        }
        Ok(())
    }

    /// Frees spare blocks of which there are too many.
    fn trim(&mut self) {
        while self.spare.blocks > self.preallocated.max(SPARES) {
            if let Some(block) = self.spare.pop() {
                // SAFETY: the block is empty and ours.
                unsafe { free_object(block) }
            }
        }
    }

    /// Seals all blocks at the end of this write: much memory waits.
    pub(crate) fn hurry(&mut self) {
        self.hurry = true;
    }

    /// Whether no block is open, so that the end of a write has nothing to do.
    #[inline(always)]
    pub(crate) fn is_quiet(&self) -> bool {
        self.filling.first.is_null() && self.sealed.first.is_null()
    }

    /// Retires a piece.
    pub(crate) fn push(&mut self, piece: Piece) {
        if self.filling.room() == 0 {
            let Some(block) = self.spare.pop().or_else(|| Block::new().ok()) else {
                self.leaked += 1;
                return;
            };
            self.filling.push(block);
        }
        self.filling.put(piece);
    }

    /// Stages a piece. Takes no memory from the reserve of this write, but one block from those
    /// that are preallocated.
    pub(crate) fn stage(&mut self, piece: Piece) -> Result<(), Errno> {
        if self.staged.room() == 0 {
            let is_first = self.staged.is_empty() && self.preallocated > 0;
            let spare = is_first.then(|| self.spare.pop()).flatten();
            self.staged.push(spare.map_or_else(Block::new, Ok)?);
        }
        self.staged.put(piece);
        Ok(())
    }

    /// Retires the staged pieces. Cannot fail: the last piece of a block needs at most that block.
    pub(crate) fn commit(&mut self) {
        while let Some(mut block) = self.staged.pop() {
            // SAFETY: the block is ours alone now.
            let block_ref = unsafe { block.as_mut() };
            let len = core::mem::take(&mut block_ref.len);
            let pieces = block_ref.pieces;
            self.spare.push(block);
            for piece in &pieces[..len] {
                // SAFETY: pieces below `len` were written.
                self.push(unsafe { piece.assume_init() });
            }
        }
    }

    /// Drops the staged pieces.
    pub(crate) fn unstage(&mut self) {
        while let Some(mut block) = self.staged.pop() {
            // SAFETY: the block is ours alone now.
            unsafe { block.as_mut() }.len = 0;
            self.spare.push(block);
        }
    }

    /// Ends a write: seals full blocks, or all if `force`, and returns the blocks that are due.
    /// Everything retired so far is unreachable for new readers.
    #[inline]
    pub(crate) fn end_write(&mut self, periods: Periods, force: bool) -> List {
        let force = force | core::mem::take(&mut self.hurry);
        if self.filling.blocks > usize::from(self.filling.room() > 0) || force {
            self.seal(periods, force);
            self.take_due(periods)
        } else {
            List::new()
        }
    }

    #[cold]
    fn seal(&mut self, periods: Periods, force: bool) {
        self.trim();
        let target = match periods {
            Periods::Sections => DOMAIN.target(),
            _ => 0,
        };
        let mut open = List::new();
        while let Some(mut block) = self.filling.pop() {
            // SAFETY: the block is ours.
            let block_ref = unsafe { block.as_mut() };
            if block_ref.len < CAPACITY && !force {
                open.push(block);
                continue;
            }
            if block_ref.len == 0 {
                self.spare.push(block);
                continue;
            }
            block_ref.target = target;
            match periods {
                // SAFETY: the block is full of pieces that no later reader reaches, and is given
                // away.
                Periods::Program(rcu) => unsafe { rcu.call(block) },
                _ => self.sealed.push(block),
            }
        }
        self.filling = open;
    }

    /// The blocks whose grace period is over.
    fn take_due(&mut self, periods: Periods) -> List {
        let mut due = List::new();
        // SAFETY: the list owns its blocks.
        while let Some(first) = unsafe { self.sealed.first.as_ref() } {
            if matches!(periods, Periods::Sections) && !DOMAIN.is_over(first.target) {
                break;
            }
            if let Some(block) = self.sealed.pop() {
                due.push(block);
            }
        }
        due
    }

    /// The number of pieces that wait here.
    pub(crate) fn waiting(&self) -> usize {
        self.filling.pieces() + self.sealed.pieces()
    }

    /// Removes everything: runs the pieces, frees the blocks.
    ///
    /// # Safety
    /// The grace periods of all pieces are over.
    pub(crate) unsafe fn finish(&mut self) {
        self.unstage();
        for list in [&mut self.sealed, &mut self.filling, &mut self.spare] {
            let list = core::mem::replace(list, List::new());
            // SAFETY: the caller's promise. Spare blocks are empty.
            unsafe { list.run() }
        }
    }
}
