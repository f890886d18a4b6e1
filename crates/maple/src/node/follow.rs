//! From a link to the node, and back.

use super::inner::Inner;
use super::leaf::Leaf;
use super::link::Link;
use super::prefetch::prefetch;
use super::refs::Refs;
use crate::alloc::NodeAlloc;
use crate::layout::{INNER_BLOCK, LEAF_BLOCK};
use core::mem::offset_of;
use core::ptr::{self, NonNull};

impl Link {
    pub(crate) fn leaf(node: NonNull<Leaf>) -> Link {
        Link::new(node.as_ptr().cast(), 0)
    }

    #[inline(always)]
    pub(crate) fn to_leaf(node: *mut Leaf) -> Link {
        Link::new(node.cast(), 0)
    }

    pub(crate) fn inner(node: NonNull<Inner>, level: usize) -> Link {
        debug_assert!(level > 0);
        Link::new(node.as_ptr().cast(), level)
    }

    /// # Safety
    /// The link is to a leaf that stays allocated for `'a`.
    #[inline(always)]
    pub(crate) unsafe fn as_leaf<'a>(self) -> &'a Leaf {
        debug_assert!(!self.is_null() && self.level() == 0);
        // SAFETY: the caller's promise; a leaf's tag is zero.
        unsafe { &*self.word().cast::<Leaf>() }
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
            prefetch(self.word().cast_const().wrapping_byte_add(64 * line));
        }
    }

    /// Prefetches a leaf's reference count.
    #[inline(always)]
    pub(crate) fn prefetch_refs(self) {
        prefetch(self.word().cast_const().wrapping_byte_add(offset_of!(Leaf, refs)));
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
