//! Room for one more child: a full inner node is cut in two before a leaf below it is.
//!
//! By itself that changes nothing that a reader could tell. The nodes are cut from the highest full one down, each by
//! itself, and the write begins anew after each; so what fails half-way leaves a tree as good as before (I7).

use super::trail::Trail;
use super::{Need, Target};
use crate::alloc::NodeAlloc;
use crate::entry::Entry;
use crate::error::Error;
use crate::layout::{INNER_MIN, INNER_SLOTS, MAX_HEIGHT};
use crate::node::Link;
use grace::Reclaim;

impl<E: Entry, R: Reclaim, A: NodeAlloc> Target<'_, E, R, A> {
    /// Cuts the highest of the full nodes above the leaf, up from its parent. False, and nothing done, if there would be too
    /// many levels. The way is another afterwards.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[cold]
    #[inline(never)]
    pub(super) fn make_room(&mut self, trail: &Trail) -> Result<bool, Error> {
        // SAFETY: the promise of `Target::new`.
        let len = |level: usize| unsafe { trail.step(level).0.seps() }.len();
        let mut level = 1;
        while level + 1 < trail.height && len(level + 1) == INNER_SLOTS {
            level += 1;
        }
        let is_root = level + 1 == trail.height;
        if is_root && trail.height == MAX_HEIGHT {
            return Ok(false);
        }
        let in_place = self.supplies.bin.is_exclusive() && !is_root;
        self.supplies.nodes.fill(Need { leaves: 0, inners: 2 + usize::from(!in_place) })?;
        // Nothing fails from here on.
        // SAFETY: the promise of `Target::new`.
        let ((node, slot), end) = unsafe { (trail.step(level), trail.max(level)) };
        // A run of writes in one direction leaves full nodes behind it.
        let at = if slot + 2 >= INNER_SLOTS {
            INNER_SLOTS - INNER_MIN
        } else if slot <= 1 {
            INNER_MIN
        } else {
            INNER_SLOTS / 2
        };
        // SAFETY: the writer's right.
        let cut = unsafe { node.seps() }.bounds[at - 1];
        let pair = [(0..at, cut), (at..INNER_SLOTS, end)].map(|(part, end)| {
            let new = self.supplies.nodes.take_inner();
            // SAFETY: the new node is ours alone; the old one does not change.
            let gap = unsafe {
                new.as_ref().fill_part(node, end, part);
                new.as_ref().max_gap(usize::MAX)
            };
            (end, Link::inner(new, level), gap)
        });
        // SAFETY: the promise of `Target::new`; new nodes are ours alone, and an exclusive owner is.
        unsafe {
            if is_root {
                let root = self.supplies.nodes.take_inner();
                pair.into_iter().for_each(|(end, link, gap)| root.as_ref().push(end, link, gap));
                self.tree.publish(Link::inner(root, level + 1));
            } else {
                let (above, slot) = trail.step(level + 1);
                if in_place {
                    above.insert(slot, pair);
                } else {
                    let new = self.supplies.nodes.take_inner();
                    new.as_ref().fill_from(above);
                    new.as_ref().insert(slot, pair);
                    let old = self.publish_inner(trail, new, level + 1);
                    self.supplies.bin.node(old);
                }
            }
            self.supplies.bin.node(trail.link(level));
        }
        Ok(true)
    }
}
