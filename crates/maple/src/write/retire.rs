//! Phase five: what a write replaced is handed to the grace period.
//!
//! Two things happen to replaced nodes. Those at the ends of the range were *taken over*: what they held is in
//! the new nodes now, so only their memory goes. Whole subtrees between them are *let go*: one reference less,
//! and if that was the last, all that hangs below goes too. A subtree is let go as one, however large.
//!
//! The work goes from the top down, so that even an owner who frees at once has read a node before it is freed.

use super::Removed;
use super::plan::Plan;
use crate::alloc::NodeAlloc;
use crate::entry::{Entry, Raw, drop_raw};
use crate::layout::INNER_BLOCK;
use crate::node::{Body, Link, free_leaf};
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ops::Range;
use core::ptr::{self, NonNull};
use grace::Reclaim;

/// How memory leaves the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Disposal {
    /// Readers may look: after a grace period. Only trees over a [`grace::Concurrent`] engine.
    Deferred,
    /// Nobody else looks: at once.
    Exclusive,
}

/// Takes what leaves the tree. What is deferred is collected, and handed over to the engine many at a time:
/// when the batch is full, and when the bin is dropped, which is with its writer.
///
/// Cost of a thing deferred: two words written; for every twenty of them one block, one guard and one
/// retirement. A few are handed over one by one, under one guard, without a block.
pub(crate) struct Bin<E: Entry, R: Reclaim, A: NodeAlloc> {
    disposal: Disposal,
    /// The first few things, as long as there is no batch.
    few: [MaybeUninit<Thing>; FEW],
    len: usize,
    /// The batch being filled, or null.
    batch: *mut Batch,
    #[allow(clippy::type_complexity)]
    _kinds: PhantomData<fn() -> (E, R, A)>,
}

/// Something to be freed, and what frees it.
type Thing = (NonNull<()>, unsafe fn(NonNull<()>));

/// Things to be freed together, in a block of their own.
#[repr(C)]
struct Batch {
    len: usize,
    things: [MaybeUninit<Thing>; BATCH],
}

/// As many as are not worth a block.
const FEW: usize = 4;

/// As many as an inner node's block takes.
const BATCH: usize = (INNER_BLOCK.size() - size_of::<usize>()) / size_of::<(usize, usize)>();
const _: () = assert!(size_of::<Batch>() <= INNER_BLOCK.size());

