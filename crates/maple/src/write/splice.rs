//! The end of every write that changes more than one leaf of a parent: new children take the place
//! of old ones, and the gaps above are updated.
//!
//! Beside readers, one store publishes a new parent. It makes the new leaves, the new separators
//! and the new gaps visible together (I1). An exclusive owner may change the parent in place. A
//! leaf that is the root gets a parent.
//!
//! The caller retires what has left the tree, and that comes last: it may run deferred drops, and a
//! drop may panic.

use super::Target;
use super::write_descent::WriteDescent;
use crate::alloc::NodeAlloc;
use crate::entry::Entry;
use crate::node::{Inner, Link, Search, Splice};
use core::ptr::NonNull;
use grace::Reclaim;

impl<E: Entry, R: Reclaim, A: NodeAlloc> Target<'_, E, R, A> {
    /// Replaces children of the leaf's parent. If it is not changed `in_place`, there is a spare
    /// inner node, and the result is the old parent, which has left the tree. Only as many children
    /// as before, or two for one, can take their places; the owner is then exclusive.
    ///
    /// Cost: the parent and two to three lines of each node above it; one release store.
    #[inline(always)]
    pub(super) fn replace_children<S: Search>(
        &mut self,
        search: S,
        descent: &WriteDescent,
        splice: Splice,
        in_place: bool,
    ) -> Option<Link> {
        if descent.height() == 1 {
            let root = self.supplies.nodes.take_inner();
            // SAFETY: the new root is ours alone.
            unsafe {
                splice.items.iter().for_each(|&(end, link, gap)| root.as_ref().push(end, link, gap))
            }
            self.tree.publish(Link::inner(root, 1));
            return None;
        }
        let changed = (1u32 << splice.gone.end) - (1 << splice.gone.start);
        let gap = splice.items.iter().map(|item| item.2).max().unwrap_or(0);
        // SAFETY: the promise of `Target::new`; there are inner nodes. The new parent is ours
        // alone, and the old one does not change; or the owner is alone.
        unsafe {
            let (parent, _) = descent.step(1);
            let above = descent.parent_gap_after(search, changed, gap);
            let old = if !in_place {
                let node = self.supplies.nodes.take_inner_block();
                search.splice(parent, node, descent.parent_end(), splice);
                Some(self.publish_inner(descent, node, 1))
            } else if let (1, &[left, right]) = (splice.gone.len(), splice.items) {
                search.insert(parent, splice.gone.start, [left, right]);
                None
            } else {
                parent.put(splice.gone.start, splice.items);
                None
            };
            descent.settle_parent_gap(search, above);
            old
        }
    }

    /// Publishes a new inner node in place of that of a level. Returns the old one.
    pub(super) fn publish_inner(
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
    pub(super) fn retire_leaf(&mut self, descent: &WriteDescent, parent: Option<Link>) {
        // SAFETY: the promise of `Target::new`; both left the tree.
        unsafe {
            parent.into_iter().for_each(|old| self.supplies.bin.node(old));
            self.supplies.bin.node(descent.leaf());
        }
    }
}
