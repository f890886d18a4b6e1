//! A hole over several leaves of one parent.
//!
//! What stays is the beginning of the first leaf and the end of the last. If both fit into one leaf, they become one, with
//! the hole between them; else the first gets the hole at its end, and the separator between the two moves. The leaves
//! between them go, and so does that which nothing stays of. All of it is one new parent, put in place of the old one
//! by one store, for an exclusive owner too.
//!
//! Left to the plan: leaves of several parents, duplicates' nodes, wide leaves, a parent left with too few children, nothing
//! that stays.
//!
//! Cost: a walk and two searches in leaves, one or two new leaves and a new parent (ten to fourteen cache lines), one release
//! store, a few words for the grace period.

use super::fast::Fast;
use super::trail::Trail;
use super::{Need, Target};
use crate::alloc::NodeAlloc;
use crate::entry::Entry;
use crate::layout::{INNER_MIN, NARROW};
use crate::node::{Body, Leaf, Link, Search};
use core::ptr::NonNull;
use grace::Reclaim;

/// Either end of it.
struct Ends<'n> {
    /// The slots of the parent.
    i: usize,
    j: usize,
    /// The first leaf, and how many of its slots stay.
    left: &'n Body,
    a: usize,
    /// The last leaf, and which of its slots is the first that stays.
    right: &'n Body,
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
        let link = parent.child(slot);
        // SAFETY: as above.
        let (shared, body) = unsafe { (check && link.refs().shared(), link.as_leaf().body()) };
        (!shared && !body.is_wide()).then_some(body)
    };
    if j == i {
        return None;
    }
    // All of the last, and of those between the count of parents.
    parent.child(j).prefetch();
    (i + 1..j).for_each(|slot| parent.child(slot).prefetch_refs());
    let (mut left, mut right) = (own(i)?, own(j)?);
    let mut min = seps.start(i, low);
    let start = left.start(slot, min);
    let mut a = slot;
    if left.is_hole(slot) {
        first = start;
    } else if start < first {
        a = slot + 1;
    } else if slot > 0 {
        if left.is_hole(slot - 1) {
            a = slot - 1;
            first = left.start(a, min);
        }
    } else if first > 0 {
        // The hole may go on in the leaf before, if that is the parent's, too.
        let before = own(i.checked_sub(1)?)?;
        if before.ends_with_hole() {
            (i, left) = (i - 1, before);
            (min, a) = (seps.start(i, low), left.len() - 1);
            first = left.start(a, min);
        }
    }
    let mut max = seps.end(j, high);
    let slot = search.leaf(right, last);
    let end = right.end(slot, max);
    let mut b = slot + 1;
    if right.is_hole(slot) {
        last = end;
    } else if last < end {
        b = slot;
    } else if b < right.len() {
        if right.is_hole(b) {
            last = right.end(b, max);
            b += 1;
        }
    } else if last < usize::MAX {
        // As on the left.
        let after = (j + 1 < seps.len()).then_some(j + 1).and_then(own)?;
        if after.is_hole(0) {
            (j, right, b) = (j + 1, after, 1);
            max = seps.end(j, high);
            last = right.end(0, max);
        }
    }
    Some(Ends { i, j, left, a, right, b, first, last, min, max })
}

/// One new leaf: the first slots of one, the hole, and the last slots of another.
struct Composed<'n> {
    left: &'n Body,
    a: usize,
    hole: (usize, usize),
    right: Option<(&'n Body, usize)>,
}

