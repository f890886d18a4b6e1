//! The last step of a write within one leaf: the changed leaf is made and published, and the gaps
//! above it are updated.
//!
//! Before it, everything that can fail has been done, except the allocation of the new leaf.

use crate::alloc::NodeAlloc;
use crate::entry::Entry;
use crate::error::Error;
use crate::node::{Change, Leaf, Link, Search};
use crate::write::Target;
use crate::write::descent::WriteDescent;
use crate::write::leaf::place::Holes;
use core::hint;
use core::ptr;
use grace::Reclaim;

impl<E: Entry, R: Reclaim, A: NodeAlloc> Target<'_, E, R, A> {
    /// Carries out a change of the leaf on the path, and returns the current leaf.
    ///
    /// Cost for an exclusive owner: four cache lines loaded and stored. With concurrent readers:
    /// the four lines stored are those of a new block from the supplies, and there are one release
    /// store and two words for the grace period.
    ///
    /// `wide`: whether the leaf is wide, if the caller knows. `near`: the write is near the last
    /// one, so it may well be at the end of the leaf, where nothing moves. An exclusive owner then
    /// writes only the new bounds and words, without a SIMD load of a line that was just written.
    #[inline(always)]
    pub(in crate::write) fn commit<S: Search>(
        &mut self,
        search: S,
        descent: &WriteDescent,
        change: &Change,
        holes: Holes,
        known: (Option<bool>, bool),
    ) -> Result<Link, Error> {
        let old = descent.leaf().node().cast::<Leaf>();
        self.commit_from(search, descent, old, change, holes, known)
    }

    /// As [`Target::commit`]. The unchanged parts come from `from`: the leaf itself, or a copy of
    /// another form.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(in crate::write) fn commit_from<S: Search>(
        &mut self,
        search: S,
        descent: &WriteDescent,
        from: *const Leaf,
        change: &Change,
        holes: Holes,
        (wide, near): (Option<bool>, bool),
    ) -> Result<Link, Error> {
        let in_place = self.supplies.bin.in_place();
        let old = descent.leaf().node().cast::<Leaf>();
        let new = if in_place { old } else { self.supplies.nodes.leaf()?.as_ptr() };
        // Nothing fails from here on.
        let copy = if change.splits { self.take_copy() } else { ptr::null_mut() };
        // A spare duplicate is for the next write only: its source may be freed by the write after
        // that.
        self.supplies.drop_spare();
        if let Some(wide) = wide {
            // SAFETY: the caller knows it. The compiler cannot see it, and would compile the code
            // of both forms.
            unsafe { hint::assert_unchecked((*old).body().is_wide() == wide) }
        }
        // If one entry replaces another over the same range, no hole changes, and the gaps are not
        // written. A run of writes at the very end of the index range changes the hole that is the
        // largest on all levels, and need not read anything for that.
        let tail = near && holes.is_tail();
        let measured = !tail && (holes.gone != 0 || holes.after != 0);
        let gap = if measured {
            // SAFETY: the promise of `Target::new`; the leaf has not changed yet.
            unsafe { descent.gap_after(search, (*old).body(), holes) }
        } else {
            holes.after
        };
        // SAFETY: the owner is alone, and the leaf is not borrowed; or the block is ours, and the
        // old leaf does not change.
        unsafe {
            if near && in_place && change.moves_nothing() {
                change.put((*old).body_mut(), copy);
            } else {
                search.change(change, (from, from), new, copy);
            }
        }
        let leaf = descent.leaf();
        let link = Link::to_leaf(new);
        if !in_place {
            if descent.height() == 1 {
                self.tree.publish(link);
            } else {
                // SAFETY: the promise of `Target::new`; there are inner nodes.
                let (parent, slot) = unsafe { descent.step(1) };
                parent.publish(slot, link);
            }
        }
        // SAFETY: as above.
        unsafe {
            if measured {
                descent.settle_gap(search, gap);
            } else if tail {
                descent.settle_tail(gap);
            }
        }
        if !in_place {
            // SAFETY: the copy has replaced the leaf.
            unsafe { self.supplies.bin.node(leaf) }
        }
        Ok(link)
    }
}