/// Frees the things in a batch, and the batch.
///
/// # Safety
/// It is a batch from a block of `A`, the caller's alone; the grace period of the things in it is over.
unsafe fn free_batch<A: NodeAlloc>(batch: NonNull<()>) {
    let mut batch = batch.cast::<Batch>();
    // SAFETY: the caller's promise.
    let Batch { len, things } = unsafe { batch.as_mut() };
    for thing in &things[..*len] {
        // SAFETY: the first `len` are written; each was put there with what frees it.
        unsafe {
            let (ptr, free) = thing.assume_init();
            free(ptr);
        }
    }
    // SAFETY: the caller's promise.
    unsafe { A::deallocate(batch.cast(), INNER_BLOCK) }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Bin<E, R, A> {
    pub(crate) const fn new(disposal: Disposal) -> Self {
        let few = [const { MaybeUninit::uninit() }; FEW];
        Bin { disposal, few, len: 0, batch: ptr::null_mut(), _kinds: PhantomData }
    }

    /// Whether things are freed at once: nobody else looks.
    #[inline(always)]
    pub(crate) fn is_exclusive(&self) -> bool {
        self.disposal == Disposal::Exclusive
    }

    /// # Safety
    /// The thing is unreachable, nobody looks at it if disposal is exclusive, and `free` fits it.
    #[inline]
    unsafe fn dispose(&mut self, ptr: NonNull<()>, free: unsafe fn(NonNull<()>)) {
        if self.is_exclusive() {
            // SAFETY: the caller's promise.
            return unsafe { free(ptr) };
        }
        if self.batch.is_null() {
            if self.len < FEW {
                self.few[self.len].write((ptr, free));
                self.len += 1;
                return;
            }
            let Ok(block) = A::allocate(INNER_BLOCK) else {
                // No memory for a batch: one by one, then.
                self.flush();
                // SAFETY: the caller's promise.
                return unsafe { R::retire(&R::pin(), ptr, free) };
            };
            self.batch = block.as_ptr().cast();
            // SAFETY: the block is new, and large enough for what there is.
            unsafe {
                (&raw mut (*self.batch).things).cast::<[MaybeUninit<Thing>; FEW]>().write(self.few);
                (&raw mut (*self.batch).len).write(self.len);
            }
            self.len = 0;
        }
        // SAFETY: the batch is ours alone.
        let batch = unsafe { &mut *self.batch };
        batch.things[batch.len].write((ptr, free));
        batch.len += 1;
        if batch.len == BATCH {
            self.flush();
        }
    }

    /// Hands over what has been collected.
    #[cold]
    fn flush(&mut self) {
        let guard = R::pin();
        if let Some(batch) = NonNull::new(core::mem::replace(&mut self.batch, ptr::null_mut())) {
            // SAFETY: everything in it is unreachable since before; nobody else knows of the batch.
            unsafe { R::retire(&guard, batch.cast(), free_batch::<A>) }
        }
        for thing in &self.few[..core::mem::take(&mut self.len)] {
            // SAFETY: the first `len` are written; each is unreachable since before, and retired once.
            unsafe {
                let (ptr, free) = thing.assume_init();
                R::retire(&guard, ptr, free);
            }
        }
    }

    /// Takes an entry.
    ///
    /// # Safety
    /// It has left the tree, and nobody else has it.
    pub(crate) unsafe fn entry(&mut self, raw: Raw) {
        // SAFETY: the caller's promise.
        unsafe { self.dispose(raw, drop_raw::<E>) }
    }

    /// Takes the memory of a node whose contents were taken over.
    ///
    /// # Safety
    /// It has left the tree and was not shared.
    pub(crate) unsafe fn node(&mut self, link: Link) {
        if let Some(node) = NonNull::new(link.node()) {
            // SAFETY: the caller's promise.
            debug_assert!(!unsafe { link.refs() }.shared(), "a shared node is freed");
            // SAFETY: the caller's promise.
            unsafe { self.dispose(node, link.free_fn::<A>()) }
        }
    }

    /// As [`Bin::node`], for a leaf.
    ///
    /// # Safety
    /// As for [`Bin::node`].
    #[inline(always)]
    pub(super) unsafe fn leaf(&mut self, link: Link) {
        // SAFETY: the caller's promise.
        debug_assert!(!unsafe { link.refs() }.shared(), "a shared leaf is freed");
        if let Some(leaf) = link.tagged() {
            // SAFETY: the caller's promise; a leaf's tag is zero.
            unsafe { self.dispose(leaf, free_leaf::<A>) }
        }
    }

    /// Takes a reference to a subtree.
    ///
    /// # Safety
    /// The reference has left the tree.
    pub(crate) unsafe fn subtree(&mut self, link: Link) {
        let Some(tagged) = link.tagged() else { return };
        // SAFETY: the caller's promise.
        unsafe { self.dispose(tagged, let_go::<E, A>) };
        if link.level() > 0 && !self.is_exclusive() {
            // Much may hang on it: not to wait until many such have come together.
            self.flush();
            R::flush(&R::pin());
        }
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Drop for Bin<E, R, A> {
    #[inline]
    fn drop(&mut self) {
        if !self.batch.is_null() || self.len > 0 {
            self.flush();
        }
    }
}

/// Takes away one reference to a subtree, and frees it if that was the last.
///
/// # Safety
/// The word is that of a link to a node of a tree of this kind; the reference is the caller's, and no reader
/// that it stood for is left.
unsafe fn let_go<E: Entry, A: NodeAlloc>(tagged: NonNull<()>) {
    let link = Link::from_tagged(tagged);
    // SAFETY: the caller's reference keeps the node.
    if !unsafe { link.refs() }.release() {
        return;
    }
    if link.level() == 0 {
        if E::NEEDS_DROP {
            // SAFETY: the leaf is ours alone.
            let body = unsafe { *link.as_leaf().body() };
            for slot in 0..body.len() {
                if let Some(raw) = NonNull::new(body.word(slot)) {
                    // SAFETY: the entries go with the leaf.
                    unsafe { drop_raw::<E>(raw) }
                }
            }
        }
    } else {
        // SAFETY: the node is ours alone.
        let inner = unsafe { link.as_inner() };
        // SAFETY: as above.
        for slot in 0..unsafe { inner.seps() }.len() {
            if let Some(child) = inner.child(slot).tagged() {
                // As deep as the tree is high.
                // SAFETY: the reference to the child was the node's.
                unsafe { let_go::<E, A>(child) }
            }
        }
    }
    if let Some(node) = NonNull::new(link.node()) {
        // SAFETY: nobody looks at the node any more.
        unsafe { link.free_fn::<A>()(node) }
    }
}

/// Retires what the plan replaced. `old` is the top of the replaced subtree.
///
/// # Safety
/// The plan is published, and its nodes are not retired yet; for [`Disposal::Exclusive`], no reader
/// exists.
pub(super) unsafe fn retire<E: Entry, R: Reclaim, A: NodeAlloc>(
    bin: &mut Bin<E, R, A>,
    plan: &Plan,
    old: Link,
    removed: Removed,
) {
    for height in (0..=old.level()).rev() {
        for (link, slots) in plan.taken_over(height) {
            if link.is_null() {
                continue;
            }
            if height > 0 {
                // SAFETY: the caller's promise.
                unsafe { children(bin, plan, link, slots, removed) }
            } else if E::NEEDS_DROP && removed == Removed::Drop && !slots.is_empty() {
                // SAFETY: as above.
                unsafe { covered(bin, plan, link.as_leaf().body(), slots, link) }
            }
            // SAFETY: as above; what is taken over is not shared.
            unsafe { bin.node(link) }
        }
    }
}

/// Retires the replaced children of a node, but for those that were taken over: their turn comes.
///
/// # Safety
/// As for [`retire`]; the node is still allocated.
unsafe fn children<E: Entry, R: Reclaim, A: NodeAlloc>(
    bin: &mut Bin<E, R, A>,
    plan: &Plan,
    link: Link,
    slots: Range<usize>,
    removed: Removed,
) {
    // SAFETY: the caller's promise.
    let inner = unsafe { link.as_inner() };
    for slot in slots {
        let child = inner.child(slot);
        if plan.taken_over(child.level()).iter().any(|(taken, _)| *taken == child) {
            continue;
        }
        if plan.on_the_way(child) {
            // A sibling from beyond took its place at the end of the range: below it, there is something that
            // was taken over.
            // SAFETY: the caller's promise.
            unsafe {
                children(bin, plan, child, 0..child.len(), removed);
                bin.node(child);
            }
        } else if removed == Removed::Keep {
            // The one entry removed was alone in its leaf, with holes on either side.
            debug_assert!(child.level() == 0);
            // SAFETY: the caller's promise; the entry is somebody's, and the leaf was on the way to it.
            unsafe { bin.node(child) }
        } else {
            // SAFETY: the caller's promise.
            unsafe { bin.subtree(child) }
        }
    }
}

/// Retires the entries of a leaf that the plan removed.
///
/// # Safety
/// They have left the tree.
unsafe fn covered<E: Entry, R: Reclaim, A: NodeAlloc>(
    bin: &mut Bin<E, R, A>,
    plan: &Plan,
    body: &Body,
    slots: Range<usize>,
    leaf: Link,
) {
    let [left, right] = plan.kept();
    for slot in slots {
        // The slot of which a rest stays is still somebody's.
        if (leaf, slot) != left
            && (leaf, slot) != right
            && let Some(raw) = NonNull::new(body.word(slot))
        {
            // SAFETY: the caller's promise; each word is one entry.
            unsafe { bin.entry(raw) }
        }
    }
}
