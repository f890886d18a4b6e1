//! Before a write, the nodes on the path become this tree's own.
//!
//! A duplicate of a tree shares its nodes ([`crate::node`], `refs`). The first write copies the
//! nodes on its path, from the root down. A copy points to the same children, which get one more
//! reference each. So they are shared, until the path is copied down to its end. A copy has the
//! contents of the original. So readers see no change, and a failure half-way leaves a tree with
//! the same contents.
//!
//! Cost without sharing: one load for each node on the path, from a cache line that the descent
//! reads, too. The first write after a duplicate copies one node per level, and increments the
//! reference count of each of its children.

use crate::Index;
use crate::alloc::NodeAlloc;
use crate::entry::Entry;
use crate::error::Error;
use crate::layout::LEAF_SLOTS;
use crate::node::{AtomicLink, Inner, Leaf, Link, child_of};
use crate::write::{Need, Target};
use core::ptr::{self, NonNull};
use grace::Reclaim;

impl<E: Entry, R: Reclaim, A: NodeAlloc> Target<'_, E, R, A> {
    /// Makes the nodes on the path to `index` this tree's own, down to level `floor`. Existing
    /// paths become invalid.
    ///
    /// On error some nodes may have been copied; the tree has the same contents.
    #[cold]
    pub(crate) fn unshare(&mut self, index: Index, floor: usize) -> Result<(), Error> {
        let mut place = self.tree;
        loop {
            let mut link = place.load();
            if link.is_null() || link.level() < floor {
                return Ok(());
            }
            // SAFETY: we are the writer.
            if unsafe { link.refs() }.shared() {
                link = self.copy(place, link)?;
            }
            if link.level() == floor {
                return Ok(());
            }
            // SAFETY: we are the writer; the node stays in the tree while we descend from it.
            let inner = unsafe { link.as_inner() };
            // SAFETY: as above.
            place = inner.place(child_of(unsafe { inner.seps() }, index));
        }
    }

    /// Replaces a shared node by a copy.
    fn copy(&mut self, place: &AtomicLink, old: Link) -> Result<Link, Error> {
        let level = old.level();
        let need =
            if level == 0 { Need { leaves: 1, inners: 0 } } else { Need { leaves: 0, inners: 1 } };
        self.supplies.nodes.fill(need)?;
        let new = if level == 0 {
            // SAFETY: we are the writer.
            let mut body = unsafe { *old.as_leaf().body() };
            // SAFETY: the entries are in the tree.
            let words = unsafe { Copies::<E>::of(&body)? };
            body.replace_words(&words.take());
            Link::leaf(self.supplies.nodes.take_leaf(Leaf::new(body)))
        } else {
            // SAFETY: we are the writer.
            let source = unsafe { old.as_inner() };
            share_children(source)?;
            let node = self.supplies.nodes.take_inner();
            // SAFETY: the copy is ours alone; the source is shared, so it does not change.
            unsafe { node.as_ref().fill_from(source) };
            Link::inner(node, level)
        };
        place.publish(new);
        // SAFETY: the pointer to the original, which owned the reference, has left the tree.
        unsafe { self.supplies.bin.subtree(old) };
        Ok(new)
    }
}

/// Adds one reference to each child of a node.
fn share_children(inner: &Inner) -> Result<(), Error> {
    // SAFETY: we are the writer.
    let len = unsafe { inner.seps() }.len();
    for slot in 0..len {
        // SAFETY: as above.
        if !unsafe { inner.child(slot).refs() }.share() {
            for slot in 0..slot {
                // SAFETY: as above. It is not the last reference: the node itself has one.
                unsafe { inner.child(slot).refs() }.release();
            }
            return Err(Error::OutOfMemory);
        }
    }
    Ok(())
}

/// Duplicates of the entries of a leaf, each at its slot. They are dropped unless they are taken.
pub(crate) struct Copies<E: Entry> {
    words: [*mut (); LEAF_SLOTS],
    _entry: core::marker::PhantomData<E>,
}

impl<E: Entry> Copies<E> {
    /// # Safety
    /// The entries are in a tree, and stay there during the call.
    pub(crate) unsafe fn of(body: &crate::node::Body) -> Result<Self, Error> {
        let mut copies =
            Copies::<E> { words: [ptr::null_mut(); LEAF_SLOTS], _entry: core::marker::PhantomData };
        for slot in 0..body.len() {
            if let Some(raw) = NonNull::new(body.word(slot)) {
                // SAFETY: the caller's promise.
                copies.words[slot] = unsafe { E::try_dup(raw)? }.as_ptr();
            }
        }
        Ok(copies)
    }

    pub(crate) fn take(self) -> [*mut (); LEAF_SLOTS] {
        core::mem::ManuallyDrop::new(self).words
    }
}

impl<E: Entry> Drop for Copies<E> {
    fn drop(&mut self) {
        for word in self.words {
            if let Some(raw) = NonNull::new(word) {
                // SAFETY: the duplicate is ours alone.
                unsafe { crate::entry::drop_raw::<E>(raw) }
            }
        }
    }
}
