//! The end of every write that changes more than one leaf of a parent: new children take the place
//! of old ones, and the gaps above are updated.
//!
//! With concurrent readers, one store publishes a new parent. It makes the new leaves, the new
//! separators and the new gaps visible together (I1). An exclusive owner may change the parent in
//! place. A leaf that is the root gets a parent.
//!
//! The caller retires what has left the tree, and that comes last: it may run deferred drops, and a
//! drop may panic.

use crate::alloc::NodeAlloc;
use crate::entry::Entry;
use crate::node::{Inner, Link, Search, Splice};
use crate::write::Target;
use crate::write::descent::WriteDescent;
use core::ptr::NonNull;
use grace::Reclaim;

impl<E: Entry, R: Reclaim, A: NodeAlloc> Target<'_, E, R, A> {
    /// As [`Target::replace_at`] for children of the leaf's parent, and updates the gaps above it.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(in crate::write) fn replace_children<S: Search>(
        &mut self,
        search: S,
        descent: &WriteDescent,
        splice: Splice,
        in_place: bool,
    ) -> Option<Link> {
        if descent.height() == 1 {
            return self.replace_at(search, descent, 1, splice, in_place);
        }
        let changed = (1u32 << splice.gone.end) - (1 << splice.gone.start);
        let gap = splice.items.iter().map(|item| item.2).max().unwrap_or(0);
        // SAFETY: the promise of `Target::new`; there is a parent.
        let above = unsafe { descent.parent_gap_after(search, changed, gap) };
        let old = self.replace_at(search, descent, 1, splice, in_place);
        // SAFETY: as above.
        unsafe { descent.settle_parent_gap(search, above) }
        old
    }

    /// Replaces children of the node at a level of the path, or the root below it, which gets a
    /// parent. If the node is not changed `in_place`, there is a spare inner node, and the result
    /// is the old one, which has left the tree. Only as many children as before, or two for one,
    /// can take their places; the owner is then exclusive. The gaps above stay.
    ///
    /// Cost: the node's lines, and one release store.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(in crate::write) fn replace_at<S: Search>(
        &mut self,
        search: S,
        descent: &WriteDescent,
        level: usize,
        splice: Splice,
        in_place: bool,
    ) -> Option<Link> {
        if descent.height() == level {
            let root = self.supplies.nodes.take_inner();
            // SAFETY: the new root is ours alone.
            unsafe {
                splice.items.iter().for_each(|&(end, link, gap)| root.as_ref().push(end, link, gap))
            }
            self.tree.publish(Link::inner(root, level));
            return None;
        }
        // SAFETY: the promise of `Target::new`; there is a node at this level. The new node is ours
        // alone, and the old one does not change; or the owner is alone.
        unsafe {
            let (old, _) = descent.step(level);
            if !in_place {
                let node = self.supplies.nodes.take_inner_block();
                search.splice(old, node, descent.end(level), splice);
                return Some(self.publish_inner(descent, node, level));
            }
            if let (1, &[left, right]) = (splice.gone.len(), splice.items) {
                search.insert(old, splice.gone.start, [left, right]);
            } else {
                old.put(splice.gone.start, splice.items);
            }
            None
        }
    }

    /// Publishes a new inner node in place of that of a level. Returns the old one.
    fn publish_inner(
        &mut self,
        descent: &WriteDescent,
        node: NonNull<Inner>,
        level: usize,
    ) -> Link {
        let link = Link::inner(node, level);
        // SAFETY: the promise of `Target::new`.
        unsafe {
            let old = descent.link(level);
            if descent.height() == level + 1 {
                self.tree.publish(link);
            } else {
                let (above, slot) = descent.step(level + 1);
                above.publish(slot, link);
            }
            old
        }
    }

    /// Retires a parent that [`Target::replace_children`] has replaced, and then the leaf.
    pub(in crate::write) fn retire_leaf(&mut self, descent: &WriteDescent, parent: Option<Link>) {
        // SAFETY: the promise of `Target::new`; both left the tree.
        unsafe {
            parent.into_iter().for_each(|old| self.supplies.bin.node(old));
            self.supplies.bin.node(descent.leaf());
        }
    }
}
