//! Phase four: the store that makes a write visible, and the update of the gaps above it.

use crate::Index;
use crate::node::{AtomicLink, Inner, Link};
use crate::write::plan::build::Item;
use crate::write::plan::{Plan, Publish};

/// Publishes the new nodes and returns the top of the replaced subtree.
pub(in crate::write) fn publish(tree: &AtomicLink, plan: &Plan, new: Item) -> Link {
    match plan.publish {
        Publish::Empty => {
            tree.publish(Link::NULL);
            plan.root
        }
        Publish::Root => {
            tree.publish(new.link);
            plan.root
        }
        Publish::Slot(level) => {
            let step = plan.left.step(level);
            // SAFETY: the plan's path is valid: the node is in the tree.
            let inner = unsafe { step.link.as_inner() };
            let old = inner.child(step.slot);
            inner.publish(step.slot, new.link);
            let step = |level| {
                let step = plan.left.step(level);
                // SAFETY: as above.
                (unsafe { step.link.as_inner() }, step.slot)
            };
            raise_gap(level, plan.left.height(), new.gap, step, Inner::max_gap_with);
            old
        }
    }
}

/// Updates the gaps from `level` upwards in a tree of height `height`, after the gap of the child
/// on the path became `gap`. `step` returns the path. `max_gap` computes the largest gap of a node
/// with one gap changed, and takes an upper bound of the result.
///
/// Stops where nothing changes: usually at once, or one level up. The gaps of a node are searched
/// only if the largest of them became smaller, and only until another gap reaches the bound. The
/// search runs before the new gap is stored, because a SIMD load of a word whose store is pending
/// stalls.
#[cfg_attr(not(unoptimized), inline(always))]
pub(in crate::write) fn raise_gap<'n>(
    level: usize,
    height: usize,
    mut gap: Index,
    step: impl Fn(usize) -> (&'n Inner, usize),
    max_gap: impl Fn(&Inner, (u32, Index), Index) -> Index,
) {
    for level in level..height {
        let (inner, slot) = step(level);
        let before = inner.gap(slot);
        if before == gap {
            return;
        }
        if level + 1 == height {
            inner.set_gap(slot, gap);
            return;
        }
        let (parent, place) = step(level + 1);
        let largest = parent.gap(place);
        if gap >= largest {
            inner.set_gap(slot, gap);
        } else if before == largest {
            // A gap of the last child that is longer than everything before that child is the
            // largest. SAFETY: we are the writer.
            let seps = unsafe { inner.seps() };
            let tail = slot + 1 == seps.len() && slot > 0 && gap > seps.bounds[slot - 1];
            let most = if tail { gap } else { max_gap(inner, (1 << slot, gap), largest) };
            inner.set_gap(slot, gap);
            gap = most;
        } else {
            inner.set_gap(slot, gap);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::MapleTree;
    use crate::descent::{Descent, Pick};

    #[test]
    fn readers_see_the_old_leaf_unchanged() {
        // With concurrent readers a leaf is replaced, not changed: the old leaf on a path stays as
        // it was.
        let tree = MapleTree::<u32, grace::Epoch>::new();
        tree.store_range(10..=19, 1).unwrap();
        let guard = tree.pin();
        let old = tree.core.root.load();
        tree.store_range(12..=13, 2).unwrap();
        assert!(tree.core.root.load() != old);
        let mut path = Descent::new();
        // SAFETY: the guard is older than the write.
        unsafe { path.walk(old, Pick::Index(12)) };
        assert_eq!((path.span().min, path.span().max), (10, 19));
        drop(guard);
    }

    #[test]
    fn the_only_owner_changes_the_leaf_itself() {
        let mut tree = MapleTree::<u32>::new();
        tree.get_mut().store_range(10..=19, 1).unwrap();
        let root = tree.core.root.load();
        tree.get_mut().store_range(10..=12, 2).unwrap();
        assert!(tree.core.root.load() == root);
        assert_eq!(tree.load(&tree.pin(), 12), Some(2));
    }
}