impl Composed<'_> {
    /// The leaf whose form it has.
    fn form(&self) -> &Body {
        match self.right {
            Some((right, _)) if self.a == 0 => right,
            _ => self.left,
        }
    }

    /// How many slots and entries.
    fn size(&self) -> (usize, usize) {
        let right =
            self.right.map_or((0, 0), |(body, b)| (body.len() - b, body.count() - body.rank(b)));
        (self.a + 1 + right.0, self.left.rank(self.a) + right.1)
    }

    /// Whether it is a leaf.
    fn fits(&self) -> bool {
        let (len, count) = self.size();
        let form = self.form();
        let bounds = match self.right {
            Some((body, b)) => {
                let bound = |slot: usize| form.takes(body.bound(slot));
                form.takes(self.hole.1)
                    && form.unit() <= body.unit()
                    && (b + 1 == body.len() || (bound(b) && bound(body.len() - 2)))
            }
            None => true,
        };
        len <= 31
            && count > 0
            && NARROW.weigh(len, count) <= NARROW.full
            && (self.a == 0 || form.takes(self.hole.0 - 1))
            && bounds
    }

    /// Makes it in a block.
    ///
    /// # Safety
    /// `to` is memory for a leaf; it fits.
    unsafe fn write(&self, to: *mut Leaf) {
        let Composed { left, a, hole, right } = *self;
        let (len, count) = self.size();
        let (mut slot, mut rank) = (a, left.rank(a));
        let mut mask = left.entries() & ((1 << a) - 1);
        // SAFETY: the caller's promise.
        let body = unsafe {
            Leaf::copy_body(self.form(), to);
            (*to).body_mut()
        };
        if a > 0 {
            body.put_bound(a - 1, hole.0 - 1);
        }
        slot += 1;
        if let Some((from, b)) = right {
            body.put_bound(slot - 1, hole.1);
            mask |= (from.entries() >> b) << slot;
            for i in b..from.len() - 1 {
                body.put_bound(slot + i - b, from.bound(i));
            }
            for i in from.rank(b)..from.count() {
                body.put_word(rank, from.word_of_rank(i));
                rank += 1;
            }
        }
        debug_assert_eq!(rank, count);
        body.set_slots(len, mask, count);
    }
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
        let &Ends { i, j, left, a, right, b, first, last, min, max } = ends;
        // SAFETY: the promise of `Target::new`; there are inner nodes.
        let (parent, _) = unsafe { trail.step(1) };
        // SAFETY: as above.
        let (len, end) = unsafe { (parent.seps().len(), trail.max(1)) };
        let hole = (first, last);
        let stays = b < right.len();
        let one = Composed { left, a, hole, right: stays.then_some((right, b)) };
        let alone = Composed { left, a, hole, right: None };
        // One leaf for all that stays, or two.
        let two = if one.fits() {
            false
        } else if a > 0 && stays && alone.fits() {
            true
        } else {
            return Fast::Other;
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
        let block = self.supplies.nodes.take_leaf_block().as_ptr();
        let link = Link::to_leaf(block);
        let node = self.supplies.nodes.take_inner();
        // SAFETY: the blocks are ours alone; what they are made of does not change.
        unsafe {
            let node = node.as_ref();
            if two {
                alone.write(block);
                let other = self.supplies.nodes.take_leaf_block().as_ptr();
                Leaf::copy_from(parent.child(j).node().cast(), b, other);
                let gaps = [
                    search.largest_gap((*block).body(), (min, last)),
                    search.largest_gap((*other).body(), (last + 1, max)),
                ];
                let pair = [(last, link, gaps[0]), (max, Link::to_leaf(other), gaps[1])];
                node.fill_spliced(parent, end, i..j + 1, &pair);
            } else {
                one.write(block);
                let gap = search.largest_gap((*block).body(), (min, max));
                node.fill_spliced(parent, end, i..j + 1, &[(max, link, gap)]);
            }
        }
        self.supplies.drop_spare();
        let old = self.publish_parent(trail, node);
        // SAFETY: the promise of `Target::new`. What goes left the tree, and is still there; nodes before what hangs on them.
        unsafe {
            trail.raise_parent(search);
            if E::NEEDS_DROP {
                let ranks = left.rank(a)..left.count();
                let gone = ranks.map(|rank| left.word_of_rank(rank));
                let gone = gone.chain((0..right.rank(b)).map(|rank| right.word_of_rank(rank)));
                for raw in gone.filter_map(NonNull::new) {
                    self.supplies.bin.entry(raw);
                }
            }
            for slot in i + 1..j {
                self.supplies.bin.subtree(parent.child(slot));
            }
            self.supplies.bin.node(parent.child(j));
            self.supplies.bin.node(parent.child(i));
            self.supplies.bin.node(old);
        }
        Fast::Done
    }
}
