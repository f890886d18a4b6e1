//! The memory of the models' nodes and entries.
//!
//! Freed blocks are kept until the next model run, so that a read after the free becomes a report
//! by loom and not a crash. With `REUSE`, a freed block is allocated again at once, to test that
//! this is correct.

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering, fence};
use maple::{AllocError, Entry, Error, Global, NodeAlloc, Raw};
use std::alloc::Layout;
use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

thread_local! {
    // Loom runs its threads as coroutines of one system thread, so all threads of a model share
    // these.
    static FREED: RefCell<Vec<(NonNull<u8>, Layout)>> = const { RefCell::new(Vec::new()) };
    #[expect(clippy::vec_box, reason = "a dropped entry must keep its address")]
    static ENTRIES: RefCell<Vec<Box<UnsafeCell<u32>>>> = const { RefCell::new(Vec::new()) };
    #[expect(clippy::vec_box, reason = "as above")]
    static SHARED: RefCell<Vec<Box<Value>>> = const { RefCell::new(Vec::new()) };
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static MADE: Cell<usize> = const { Cell::new(0) };
    static REUSED: Cell<usize> = const { Cell::new(0) };
}

/// Frees the blocks of the previous model run, and resets its counts.
pub(crate) fn begin() {
    for (block, layout) in FREED.take() {
        // SAFETY: the model run that used the block is over.
        unsafe { Global::deallocate(block, layout) }
    }
    ENTRIES.take();
    SHARED.take();
    LIVE.set(0);
}

/// The number of live nodes and entries.
pub(crate) fn live() -> isize {
    LIVE.get()
}

/// The number of allocations, in all runs of this thread's models.
pub(crate) fn made() -> usize {
    MADE.get()
}

/// The number of reused blocks, in all runs of this thread's models.
pub(crate) fn reused() -> usize {
    REUSED.get()
}

/// An allocator that keeps freed blocks; with `REUSE`, it allocates them again, the last one first.
pub(crate) struct Pool<const REUSE: bool>;

// SAFETY: a block is returned once, and again only after it was freed.
unsafe impl<const REUSE: bool> NodeAlloc for Pool<REUSE> {
    fn allocate(layout: Layout) -> Result<NonNull<u8>, AllocError> {
        LIVE.set(LIVE.get() + 1);
        MADE.set(MADE.get() + 1);
        let again = |freed: &mut Vec<(NonNull<u8>, Layout)>| {
            let at = freed.iter().rposition(|(_, other)| *other == layout)?;
            Some(freed.remove(at).0)
        };
        if REUSE && let Some(block) = FREED.with_borrow_mut(again) {
            REUSED.set(REUSED.get() + 1);
            return Ok(block);
        }
        Global::allocate(layout)
    }

    unsafe fn deallocate(block: NonNull<u8>, layout: Layout) {
        LIVE.set(LIVE.get() - 1);
        FREED.with_borrow_mut(|freed| freed.push((block, layout)));
    }
}

/// An entry whose reads and whose drop loom tracks.
#[derive(Debug)]
pub(crate) struct Canary(Box<UnsafeCell<u32>>);

// SAFETY: loom checks that no read races with the drop.
unsafe impl Send for Canary {}
// SAFETY: as above.
unsafe impl Sync for Canary {}

impl Canary {
    pub(crate) fn new(value: u32) -> Self {
        LIVE.set(LIVE.get() + 1);
        Canary(Box::new(UnsafeCell::new(value)))
    }
}

impl Drop for Canary {
    fn drop(&mut self) {
        LIVE.set(LIVE.get() - 1);
        // SAFETY: loom checks that there is no reader.
        self.0.with_mut(|value| unsafe { *value = u32::MAX });
        // The memory stays allocated, so that loom reports a later read.
        let ended = std::mem::replace(&mut self.0, Box::new(UnsafeCell::new(0)));
        ENTRIES.with_borrow_mut(|entries| entries.push(ended));
    }
}

