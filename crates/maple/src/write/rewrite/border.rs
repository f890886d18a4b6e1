//! A write at the border of a leaf: an erase whose hole continues in the next leaf.
//!
//! Holes stay whole, so the hole goes to the neighbour. The neighbour has the other part of the
//! hole at its end. Its first (or last) index is not stored in it but given by the parent, so it
//! need not change: the leaf loses the slots of the hole, and the separator between the two moves.
//! An exclusive owner does that in place. With concurrent readers one store publishes a new leaf
//! and a new parent. If the two leaves have different parents, or too little of the leaf would
//! remain, the write becomes a hole over both leaves ([`super::erase_span`]).

use crate::Index;
use crate::alloc::NodeAlloc;
use crate::entry::Entry;
use crate::error::Error;
use crate::layout::{LEAF_LOW, NARROW};
use crate::node::{Body, Change, Inner, Leaf, Link, Search, Splice};
use crate::write::descent::WriteDescent;
use crate::write::leaf::place::Place;
use crate::write::leaf::removed::RemovedSlots;
use crate::write::{Need, Removed, Target};
use core::ptr;
use grace::Reclaim;

/// The part of a leaf that an erase at its border removes.
struct Loss {
    /// The slots of the leaf and of its neighbour in the parent.
    leaf: usize,
    neighbour: usize,
    /// The slots that stay in the leaf: `from..to`.
    from: usize,
    to: usize,
    /// The new separator.
    end: Index,
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Target<'_, E, R, A> {
    /// Replaces the entry in the first or the last slot of the leaf by a hole. Returns `None`, and
    /// does nothing, if the plan must do it.
    #[cold]
    #[inline(never)]
    pub(in crate::write) fn border<S: Search>(
        &mut self,
        search: S,
        descent: &WriteDescent,
        slot: usize,
        removed: Removed,
    ) -> Option<Result<(), Error>> {
        if descent.height() == 1 {
            return None;
        }
        // Not an argument: a reference argument stays borrowed until the call returns, but the leaf
        // is changed before that. SAFETY: the promise of `Target::new`.
        let body = unsafe { descent.leaf().as_leaf().body() };
        // SAFETY: the promise of `Target::new`; there are inner nodes.
        let (parent, at) = unsafe { descent.step(1) };
        let Some(loss) = loss(descent, body, slot, parent, at) else {
            return self.beyond(search, descent, slot, removed);
        };
        let in_place = self.supplies.bin.in_place();
        let need = Need { leaves: usize::from(!in_place), inners: usize::from(!in_place) };
        if let Err(error) = self.supplies.nodes.fill(need) {
            return Some(Err(error));
        }
        // Nothing fails from here on.
        let gone = RemovedSlots::of::<E>(body, (body.rank(slot), 1), removed);
        // The holes that stay are measured in the old leaf.
        let stay = body.holes() & ((1 << loss.to) - 1) & u32::MAX << loss.from;
        let gap = search.gap(body, stay, ends(descent), Index::MAX);
        // The hole that the neighbour then has.
        let hole = hole(descent, parent, &loss);
        let neighbour = parent.gap(loss.neighbour).max(hole);
        let separator = loss.leaf.min(loss.neighbour);
        let old = descent.leaf().node().cast::<Leaf>();
        let new = if in_place { old } else { self.supplies.nodes.take_leaf_block().as_ptr() };
        // SAFETY: the owner is alone, and `body` is not used any more; or the block is ours, and
        // the old leaf does not change.
        unsafe {
            if loss.from > 0 {
                let change = Change::rest(body, loss.from);
                search.change_apart(&change, (old, old), new, ptr::null_mut());
            } else if in_place {
                (*new).body_mut().truncate(loss.to);
            } else {
                let change = Change::first(body, loss.to);
                search.change_apart(&change, (old, old), new, ptr::null_mut());
            }
        }
        // SAFETY: the promise of `Target::new`; there is a parent.
        let end = unsafe { parent.seps().end(separator + 1, descent.end(1)) };
        let mut items =
            [(loss.end, parent.child(loss.neighbour), neighbour), (end, Link::to_leaf(new), gap)];
        if loss.leaf == separator {
            (items[0].1, items[1].1) = (items[1].1, items[0].1);
            (items[0].2, items[1].2) = (items[1].2, items[0].2);
        }
        let splice = Splice { gone: separator..separator + 2, items: &items };
        let parent = self.replace_children(search, descent, splice, in_place);
        if !in_place {
            self.retire_leaf(descent, parent);
        }
        self.finish(&gone);
        Some(Ok(()))
    }

