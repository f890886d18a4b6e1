//! Duplicates of a tree.
//!
//! If entries are shared pointers or plain values ([`Entry::SHARES`]), the duplicate shares the
//! nodes: the root gets one more reference, whatever the size. The first write to a shared node
//! copies it.
//!
//! Other entries must be duplicated one by one. The duplicate gets new nodes with its own entries.
//! Nodes are copied from the bottom up: an inner node is added to its parent only when all of its
//! children are copied. So at a failure, the copied nodes are all below the inner nodes of one
//! path. Each of these has as many complete children as its length says, and can be freed like any
//! subtree.

use super::Copies;
use crate::Index;
use crate::alloc::NodeAlloc;
use crate::entry::Entry;
use crate::error::Error;
use crate::layout::MAX_HEIGHT;
use crate::node::{Inner, Leaf, Link};
use crate::write::{Bin, Disposal, Need, Reserve};
use core::ptr::NonNull;
use grace::Reclaim;

/// The inner nodes that are being copied: one per level, from the root down.
struct Copying<E: Entry, R: Reclaim, A: NodeAlloc> {
    /// The source and the copy of each level above the leaves. The levels in use reach up to the
    /// root's.
    nodes: [Option<(Link, NonNull<Inner>)>; MAX_HEIGHT],
    spare: Reserve<A>,
    _kinds: core::marker::PhantomData<fn() -> (E, R)>,
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Drop for Copying<E, R, A> {
    /// Frees the nodes whose copies are not complete.
    fn drop(&mut self) {
        for level in 1..MAX_HEIGHT {
            let Some((_, copy)) = self.nodes[level].take() else { continue };
            let link = Link::inner(copy, level);
            // SAFETY: the copy is ours alone, and each child that it counts is complete. Freeing
            // does not read the bounds.
            unsafe {
                if link.len() == 0 {
                    link.free_fn::<A>()(copy.cast());
                } else {
                    Bin::<E, R, A>::new(Disposal::Exclusive).subtree(link);
                }
            }
        }
    }
}

/// Duplicates the tree below `root`.
///
/// # Safety
/// The caller is the writer.
pub(crate) unsafe fn duplicate<E: Entry, R: Reclaim, A: NodeAlloc>(
    root: Link,
) -> Result<Link, Error> {
    if root.is_null() {
        return Ok(Link::NULL);
    }
    if E::SHARES {
        // SAFETY: the caller's promise.
        return if unsafe { root.refs() }.share() { Ok(root) } else { Err(Error::OutOfMemory) };
    }
    let mut copying = Copying::<E, R, A> {
        nodes: [None; MAX_HEIGHT],
        spare: Reserve::new(),
        _kinds: core::marker::PhantomData,
    };
    if root.level() == 0 {
        // SAFETY: the caller's promise.
        return unsafe { copying.leaf(root) };
    }
    let mut level = root.level();
    copying.open(root, level)?;
    loop {
        let Some((source, copy)) = copying.nodes[level] else { unreachable!("opened before") };
        // SAFETY: the caller's promise, and the copy is ours.
        let (from, to) = unsafe { (source.as_inner(), copy.as_ref()) };
        // SAFETY: as above.
        let (seps, slot) = unsafe { (from.seps(), to.seps().len()) };
        let finished = if slot == seps.len() {
            copying.nodes[level] = None;
            if level == root.level() {
                return Ok(Link::inner(copy, level));
            }
            level += 1;
            Link::inner(copy, level - 1)
        } else {
            let child = from.child(slot);
            if level > 1 {
                level -= 1;
                copying.open(child, level)?;
                continue;
            }
            // SAFETY: the caller's promise.
            unsafe { copying.leaf(child)? }
        };
        let Some((source, copy)) = copying.nodes[level] else { unreachable!("opened before") };
        // SAFETY: as above.
        unsafe {
            let (from, to) = (source.as_inner(), copy.as_ref());
            let slot = to.seps().len();
            // The bound as it is stored: the last child of a full node has none.
            let end = from.seps().bounds.get(slot).copied().unwrap_or(Index::MAX);
            to.push(end, finished, from.gap(slot));
        }
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Copying<E, R, A> {
    /// Starts the copy of an inner node, without children.
    fn open(&mut self, source: Link, level: usize) -> Result<(), Error> {
        self.spare.fill(Need { leaves: 0, inners: 1 })?;
        self.nodes[level] = Some((source, self.spare.take_inner()));
        Ok(())
    }

    /// Copies a leaf and duplicates its entries.
    ///
    /// # Safety
    /// The caller is the writer.
    unsafe fn leaf(&mut self, source: Link) -> Result<Link, Error> {
        self.spare.fill(Need { leaves: 1, inners: 0 })?;
        // SAFETY: the caller's promise.
        let mut body = unsafe { *source.as_leaf().body() };
        // SAFETY: as above.
        let words = unsafe { Copies::<E>::of(&body)? };
        body.replace_words(&words.take());
        Ok(Link::leaf(self.spare.take_leaf(Leaf::new(body))))
    }
}
