//! Nodes and entries that left the tree, collected so that many are retired at once.
//!
//! A batch has a block of its own. The block is retired as one object, and frees its contents after
//! the grace period. The first few objects are kept without a block: a writer that writes once
//! retires them one by one.

use crate::alloc::NodeAlloc;
use crate::layout::INNER_BLOCK;
use crate::node::{Link, free_node};
use crate::write::retire::Thing;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use grace::Reclaim;

/// An object to be freed.
pub(in crate::write) trait Discard: Copy {
    /// # Safety
    /// It left the tree, nothing accesses it any more, and it is freed once.
    unsafe fn discard<A: NodeAlloc>(self);

    /// The object as the pair that an engine takes.
    fn thing<A: NodeAlloc>(self) -> Thing;
}

impl Discard for Thing {
    #[inline(always)]
    unsafe fn discard<A: NodeAlloc>(self) {
        // SAFETY: the caller's promise; the pair holds the function that frees the pointer.
        unsafe { self.1(self.0) }
    }

    fn thing<A: NodeAlloc>(self) -> Thing {
        self
    }
}

/// A node whose contents were taken over. The link knows the kind of the node, and is never null.
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

/// Up to this number, objects need no block.
const FEW: usize = 4;

/// After this number of batches the engine is asked to free what it can. Waiting objects are memory
/// that cannot be reused; an engine that counts objects instead of bytes lets more of it wait than
/// fits in a cache.
const BATCHES: u32 = 4;

/// The collected objects of one kind.
pub(in crate::write) struct Heap<T, A> {
    few: [MaybeUninit<T>; FEW],
    /// The number of objects: in the batch if there is one, otherwise in `few`.
    len: usize,
    /// The batch that is being filled, or null.
    batch: *mut Batch<T>,
    /// The number of batches handed over.
    batches: u32,
    _alloc: PhantomData<A>,
}

/// A block of objects.
#[repr(C)]
struct Batch<T> {
    len: usize,
    things: [MaybeUninit<T>; 0],
}

impl<T: Discard, A: NodeAlloc> Heap<T, A> {
    /// The number of objects that a block holds.
    const MOST: usize = {
        let most = (INNER_BLOCK.size() - size_of::<Batch<T>>()) / size_of::<T>();
        assert!(most > FEW, "a block holds the few objects and one more");
        most
    };

    #[inline(always)]
    pub(in crate::write) const fn new() -> Self {
        let few = [const { MaybeUninit::uninit() }; FEW];
        Heap { few, len: 0, batch: ptr::null_mut(), batches: 0, _alloc: PhantomData }
    }

    /// Adds an object.
    ///
    /// Cost: one or two words written. Per twenty or more objects: one block, one guard and one
    /// retirement.
    ///
    /// # Safety
    /// The object left the tree and has no other owner; `R` is the engine of its readers.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(in crate::write) unsafe fn push<R: Reclaim>(&mut self, thing: T) -> bool {
        if self.batch.is_null() {
            // SAFETY: the caller's promise.
            unsafe { self.push_first::<R>(thing) }
            return false;
        }
        // SAFETY: the batch is ours alone, and not full.
        unsafe { Self::place(self.batch, self.len).write(thing) }
        self.len += 1;
        self.len == Self::MOST && self.flush::<R>()
    }

    /// Adds an object when there is no batch yet.
    ///
    /// # Safety
    /// As for [`Heap::push`].
    #[inline(never)]
    unsafe fn push_first<R: Reclaim>(&mut self, thing: T) {
        if self.len == FEW {
            let Ok(block) = A::allocate(INNER_BLOCK) else {
                // No memory for a batch: retire them one by one.
                self.flush::<R>();
                let (ptr, free) = thing.thing::<A>();
                // SAFETY: the caller's promise.
                return unsafe { R::retire(&R::pin(), ptr, free) };
            };
            self.batch = block.as_ptr().cast();
            for (i, thing) in self.few.iter().enumerate() {
                // SAFETY: all of `few` is initialised, and the block is new and large enough.
                unsafe { Self::place(self.batch, i).write(thing.assume_init()) }
            }
            // SAFETY: the block is large enough for one more.
            unsafe { Self::place(self.batch, FEW).write(thing) }
        } else {
            self.few[self.len].write(thing);
        }
        self.len += 1;
    }

    /// # Safety
    /// The batch is the caller's, and `i` is below [`Heap::MOST`].
    #[inline(always)]
    unsafe fn place(batch: *mut Batch<T>, i: usize) -> *mut T {
        // SAFETY: the caller's promise; objects follow the count, which has the size and alignment
        // of a word.
        unsafe { (&raw mut (*batch).things).cast::<T>().add(i) }
    }

    /// Hands the collected objects to the engine. Returns whether it should free what it can: after
    /// some batches.
    #[cold]
    pub(in crate::write) fn flush<R: Reclaim>(&mut self) -> bool {
        let len = core::mem::take(&mut self.len);
        if len == 0 {
            return false;
        }
        let guard = R::pin();
        let Some(batch) = NonNull::new(core::mem::replace(&mut self.batch, ptr::null_mut())) else {
            for thing in &self.few[..len] {
                // SAFETY: the first `len` are initialised; each is unreachable already, and retired
                // once.
                unsafe {
                    let (ptr, free) = thing.assume_init().thing::<A>();
                    R::retire(&guard, ptr, free);
                }
            }
            return false;
        };
        // SAFETY: the batch is ours alone; everything in it is unreachable already.
        unsafe {
            (*batch.as_ptr()).len = len;
            R::retire(&guard, batch.cast(), Self::free);
        }
        self.batches = self.batches.wrapping_add(1);
        self.batches.is_multiple_of(BATCHES)
    }

    /// Frees the objects in a batch, and the batch.
    ///
    /// # Safety
    /// The batch is the caller's alone, and the grace period of its contents is over.
    unsafe fn free(batch: NonNull<()>) {
        let batch = batch.cast::<Batch<T>>().as_ptr();
        // SAFETY: the caller's promise; `len` objects are initialised.
        unsafe {
            for i in 0..(*batch).len {
                Self::place(batch, i).read().discard::<A>();
            }
            A::deallocate(NonNull::new_unchecked(batch.cast()), INNER_BLOCK);
        }
    }

    pub(in crate::write) fn is_empty(&self) -> bool {
        self.len == 0
    }
}
