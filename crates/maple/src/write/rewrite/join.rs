//! An erase that leaves a leaf with too little: the rest and a sibling are joined into one leaf, if
//! it holds both.
//!
//! The rest is built in a leaf on the stack, as for any erase. Then the right leaf is appended to
//! the left one. The bound between them, so far a separator of the parent, is added. One store
//! publishes the new leaf with a new parent, for an exclusive owner, too.
//!
//! The plan handles the other cases: siblings that are too full, a parent that would have too few
//! children, and a leaf that would have no entry.

use crate::Index;
use crate::alloc::NodeAlloc;
use crate::entry::Entry;
use crate::error::Error;
use crate::layout::INNER_MIN;
use crate::node::{Body, Bound, Change, Leaf, Link, Search, Splice, is_roomy};
use crate::write::descent::WriteDescent;
use crate::write::leaf::fast::vacated;
use crate::write::{Need, Target};
use core::mem::MaybeUninit;
use core::ptr;
use grace::Reclaim;

/// Two leaves in one.
enum Whole {
    /// Of one form: a change, with its sources.
    Change(Change, (*const Leaf, *const Leaf)),
    /// Of two forms: packed anew.
    Body(Body),
}

impl Whole {
    /// Both leaves, if one leaf can hold them with slack; `end` is the left leaf's last index.
    #[cfg_attr(not(unoptimized), inline(always))]
    fn of(left: (&Body, *const Leaf), right: (&Body, *const Leaf), end: Index) -> Option<Whole> {
        let bound = left.0.encode_if_taken(end).filter(|_| right.0.has_form_of(left.0));
        let Some(value) = bound else {
            let whole = Body::joined(left.0, right.0, end)?;
            let roomy = is_roomy(whole.len(), whole.count(), whole.is_wide());
            return roomy.then_some(Whole::Body(whole));
        };
        let bound = Bound { is: true, slot: left.0.len() - 1, value };
        let parts = ((left.0, left.0.len()), (right.0, 0));
        let change = Change::of_parts(parts.0, 0, parts.1, [bound, Bound::NONE]);
        let roomy = is_roomy(change.len, change.count, left.0.is_wide());
        (roomy && change.count > 0).then_some(Whole::Change(change, (left.1, right.1)))
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Target<'_, E, R, A> {
    /// Replaces the entry in a slot by a hole; the entry belongs to the caller. Returns `None`, and
    /// does nothing, if the plan must do it. The leaf is not the root, no node on the path is
    /// shared, and the hole does not continue in another leaf.
    ///
    /// Cost: two new leaves, one of them on the stack, and a new parent; one release store; three
    /// words for the grace period.
    #[cold]
    #[inline(never)]
    pub(in crate::write) fn join<S: Search>(
        &mut self,
        search: S,
        descent: &WriteDescent,
        slot: usize,
    ) -> Option<Result<(), Error>> {
        // SAFETY: the promise of `Target::new`; there are inner nodes.
        let (body, (parent, at)) = unsafe { (descent.leaf().as_leaf().body(), descent.step(1)) };
        let (change, (from, to)) = vacated(body, slot);
        // SAFETY: as above.
        let seps = unsafe { parent.seps() };
        if change.count == 0 || seps.len() <= if descent.height() == 2 { 2 } else { INNER_MIN } {
            return None;
        }
        let own = descent.leaf().node().cast::<Leaf>().cast_const();
        let mut aside = MaybeUninit::<Leaf>::uninit();
        // SAFETY: the leaf on the stack is ours; the old leaf does not change.
        let rest = unsafe {
            search.change_apart(&change, (own, own), aside.as_mut_ptr(), ptr::null_mut());
            aside.assume_init_ref()
        };
        // SAFETY: the promise of `Target::new`; the leaf on the stack does not change any more.
        let (min, max, top, rest_body) =
            unsafe { (descent.min(0), descent.max(0), descent.max(1), rest.body()) };
        // For each sibling: the slot of the left leaf of the pair, and the slot of the sibling.
        let pairs = [(at.wrapping_sub(1), at.wrapping_sub(1)), (at, at + 1)];
        let (first, neighbour, whole) = pairs.into_iter().find_map(|(first, neighbour)| {
            if neighbour >= seps.len() {
                return None;
            }
            // SAFETY: as above.
            let (leaf, other) = unsafe {
                let leaf = parent.child(neighbour).as_leaf();
                (leaf, leaf.body())
            };
            if E::SHARES && leaf.refs.shared() {
                return None;
            }
            let (leaf, rest) = ((other, ptr::from_ref(leaf)), (rest_body, ptr::from_ref(rest)));
            Some(if neighbour < at {
                (first, neighbour, Whole::of(leaf, rest, min - 1)?)
            } else {
                (first, neighbour, Whole::of(rest, leaf, max)?)
            })
        })?;
        if let Err(error) = self.supplies.nodes.fill(Need { leaves: 1, inners: 1 }) {
            return Some(Err(error));
        }
        // Nothing fails from here on.
        self.supplies.drop_spare();
        // The new hole is longer than the holes merged into it. The other holes are measured in the
        // old leaf.
        let slots = u32::MAX >> (31 - to) & u32::MAX << from;
        let hole = body.end(to, max) - body.start(from, min) + 1;
        let others = search.gap(body, body.holes() & !slots, (min, max), Index::MAX);
        let gap = hole.max(others).max(parent.gap(neighbour));
        let block = self.supplies.nodes.take_leaf_block().as_ptr();
        // SAFETY: the block is ours alone; its sources do not change.
        unsafe {
            match whole {
                Whole::Change(change, sources) => {
                    search.change_apart(&change, sources, block, ptr::null_mut())
                }
                Whole::Body(body) => Leaf::copy_body(&body, block),
            }
        }
        #[cfg(test)]
        crate::write::JOINED.with_borrow_mut(|joined| joined[usize::from(neighbour > at)] += 1);
        let sibling = parent.child(neighbour);
        let items = [(seps.end(first + 1, top), Link::to_leaf(block), gap)];
        let splice = Splice { gone: first..first + 2, items: &items };
        let old = self.replace_children(search, descent, splice, false);
        // SAFETY: the promise of `Target::new`; all three left the tree.
        unsafe { self.supplies.bin.node(sibling) }
        self.retire_leaf(descent, old);
        Some(Ok(()))
    }
}
