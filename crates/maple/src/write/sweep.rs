//! A hole over several leaves of one parent.
//!
//! What stays is the beginning of the first leaf and the end of the last. If both fit into one leaf, they become one, with
//! the hole between them; else the first gets the hole at its end, and the separator between the two moves. The leaves
//! between them go, and so does that which nothing stays of. All of it is one new parent, put in place of the old one
//! by one store, for an exclusive owner too.
//!
//! Left to the plan: leaves of several parents, duplicates' nodes, wide leaves, a parent left with too few children, nothing
//! that stays. Leaves whose bounds mean different things stay two.
//!
//! Cost: a walk and two searches in leaves, one or two new leaves and a new parent (ten to fourteen cache lines), one release
//! store, a few words for the grace period.

use super::fast::Fast;
use super::trail::Trail;
use super::{Need, Target};
use crate::alloc::NodeAlloc;
use crate::entry::Entry;
use crate::layout::INNER_MIN;
use crate::node::{Body, Bound, Change, Leaf, Link, Search, Splice};
use core::ptr::{self, NonNull};
use grace::Reclaim;

/// Either end of it.
struct Ends<'n> {
    /// The slots of the parent.
    i: usize,
    j: usize,
    /// How many slots of the first leaf stay.
    left: &'n Leaf,
    a: usize,
    /// Which slot of the last leaf is the first that stays.
    right: &'n Leaf,
    b: usize,
    /// The hole, with those that it takes in.
    first: usize,
    last: usize,
    /// What both leaves, and those between them, cover.
    min: usize,
    max: usize,
}

/// What goes and what stays.
#[inline(always)]
fn ends<'n, S: Search>(
    search: S,
    trail: &'n Trail,
    (mut first, mut last): (usize, usize),
    slot: usize,
    check: bool,
) -> Option<Ends<'n>> {
    // SAFETY: the promise of `Target::new`; there are inner nodes.
    let (parent, mut i) = unsafe { trail.step(1) };
    // SAFETY: as above.
    let (seps, low, high) = unsafe { (parent.seps(), trail.min(1), trail.max(1)) };
    if last > high {
        return None;
    }
    let mut j = search.inner(seps, last);
    // The parent is ours alone, so counts are asked for from the root down.
    let own = |slot: usize| {
        // SAFETY: as above.
        unsafe {
            let leaf = parent.child(slot).as_leaf();
            let other = check && leaf.refs.shared();
            (!other && !leaf.body().is_wide()).then_some(leaf)
        }
    };
    // SAFETY: as above.
    let body = |leaf: &'n Leaf| unsafe { leaf.body() };
    if j == i {
        return None;
    }
    // All of the last, and of those between the count of parents.
    parent.child(j).prefetch();
    (i + 1..j).for_each(|slot| parent.child(slot).prefetch_refs());
    let (mut left, mut right) = (own(i)?, own(j)?);
    let (mut min, one) = (seps.start(i, low), body(left));
    let start = one.start(slot, min);
    let mut a = slot;
    if one.is_hole(slot) {
        first = start;
    } else if start < first {
        a = slot + 1;
    } else if slot > 0 {
        if one.is_hole(slot - 1) {
            a = slot - 1;
            first = one.start(a, min);
        }
    } else if first > 0 {
        // The hole may go on in the leaf before, if that is the parent's, too.
        let before = own(i.checked_sub(1)?)?;
        if body(before).ends_with_hole() {
            (i, left) = (i - 1, before);
            (min, a) = (seps.start(i, low), body(left).len() - 1);
            first = body(left).start(a, min);
        }
    }
    let (mut max, one) = (seps.end(j, high), body(right));
    let slot = search.leaf(one, last);
    let end = one.end(slot, max);
    let mut b = slot + 1;
    if one.is_hole(slot) {
        last = end;
    } else if last < end {
        b = slot;
    } else if b < one.len() {
        if one.is_hole(b) {
            last = one.end(b, max);
            b += 1;
        }
    } else if last < usize::MAX {
        // As on the left.
        let after = (j + 1 < seps.len()).then_some(j + 1).and_then(own)?;
        if body(after).is_hole(0) {
            (j, right, b) = (j + 1, after, 1);
            max = seps.end(j, high);
            last = body(right).end(0, max);
        }
    }
    Some(Ends { i, j, left, a, right, b, first, last, min, max })
}

