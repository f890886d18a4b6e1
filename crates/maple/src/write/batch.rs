//! Things that leave the tree, collected so that many are retired at once.
//!
//! A batch is in a block of its own, which is retired as one thing and frees what is in it after
//! the grace period. The first few things wait in place: a writer that writes once retires them one
//! by one, and needs no block.

use super::retire::Thing;
use crate::alloc::NodeAlloc;
use crate::layout::INNER_BLOCK;
use crate::node::{Link, free_node};
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use grace::Reclaim;

/// Something to be freed.
pub(super) trait Discard: Copy {
    /// # Safety
    /// It left the tree, nobody looks at it any more, and it is freed once.
    unsafe fn discard<A: NodeAlloc>(self);

    /// It in two words, as an engine takes it.
    fn thing<A: NodeAlloc>(self) -> Thing;
}

impl Discard for Thing {
    #[inline(always)]
    unsafe fn discard<A: NodeAlloc>(self) {
        // SAFETY: the caller's promise; it was put there with what frees it.
        unsafe { self.1(self.0) }
    }

    fn thing<A: NodeAlloc>(self) -> Thing {
        self
    }
}

/// A node, whose contents were taken over: it says itself what it is. Never null.
impl Discard for Link {
    #[inline(always)]
    unsafe fn discard<A: NodeAlloc>(self) {
        // SAFETY: the caller's promise.
        unsafe { free_node::<A>(self) }
    }

    fn thing<A: NodeAlloc>(self) -> Thing {
        // SAFETY: the link is not null.
        unsafe { (NonNull::new_unchecked(self.node()), self.free_fn::<A>()) }
    }
}

/// As many as are not worth a block.
const FEW: usize = 4;

/// After so many batches the engine is asked to look for what has come due. What waits is memory
/// that is not used again: an engine that counts things, and not bytes, lets more of it wait than a
/// cache holds.
const BATCHES: u32 = 4;

/// What is collected, of one kind.
pub(super) struct Heap<T, A> {
    few: [MaybeUninit<T>; FEW],
    /// How many there are: in the batch, if there is one, else in place.
    len: usize,
    /// The batch being filled, or null.
    batch: *mut Batch<T>,
    /// Batches handed over.
    batches: u32,
    _alloc: PhantomData<A>,
}

/// A block of them.
#[repr(C)]
struct Batch<T> {
    len: usize,
    things: [MaybeUninit<T>; 0],
}

impl<T: Discard, A: NodeAlloc> Heap<T, A> {
    /// As many as a block takes.
    const MOST: usize = {
        let most = (INNER_BLOCK.size() - size_of::<Batch<T>>()) / size_of::<T>();
        assert!(most > FEW, "the few and one more go into a block");
        most
    };

    pub(super) const fn new() -> Self {
        let few = [const { MaybeUninit::uninit() }; FEW];
        Heap { few, len: 0, batch: ptr::null_mut(), batches: 0, _alloc: PhantomData }
    }

    /// Adds a thing.
    ///
    /// Cost: a word or two written; for every twenty or more things one block, one guard and one
    /// retirement.
    ///
    /// # Safety
    /// The thing left the tree and is nobody else's; `R` is the engine of its readers.
    #[inline(always)]
    pub(super) unsafe fn push<R: Reclaim>(&mut self, thing: T) {
        if self.batch.is_null() {
            // SAFETY: the caller's promise.
            return unsafe { self.push_first::<R>(thing) };
        }
        // SAFETY: the batch is ours alone, and not full.
        unsafe { Self::place(self.batch, self.len).write(thing) }
        self.len += 1;
        if self.len == Self::MOST {
            self.flush::<R>();
        }
    }

    /// Adds a thing where there is no batch yet.
    ///
    /// # Safety
    /// As for [`Heap::push`].
    #[inline(never)]
    unsafe fn push_first<R: Reclaim>(&mut self, thing: T) {
        if self.len == FEW {
            let Ok(block) = A::allocate(INNER_BLOCK) else {
                // No memory for a batch: one by one, then.
                self.flush::<R>();
                let (ptr, free) = thing.thing::<A>();
                // SAFETY: the caller's promise.
                return unsafe { R::retire(&R::pin(), ptr, free) };
            };
            self.batch = block.as_ptr().cast();
            for (i, thing) in self.few.iter().enumerate() {
                // SAFETY: all of the few are there, and the block is new and large enough for them.
                unsafe { Self::place(self.batch, i).write(thing.assume_init()) }
            }
            // SAFETY: it is large enough for one more, too.
            unsafe { Self::place(self.batch, FEW).write(thing) }
        } else {
            self.few[self.len].write(thing);
        }
        self.len += 1;
    }

    /// # Safety
    /// The batch is the caller's, and `i` below [`Heap::MOST`].
    #[inline(always)]
    unsafe fn place(batch: *mut Batch<T>, i: usize) -> *mut T {
        // SAFETY: the caller's promise; things follow the count, which is as large and as aligned
        // as a word.
        unsafe { (&raw mut (*batch).things).cast::<T>().add(i) }
    }

    /// Hands over what has been collected.
    #[cold]
    pub(super) fn flush<R: Reclaim>(&mut self) {
        let len = core::mem::take(&mut self.len);
        if len == 0 {
            return;
        }
        let guard = R::pin();
        let Some(batch) = NonNull::new(core::mem::replace(&mut self.batch, ptr::null_mut())) else {
            for thing in &self.few[..len] {
                // SAFETY: they are there; each is unreachable since before, and retired once.
                unsafe {
                    let (ptr, free) = thing.assume_init().thing::<A>();
                    R::retire(&guard, ptr, free);
                }
            }
            return;
        };
        // SAFETY: nobody else knows of the batch; everything in it is unreachable since before.
        unsafe {
            (*batch.as_ptr()).len = len;
            R::retire(&guard, batch.cast(), Self::free);
        }
        self.batches = self.batches.wrapping_add(1);
        if self.batches.is_multiple_of(BATCHES) {
            R::flush(&guard);
        }
    }

    /// Frees the things in a batch, and the batch.
    ///
    /// # Safety
    /// It is one of ours, the caller's alone; the grace period of the things in it is over.
    unsafe fn free(batch: NonNull<()>) {
        let batch = batch.cast::<Batch<T>>().as_ptr();
        // SAFETY: the caller's promise: so many are there.
        unsafe {
            for i in 0..(*batch).len {
                Self::place(batch, i).read().discard::<A>();
            }
            A::deallocate(NonNull::new_unchecked(batch.cast()), INNER_BLOCK);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }
}
