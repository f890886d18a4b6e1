//! Room for one more child: before a leaf below a full inner node is split, that node is split, or
//! gives children to a sibling.
//!
//! This changes nothing that readers can see. The full nodes are split one by one, from the highest
//! down, and the write starts again after each. So a failure half-way leaves a valid tree with the
//! same contents (I7).

use crate::Index;
use crate::alloc::NodeAlloc;
use crate::entry::Entry;
use crate::error::Error;
use crate::layout::{INNER_MIN, INNER_SLOTS, MAX_HEIGHT};
use crate::node::{Link, Search, Splice};
use crate::write::descent::WriteDescent;
use crate::write::{Need, Target};
use grace::Reclaim;

/// A sibling with at most this many children takes some from a full node. With more, it would
/// rarely pay.
const ROOM_FOR_MANY: usize = if INNER_SLOTS > 4 { INNER_SLOTS / 2 + 1 } else { INNER_SLOTS - 2 };
// Both have room afterwards.
const _: () = assert!(INNER_SLOTS + ROOM_FOR_MANY <= 2 * (INNER_SLOTS - 1));

impl<E: Entry, R: Reclaim, A: NodeAlloc> Target<'_, E, R, A> {
    /// Splits the highest of the full nodes above the leaf, counted from its parent up without a
    /// gap. Returns false and does nothing if the tree would have too many levels. The path is
    /// invalid afterwards.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[cold]
    #[inline(never)]
    pub(in crate::write) fn make_room<S: Search>(
        &mut self,
        search: S,
        descent: &WriteDescent,
    ) -> Result<bool, Error> {
        // SAFETY: the promise of `Target::new`.
        let len = |level: usize| unsafe { descent.step(level).0.seps() }.len();
        let mut level = 1;
        while level + 1 < descent.height() && len(level + 1) == INNER_SLOTS {
            level += 1;
        }
        let is_root = level + 1 == descent.height();
        if is_root && descent.height() == MAX_HEIGHT {
            return Ok(false);
        }
        if !is_root && self.share(search, descent, level)? {
            return Ok(true);
        }
        let in_place = self.supplies.bin.in_place() && !is_root;
        self.supplies.nodes.fill(Need { leaves: 0, inners: 2 + usize::from(!in_place) })?;
        // Nothing fails from here on.
        // SAFETY: the promise of `Target::new`.
        let ((node, slot), end) = unsafe { (descent.step(level), descent.max(level)) };
        // A run of writes in one direction leaves full nodes behind.
        let at = if slot + 2 >= INNER_SLOTS {
            INNER_SLOTS - INNER_MIN
        } else if slot <= 1 {
            INNER_MIN
        } else {
            INNER_SLOTS / 2
        };
        // SAFETY: we are the writer.
        let cut = unsafe { node.seps() }.bounds[at - 1];
        let pair = [(0..at, cut), (at..INNER_SLOTS, end)].map(|(part, end)| {
            let new = self.supplies.nodes.take_inner();
            // SAFETY: the new node is ours alone; the old one does not change.
            let gap = unsafe {
                new.as_ref().append(node, end, part);
                new.as_ref().max_gap(Index::MAX)
            };
            (end, Link::inner(new, level), gap)
        });
        // SAFETY: the promise of `Target::new`.
        let own = if is_root { 0 } else { unsafe { descent.step(level + 1) }.1 };
        let splice = Splice { gone: own..own + 1, items: &pair };
        let above = self.replace_at(search, descent, level + 1, splice, in_place);
        // SAFETY: as above; both left the tree.
        unsafe {
            above.into_iter().for_each(|old| self.supplies.bin.node(old));
            self.supplies.bin.node(descent.link(level));
        }
        Ok(true)
    }

    /// Balances the full node at `level` of the path with a sibling. Returns false and does nothing
    /// if no sibling has room for several children.
    ///
    /// It takes as many new nodes as a split, in about one of a hundred writes, but the tree has
    /// one node less afterwards.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    fn share<S: Search>(
        &mut self,
        search: S,
        descent: &WriteDescent,
        level: usize,
    ) -> Result<bool, Error> {
        // SAFETY: the promise of `Target::new`; the node is not the root.
        let ((_, taken), (above, own)) = unsafe { (descent.step(level), descent.step(level + 1)) };
        // A run of writes in one direction does not return to the nodes behind.
        if taken == 0 || taken + 1 == INNER_SLOTS {
            return Ok(false);
        }
        // SAFETY: as above.
        let (seps, end) = unsafe { (above.seps(), descent.max(level + 1)) };
        // SAFETY: as above.
        let node = |slot: usize| unsafe { above.child(slot).as_inner() };
        // SAFETY: as above.
        let len = |slot: usize| unsafe { node(slot).seps() }.len();
        let first = [own.wrapping_sub(1), own].into_iter().find(|&first| {
            let other = if first == own { own + 1 } else { first };
            // SAFETY: as above. The nodes on the path belong to this tree alone.
            other < seps.len()
                && len(other) <= ROOM_FOR_MANY
                && !(E::SHARES && unsafe { above.child(other).refs() }.shared())
        });
        let Some(first) = first else { return Ok(false) };
        let in_place = self.supplies.bin.in_place();
        self.supplies.nodes.fill(Need { leaves: 0, inners: 2 + usize::from(!in_place) })?;
        // Nothing fails from here on.
        let middle = seps.end(first, end);
        let max = seps.end(first + 1, end);
        let half = (len(first) + len(first + 1)) / 2;
        let (left, right) = (self.supplies.nodes.take_inner(), self.supplies.nodes.take_inner());
        let (one, other, lens) = (node(first), node(first + 1), [len(first), len(first + 1)]);
        // SAFETY: we are the writer; the new nodes are ours alone.
        let pair = unsafe {
            let (to, behind) = (left.as_ref(), right.as_ref());
            // The end of the children of the first node, and the end of those that go to the left.
            let cut = if half <= lens[0] {
                let cut = one.seps().end(half - 1, middle);
                to.append(one, cut, 0..half);
                if half < lens[0] {
                    behind.append(one, middle, half..lens[0]);
                }
                behind.append(other, max, 0..lens[1]);
                cut
            } else {
                let more = half - lens[0];
                let cut = other.seps().end(more - 1, max);
                to.append(one, middle, 0..lens[0]);
                to.append(other, cut, 0..more);
                behind.append(other, max, more..lens[1]);
                cut
            };
            [(cut, left), (max, right)].map(|(end, node)| {
                (end, Link::inner(node, level), node.as_ref().max_gap(Index::MAX))
            })
        };
        let old = [first, first + 1].map(|slot| above.child(slot));
        let splice = Splice { gone: first..first + 2, items: &pair };
        let parent = self.replace_at(search, descent, level + 1, splice, in_place);
        // SAFETY: the promise of `Target::new`; all left the tree.
        unsafe { parent.into_iter().chain(old).for_each(|old| self.supplies.bin.node(old)) }
        Ok(true)
    }
}