/// One new leaf: the first slots of one, the hole, and the last slots of another; `None` if it does not fit, or the two have not
/// the same form.
#[inline(always)]
fn composed(
    (left, a): (&Body, usize),
    hole: (usize, usize),
    right: Option<(&Body, usize)>,
) -> Option<Change> {
    let form = match right {
        Some((right, _)) if a == 0 => right,
        Some((right, _)) if !right.has_form_of(left) => return None,
        _ => left,
    };
    let bound = |is: bool, slot: usize, end: usize| {
        Some(Bound { is, slot, value: if is { form.encode_narrow(end)? } else { 0 } })
    };
    let new = [
        bound(a > 0, a.wrapping_sub(1), hole.0.wrapping_sub(1))?,
        bound(right.is_some(), a, hole.1)?,
    ];
    let change = Change::of_parts((left, a), 1, right.unwrap_or((left, left.len())), new);
    change.fits_narrow().then_some(change)
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Target<'_, E, R, A> {
    /// Makes a hole of `first..=last`, which goes beyond the leaf on the way, from its slot `slot` on, that holds `first`.
    /// No node on the way is shared.
    #[inline(always)]
    pub(super) fn sweep_from<S: Search>(
        &mut self,
        search: S,
        trail: &Trail,
        range: (usize, usize),
        slot: usize,
    ) -> Fast {
        if trail.height == 1 {
            return Fast::Other;
        }
        match ends(search, trail, range, slot, E::SHARES) {
            Some(ends) => self.sweep(search, trail, &ends),
            None => Fast::Other,
        }
    }

    /// Makes the hole.
    #[inline(always)]
    fn sweep<S: Search>(&mut self, search: S, trail: &Trail, ends: &Ends) -> Fast {
        let &Ends { i, j, left: from, a, right: to, b, first, last, min, max } = ends;
        // SAFETY: the promise of `Target::new`; there are inner nodes.
        let ((parent, _), left, right) = unsafe { (trail.step(1), from.body(), to.body()) };
        // SAFETY: as above.
        let (len, end) = unsafe { (parent.seps().len(), trail.max(1)) };
        let hole = (first, last);
        let stays = b < right.len();
        // One leaf for all that stays, or two.
        let (change, two) = match composed((left, a), hole, stays.then_some((right, b))) {
            Some(one) => (one, false),
            None if a > 0 && stays => match composed((left, a), hole, None) {
                Some(alone) => (alone, true),
                None => return Fast::Other,
            },
            None => return Fast::Other,
        };
        let children = len - (j - i) + usize::from(two);
        if children < if trail.height == 2 { 2 } else { INNER_MIN } {
            return Fast::Other;
        }
        let need = Need { leaves: 1 + usize::from(two), inners: 1 };
        if self.supplies.nodes.fill(need).is_err() {
            return Fast::OutOfMemory;
        }
        // Nothing fails from here on.
        // What stays has no longer hole than its leaf had, and the new one is seldom shorter: but who wants to know that guesses.
        let length = last - first + 1;
        let rest = |slot: usize, body: &Body, holes: u32, ends: (usize, usize), least: usize| {
            if !S::MEASURES && parent.gap(slot) <= least {
                return least;
            }
            search.gap(body, body.holes() & holes, ends, usize::MAX).max(least)
        };
        let before = rest(i, left, (1 << a) - 1, (min, first), length);
        let behind = rest(j, right, u32::MAX << b, (last, max), if two { 0 } else { before });
        let changed = (1u32 << (j + 1)) - (1 << i);
        let block = self.supplies.nodes.take_leaf_block().as_ptr();
        let link = Link::to_leaf(block);
        let node = self.supplies.nodes.take_inner_block();
        let (from, to) = (ptr::from_ref(from), ptr::from_ref(to));
        // SAFETY: the blocks are ours alone; what they are made of does not change.
        let above = unsafe {
            let above = trail.parent_gap_after(search, changed, before.max(behind));
            let base = if a > 0 { from } else { to };
            search.change_apart(&change, (base, to), block, ptr::null_mut());
            let mut items = [(last, link, before), (max, link, behind)];
            let gone = i..j + 1;
            if two {
                let other = self.supplies.nodes.take_leaf_block().as_ptr();
                search.change_apart(&Change::rest(right, b), (to, to), other, ptr::null_mut());
                items[1].1 = Link::to_leaf(other);
                search.splice(parent, node, end, Splice { gone, items: &items });
            } else {
                search.splice(parent, node, end, Splice { gone, items: &items[1..] });
            }
            above
        };
        self.supplies.drop_spare();
        let old = self.publish_parent(trail, node);
        // SAFETY: the promise of `Target::new`. What goes left the tree, and is still there; nodes before what hangs on them.
        unsafe {
            trail.settle_parent_gap(search, above);
            if E::NEEDS_DROP {
                let ranks = left.rank(a)..left.count();
                let gone = ranks.map(|rank| left.word_of_rank(rank));
                let gone = gone.chain((0..right.rank(b)).map(|rank| right.word_of_rank(rank)));
                for raw in gone.filter_map(NonNull::new) {
                    self.supplies.bin.entry(raw);
                }
            }
            for slot in i + 1..j {
                self.supplies.bin.leaf(parent.child(slot));
            }
            self.supplies.bin.node(parent.child(j));
            self.supplies.bin.node(parent.child(i));
            self.supplies.bin.node(old);
        }
        Fast::Done
    }
}
