//! Room for one more child: before a leaf below a full inner node is split, that node is split.
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
}
