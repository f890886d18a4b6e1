//! The tagged pointers between nodes.
//!
//! Every pointer to a node carries the node's level in its low six bits, which the 64-byte
//! alignment of nodes leaves free. A leaf has level 0. So one word describes a subtree, and one
//! store of that word publishes a root together with its height.

use crate::sync::{AtomicPtr, Ordering};
use core::ptr::{self, NonNull};

const LEVEL: usize = 63;

/// A pointer to a node, tagged with its level. Null stands for a subtree that is one hole.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Link(*mut ());

impl Link {
    pub(crate) const NULL: Link = Link(ptr::null_mut());

    /// A link to a node of this level.
    #[inline(always)]
    pub(super) fn new(node: *mut (), level: usize) -> Link {
        debug_assert!(level <= LEVEL);
        Link(node.map_addr(|addr| addr | level))
    }

    /// The word. That of a leaf is its address.
    #[inline(always)]
    pub(super) fn word(self) -> *mut () {
        self.0
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