/// A reference to a [`Canary`].
#[derive(Clone, Copy)]
pub(crate) struct Look<'g>(&'g UnsafeCell<u32>);

impl Look<'_> {
    pub(crate) fn value(self) -> u32 {
        // SAFETY: loom checks that the entry is not dropped.
        self.0.with(|value| unsafe { *value })
    }
}

// SAFETY: the word is the box's pointer; a duplicate is a box of its own.
unsafe impl Entry for Canary {
    type Ref<'g> = Look<'g>;
    const NEEDS_DROP: bool = true;

    fn try_into_raw(self) -> Result<Raw, Self> {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: the box is moved out once, and `this` is not dropped.
        Ok(NonNull::from(Box::leak(unsafe { std::ptr::read(&this.0) })).cast())
    }

    unsafe fn from_raw(raw: Raw) -> Self {
        // SAFETY: the caller's promise.
        Canary(unsafe { Box::from_raw(raw.cast().as_ptr()) })
    }

    unsafe fn borrow<'g>(raw: Raw) -> Look<'g> {
        // SAFETY: the caller's promise.
        Look(unsafe { raw.cast().as_ref() })
    }

    unsafe fn try_dup(raw: Raw) -> Result<Raw, Error> {
        // SAFETY: the caller's promise.
        let copy = Canary::new(unsafe { Self::borrow(raw) }.value());
        copy.try_into_raw().map_err(|_| Error::OutOfMemory)
    }
}

/// As [`Canary`], but shared: a duplicate adds a user, and the last user ends the value.
#[derive(Debug)]
pub(crate) struct Shared(NonNull<Value>);

#[derive(Debug)]
struct Value {
    users: AtomicUsize,
    value: UnsafeCell<u32>,
}

// SAFETY: the value counts its users; loom checks that no read races with its end.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    pub(crate) fn new(value: u32) -> Self {
        LIVE.set(LIVE.get() + 1);
        let value = Value { users: AtomicUsize::new(1), value: UnsafeCell::new(value) };
        Shared(NonNull::from(Box::leak(Box::new(value))))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the memory of a value stays until the model run is over.
        let value = unsafe { self.0.as_ref() };
        // Release: reads by this user happen before the end; pairs with the fence of the last user.
        if value.users.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        // Acquire: pairs with the Release of the other users.
        fence(Ordering::Acquire);
        LIVE.set(LIVE.get() - 1);
        // SAFETY: loom checks that there is no reader.
        value.value.with_mut(|value| unsafe { *value = u32::MAX });
        // SAFETY: the pointer came from a box, and only the last user returns it.
        let ended = unsafe { Box::from_raw(self.0.as_ptr()) };
        SHARED.with_borrow_mut(|shared| shared.push(ended));
    }
}

// SAFETY: the word is the pointer; a duplicate is the same word, with one user more.
unsafe impl Entry for Shared {
    type Ref<'g> = Look<'g>;
    const NEEDS_DROP: bool = true;
    const SHARES: bool = true;

    fn try_into_raw(self) -> Result<Raw, Self> {
        Ok(std::mem::ManuallyDrop::new(self).0.cast())
    }

    unsafe fn from_raw(raw: Raw) -> Self {
        Shared(raw.cast())
    }

    unsafe fn borrow<'g>(raw: Raw) -> Look<'g> {
        // SAFETY: the caller's promise.
        Look(unsafe { &raw.cast::<Value>().as_ref().value })
    }

    unsafe fn try_dup(raw: Raw) -> Result<Raw, Error> {
        // Relaxed: the source entry has a user, which keeps the value.
        // SAFETY: the caller's promise.
        let before = unsafe { raw.cast::<Value>().as_ref() }.users.fetch_add(1, Ordering::Relaxed);
        assert!(before > 0, "an entry was duplicated after its drop");
        Ok(raw)
    }
}
