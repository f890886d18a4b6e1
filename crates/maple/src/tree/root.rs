//! The common part of all kinds of trees: the root, and the reads.

use crate::Index;
use crate::alloc::NodeAlloc;
use crate::descent;
use crate::entry::Entry;
use crate::iter::hit;
use crate::node::{AtomicLink, Link};
use crate::write::{Bin, Disposal};
use core::marker::PhantomData;
use core::ops::RangeInclusive;
use core::ptr::NonNull;
// The atomic of `core`, not that of `sync`: it orders nothing.
use core::sync::atomic::{AtomicBool, Ordering};
use grace::Reclaim;

/// The root, and the state that goes with it in every kind of tree.
pub(crate) struct Core<E: Entry, R: Reclaim, A: NodeAlloc> {
    pub(crate) root: AtomicLink,
    /// Whether a cyclic allocation took the largest index, so that the next one starts from the
    /// beginning. Only writers access it, and write it so rarely that it may share the root's cache
    /// line.
    pub(crate) wrapped: AtomicBool,
    _kinds: PhantomData<(*mut E, R, A)>,
}

// SAFETY: the tree owns its entries, which are `Send`; nodes may be freed from any thread.
unsafe impl<E: Entry, R: Reclaim, A: NodeAlloc> Send for Core<E, R, A> {}
// SAFETY: a shared tree gives out shared references to its entries, which are `Sync`. Writers move
// entries in and out from any thread; entries are `Send`, and a writer holds the lock. Readers read
// nodes concurrently with a writer as the module `descent` explains.
unsafe impl<E: Entry, R: Reclaim, A: NodeAlloc> Sync for Core<E, R, A> {}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Core<E, R, A> {
    #[cfg(not(loom))]
    pub(crate) const fn new(root: Link) -> Self {
        Core { root: AtomicLink::new(root), wrapped: AtomicBool::new(false), _kinds: PhantomData }
    }

    #[cfg(loom)]
    pub(crate) fn new(root: Link) -> Self {
        Core { root: AtomicLink::new(root), wrapped: AtomicBool::new(false), _kinds: PhantomData }
    }

    /// The entry at an index: the fast path of all reads.
    ///
    /// # Safety
    /// The nodes and entries of this tree stay allocated for `'g`: the caller holds a guard or is
    /// the writer.
    #[inline]
    pub(crate) unsafe fn load<'g>(&self, index: Index) -> Option<E::Ref<'g>> {
        let root = self.root.load();
        if root.is_null() {
            return None;
        }
        // SAFETY: the caller's promise; the word is an entry of the tree.
        unsafe { NonNull::new(crate::node::load(root, index)).map(|raw| E::borrow(raw)) }
    }

    /// # Safety
    /// As for [`Core::load`].
    #[inline]
    pub(crate) unsafe fn lookup<'g>(
        &self,
        index: Index,
    ) -> Option<(RangeInclusive<Index>, E::Ref<'g>)> {
        let root = self.root.load();
        if root.is_null() {
            return None;
        }
        // SAFETY: the caller's promise.
        unsafe { hit::<E>(descent::lookup(root, index)) }
    }

    /// # Safety
    /// As for [`Core::load`].
    #[inline]
    pub(crate) unsafe fn find<'g>(
        &self,
        bounds: RangeInclusive<Index>,
    ) -> Option<(RangeInclusive<Index>, E::Ref<'g>)> {
        let root = self.root.load();
        if bounds.is_empty() || root.is_null() {
            return None;
        }
        // SAFETY: the caller's promise.
        let found = unsafe { descent::at_or_after(root, *bounds.start(), *bounds.end()) };
        if found.min > *bounds.end() {
            return None;
        }
        // SAFETY: the caller's promise; the span is from the tree.
        unsafe { hit::<E>(found) }
    }

    /// # Safety
    /// As for [`Core::load`].
    #[inline]
    pub(crate) unsafe fn find_rev<'g>(
        &self,
        bounds: RangeInclusive<Index>,
    ) -> Option<(RangeInclusive<Index>, E::Ref<'g>)> {
        let root = self.root.load();
        if bounds.is_empty() || root.is_null() {
            return None;
        }
        // SAFETY: the caller's promise.
        let found = unsafe { descent::at_or_before(root, *bounds.end(), *bounds.start()) };
        if found.max < *bounds.start() {
            return None;
        }
        // SAFETY: the caller's promise; the span is from the tree.
        unsafe { hit::<E>(found) }
    }

    pub(crate) fn wrapped(&self) -> bool {
        // Relaxed: only writers access it, and the lock orders them.
        self.wrapped.load(Ordering::Relaxed)
    }

    pub(crate) fn set_wrapped(&self, wrapped: bool) {
        // Relaxed: as above.
        self.wrapped.store(wrapped, Ordering::Relaxed);
    }

    pub(crate) fn height(&self) -> usize {
        let root = self.root.load();
        if root.is_null() { 0 } else { root.level() + 1 }
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Drop for Core<E, R, A> {
    fn drop(&mut self) {
        // SAFETY: the tree is ours alone, and every reference into it borrows it.
        unsafe { Bin::<E, R, A>::new(Disposal::Exclusive).subtree(self.root.load()) }
    }
}