    /// The case in which the neighbour has another parent or too little of the leaf would remain: a
    /// hole over both leaves ([`super::erase_span`]), which includes one index of the neighbour's
    /// hole.
    fn beyond<S: Search>(
        &mut self,
        search: S,
        descent: &WriteDescent,
        slot: usize,
        removed: Removed,
    ) -> Option<Result<(), Error>> {
        // SAFETY: the promise of `Target::new`.
        let body = unsafe { descent.leaf().as_leaf().body() };
        let place = Place { descent, body };
        let (start, end) = (place.start(slot), place.end(slot));
        if slot > 0 || !place.has_hole_before() {
            return self.erase_span_from(search, descent, (start, end + 1), slot, removed).done();
        }
        let mut before = WriteDescent::new();
        // SAFETY: the promise of `Target::new`; the root is not null.
        let (shared, body) = unsafe {
            let shared = before.walk(search, self.tree.load(), start - 1, E::SHARES);
            (shared, before.leaf().as_leaf().body())
        };
        if shared {
            return None;
        }
        self.erase_span_from(search, &before, (start - 1, end), body.len() - 1, removed).done()
    }
}

/// The range of the leaf.
fn ends(descent: &WriteDescent) -> (Index, Index) {
    // SAFETY: the promise of `Target::new`.
    unsafe { (descent.min(0), descent.max(0)) }
}

/// The loss, if both leaves have the same parent and enough of the leaf remains.
fn loss(
    descent: &WriteDescent,
    body: &Body,
    slot: usize,
    parent: &Inner,
    at: usize,
) -> Option<Loss> {
    // SAFETY: we are the writer.
    let len = unsafe { parent.seps() }.len();
    let child = |slot: usize| {
        // SAFETY: we are the writer.
        unsafe { parent.child(slot).as_leaf().body() }
    };
    let (from, to) = (0, body.len());
    let loss = if slot + 1 == to && at + 1 < len && child(at + 1).is_hole(0) {
        // The last slot, with the hole before it if there is one.
        let to = if slot > 0 && body.is_hole(slot - 1) { slot - 1 } else { slot };
        (to > 0).then(|| Loss { leaf: at, neighbour: at + 1, from, to, end: body.bound(to - 1) })?
    } else if slot == 0 && at > 0 && { child(at - 1).ends_with_hole() } {
        let from = if to > 1 && body.is_hole(1) { 2 } else { 1 };
        (from < to).then(|| Loss {
            leaf: at,
            neighbour: at - 1,
            from,
            to,
            end: body.end(from - 1, ends(descent).1),
        })?
    } else {
        return None;
    };
    let mask = body.entries() >> loss.from & ((1 << (loss.to - loss.from)) - 1);
    let entries = mask.count_ones() as usize;
    let weight = NARROW.weigh(loss.to - loss.from, entries);
    // The entry at the other end stays, so no hole there can continue in the leaf beyond it.
    (entries > 0 && weight >= LEAF_LOW).then_some(loss)
}

/// The new length of the hole.
fn hole(descent: &WriteDescent, parent: &Inner, loss: &Loss) -> Index {
    // SAFETY: we are the writer.
    let (seps, body) = unsafe { (parent.seps(), parent.child(loss.neighbour).as_leaf().body()) };
    if loss.leaf < loss.neighbour {
        // The hole begins after the new separator and ends with the neighbour's first slot.
        let max = if loss.neighbour + 1 < seps.len() {
            seps.bounds[loss.neighbour]
        } else {
            // SAFETY: the promise of `Target::new`.
            unsafe { descent.max(1) }
        };
        body.end(0, max) - loss.end
    } else {
        let last = body.len() - 1;
        let min = if loss.neighbour > 0 {
            seps.bounds[loss.neighbour - 1] + 1
        } else {
            // SAFETY: the promise of `Target::new`.
            unsafe { descent.min(1) }
        };
        loss.end - body.start(last, min) + 1
    }
}
