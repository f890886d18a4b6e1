//! Nodes, and the tagged pointers between them.
//!
//! Every pointer to a node carries the node's level in its low six bits, which the 64-byte
//! alignment of nodes leaves free. A leaf has level 0. So one word describes a subtree, and one
//! store of that word publishes a root together with its height.

mod change;
mod edit;
mod few;
mod holes;
mod inner;
mod leaf;
mod load;
mod pack;
mod reform;
mod refs;
mod search;
mod seek;
// SIMD where it may be used: not in kernels, and not under checkers that do not support it.
#[cfg_attr(
    not(all(
        target_arch = "x86_64",
        not(any(miri, loom, fuzzing, samara_small_nodes)),
        any(feature = "std", target_feature = "avx2"),
    )),
    path = "node/no_simd.rs"
)]
mod simd;
mod spot;
mod unpack;

pub(crate) use change::{Bound, Change, Run, words};
pub(crate) use edit::{Edit, Fit};
#[cfg(not(loom))]
pub(crate) use few::copy_up;
pub(crate) use inner::{Inner, Item, Splice};
pub(crate) use leaf::{Body, Leaf, Slot};
pub(crate) use load::{Job, Search, load, run};
pub(crate) use pack::{Slots, cut, pack};
pub(crate) use seek::{at_or_after, at_or_before, lookup, walk, walk_open};
pub(crate) use spot::{After, Aim, At, AtOrAfter, AtOrBefore, Before, Spot};
pub(crate) use unpack::{LANES, Unpacked};

use crate::alloc::NodeAlloc;
use crate::layout::{INNER_BLOCK, LEAF_BLOCK};
use crate::sync::{AtomicPtr, Ordering};
use core::mem::offset_of;
use core::ptr::{self, NonNull};
use refs::Refs;

const LEVEL: usize = 63;

/// A pointer to a node, tagged with its level. Null stands for a subtree that is one hole.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Link(*mut ());

impl Link {
    pub(crate) const NULL: Link = Link(ptr::null_mut());

    pub(crate) fn leaf(node: NonNull<Leaf>) -> Link {
        Link(node.as_ptr().cast())
    }

    #[inline(always)]
    pub(crate) fn to_leaf(node: *mut Leaf) -> Link {
        Link(node.cast())
    }

    pub(crate) fn inner(node: NonNull<Inner>, level: usize) -> Link {
        debug_assert!(0 < level && level <= LEVEL);
        Link(node.as_ptr().cast::<()>().map_addr(|addr| addr | level))
    }

    /// The link as a word, with its tag; `None` for null.
    pub(crate) fn tagged(self) -> Option<NonNull<()>> {
        NonNull::new(self.0)
    }

    pub(crate) fn from_tagged(word: NonNull<()>) -> Link {
        Link(word.as_ptr())
    }

    pub(crate) fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The node's level; 0 for a leaf.
    #[inline(always)]
    pub(crate) fn level(self) -> usize {
        self.0.addr() & LEVEL
    }

    /// The node's address, without the tag.
    #[inline(always)]
    pub(crate) fn node(self) -> *mut () {
        self.0.map_addr(|addr| addr & !LEVEL)
    }

    /// # Safety
    /// The link is to a leaf that stays allocated for `'a`.
    #[inline(always)]
    pub(crate) unsafe fn as_leaf<'a>(self) -> &'a Leaf {
        debug_assert!(!self.is_null() && self.level() == 0);
        // SAFETY: the caller's promise; a leaf's tag is zero.
        unsafe { &*self.0.cast::<Leaf>() }
    }

    /// # Safety
    /// The link is to an inner node that stays allocated for `'a`.
    #[inline(always)]
    pub(crate) unsafe fn as_inner<'a>(self) -> &'a Inner {
        debug_assert!(self.level() != 0);
        // SAFETY: the caller's promise; `node` removes the tag.
        unsafe { &*self.node().cast::<Inner>() }
    }

    /// The number of slots of a leaf, or of children of an inner node.
    ///
    /// # Safety
    /// The node stays allocated, and unchanged, during the call.
    pub(crate) unsafe fn len(self) -> usize {
        if self.level() == 0 {
            // SAFETY: the caller's promise.
            unsafe { self.as_leaf().body().len() }
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.as_inner().seps().len() }
        }
    }

    /// Prefetches a leaf.
    #[inline(always)]
    pub(crate) fn prefetch(self) {
        for line in 0..4 {
            prefetch(self.0.cast_const().wrapping_byte_add(64 * line));
        }
    }

    /// Prefetches a leaf's reference count.
    #[inline(always)]
    pub(crate) fn prefetch_refs(self) {
        prefetch(self.0.cast_const().wrapping_byte_add(offset_of!(Leaf, refs)));
    }

    /// The node's reference count: the number of its parents.
    ///
    /// # Safety
    /// The node stays allocated while the reference is used.
    #[inline(always)]
    pub(crate) unsafe fn refs<'a>(self) -> &'a Refs {
        if self.level() == 0 {
            // SAFETY: the caller's promise.
            unsafe { &self.as_leaf().refs }
        } else {
            // SAFETY: the caller's promise.
            unsafe { self.as_inner() }.refs()
        }
    }

    /// The function that frees the node's memory (and nothing it points to), given [`Link::node`].
    pub(crate) fn free_fn<A: NodeAlloc>(self) -> unsafe fn(NonNull<()>) {
        if self.level() == 0 { free_leaf::<A> } else { free_inner::<A> }
    }
}

/// Prefetches a cache line. Never faults.
///
/// In assembly: a kernel build disables vector registers, and then the intrinsic is not available.
/// The instruction itself uses no vector register.
#[inline(always)]
pub(crate) fn prefetch<T>(place: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a hint, valid for any address; it has no effect that a program can observe.
    unsafe {
        core::arch::asm!(
            "prefetcht0 byte ptr [{}]",
            in(reg) place.addr(),
            options(nomem, nostack, preserves_flags)
        );
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = place;
}

/// Frees a node's memory, but not the nodes that it points to.
///
/// # Safety
/// The block came from `A`, and there is no other user of the node.
#[inline(always)]
pub(crate) unsafe fn free_node<A: NodeAlloc>(link: Link) {
    if let Some(node) = NonNull::new(link.node()) {
        // SAFETY: the caller's promise.
        unsafe { if link.level() == 0 { free_leaf::<A>(node) } else { free_inner::<A>(node) } }
    }
}

#[inline(always)]
unsafe fn free_leaf<A: NodeAlloc>(node: NonNull<()>) {
    // SAFETY: the caller owns the leaf alone; under loom, `get_mut` checks that.
    unsafe {
        let leaf = node.cast::<Leaf>();
        leaf.as_ref().body_mut();
        ptr::drop_in_place(leaf.as_ptr());
        A::deallocate(node.cast(), LEAF_BLOCK);
    }
}

unsafe fn free_inner<A: NodeAlloc>(node: NonNull<()>) {
    // SAFETY: the caller owns the inner node alone; under loom, `get_mut` checks that.
    unsafe {
        let inner = node.cast::<Inner>();
        inner.as_ref().seps_mut();
        ptr::drop_in_place(inner.as_ptr());
        A::deallocate(node.cast(), INNER_BLOCK);
    }
}

/// A [`Link`] that readers load while a writer stores it.
pub(crate) struct AtomicLink(AtomicPtr<()>);

#[cfg(loom)]
impl crate::sync::Copied for AtomicLink {
    fn copy_of(&self, other: &Self) {
        self.publish(other.load());
    }
}

impl AtomicLink {
    #[cfg(not(loom))]
    pub(crate) const fn new(link: Link) -> Self {
        AtomicLink(AtomicPtr::new(link.0))
    }

    #[cfg(loom)]
    pub(crate) fn new(link: Link) -> Self {
        AtomicLink(AtomicPtr::new(link.0))
    }

    #[inline(always)]
    pub(crate) fn load(&self) -> Link {
        // Acquire: pairs with the Release of `publish`. A reader that sees the link sees the
        // contents that the writer gave the node before.
        Link(self.0.load(Ordering::Acquire))
    }

    /// Makes a finished node visible to readers.
    #[inline(always)]
    pub(crate) fn publish(&self, link: Link) {
        // Release: pairs with the Acquire of `load`; the writer filled the node before this store.
        self.0.store(link.0, Ordering::Release);
    }
}
