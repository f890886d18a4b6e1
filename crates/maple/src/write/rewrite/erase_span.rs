//! An erase over several leaves of one parent, or of two neighbouring parents.
//!
//! The beginning of the first leaf and the end of the last leaf stay. If both fit into one leaf,
//! they become one, with the hole between them. Otherwise the first leaf gets the hole at its end,
//! and the separator between the two moves. The leaves between them are removed, and so is each of
//! the two of which nothing stays. One store publishes all of this with a new parent, for an
//! exclusive owner, too. If there are two parents, both are new, and so is their parent.
//!
//! An erase at the border of two leaves comes here if [`super::border`] cannot do it.
//!
//! The plan handles the other cases: parents that are not neighbours, also if the hole only
//! continues there; nodes shared with a duplicate; wide leaves; a parent that would have too few
//! children; a range of which nothing stays. Leaves of different forms are not joined.
//!
//! Cost: a descent and two searches in leaves; one or two new leaves and a new parent (ten to
//! fourteen cache lines; twelve more for two parents); one release store; a few words for the grace
//! period.

use crate::Index;
use crate::alloc::NodeAlloc;
use crate::entry::Entry;
use crate::layout::INNER_MIN;
use crate::node::{Body, Bound, Change, Inner, Item, Leaf, Link, Search, Splice};
use crate::write::descent::WriteDescent;
use crate::write::leaf::fast::Fast;
use crate::write::{Need, Removed, Target};
use core::ptr::{self, NonNull};
use grace::Reclaim;

#[cfg(test)]
std::thread_local! {
    /// The number of holes made here: for one parent or two, with one leaf left or two.
    pub(crate) static SPANS_ERASED: core::cell::RefCell<[[usize; 2]; 2]> = const { core::cell::RefCell::new([[0; 2]; 2]) };
    /// The number of leaves that an erase joined ([`super::join`]): with the sibling before, and
    /// with the sibling behind.
    pub(crate) static JOINED: core::cell::RefCell<[usize; 2]> = const { core::cell::RefCell::new([0; 2]) };
}

/// Both ends of an erase.
struct Ends<'n> {
    /// The parents of the first leaf and of the last, the same one or neighbours; then the slots of
    /// the two leaves in them.
    parents: [&'n Inner; 2],
    i: usize,
    j: usize,
    /// The first leaf, and the number of its slots that stay.
    left: &'n Leaf,
    a: usize,
    /// The last leaf, and the first of its slots that stay.
    right: &'n Leaf,
    b: usize,
    /// The hole, with the holes merged into it.
    first: Index,
    last: Index,
    /// The range of both leaves and of those between them.
    min: Index,
    max: Index,
    /// The last index of the last leaf's parent.
    top: Index,
}

/// Finds the ends of an erase; `None` if the plan must do it.
#[cfg_attr(not(unoptimized), inline(always))]
fn ends<'n, S: Search>(
    search: S,
    descent: &'n WriteDescent,
    (mut first, mut last): (Index, Index),
    slot: usize,
    check: bool,
) -> Option<Ends<'n>> {
    // SAFETY: the promise of `Target::new`; there are inner nodes.
    let (parent, mut i) = unsafe { descent.step(1) };
    // SAFETY: as above.
    let (seps, low, high) = unsafe { (parent.seps(), descent.min(1), descent.max(1)) };
    // The parent of the last leaf: the same, or the next.
    let (other, behind, top) = if last <= high {
        (parent, seps, high)
    } else {
        if descent.height() == 2 {
            return None;
        }
        // SAFETY: as above. The parents' parent belongs to this tree alone.
        let (other, top) = unsafe {
            let (above, at) = descent.step(2);
            if at + 1 >= above.seps().len() {
                return None;
            }
            (above.child(at + 1), above.seps().end(at + 1, descent.max(2)))
        };
        // SAFETY: as above.
        if last > top || (check && unsafe { other.refs() }.shared()) {
            return None;
        }
        // SAFETY: as above.
        unsafe { (other.as_inner(), other.as_inner().seps(), top) }
    };
    let mut j = search.inner(behind, last);
    if ptr::eq(other, parent) && j == i {
        return None;
    }
    // The parents belong to this tree alone, so this checks reference counts from the root down.
    let own = |parent: &'n Inner, slot: usize| {
        // SAFETY: as above.
        unsafe {
            let leaf = parent.child(slot).as_leaf();
            (!check || !leaf.refs.shared()).then_some(leaf)
        }
    };
    // SAFETY: as above.
    let body = |leaf: &'n Leaf| unsafe { leaf.body() };
    // The whole last leaf will be read, and the reference counts of the leaves between.
    other.child(j).prefetch();
    between([parent, other], (i, j)).for_each(Link::prefetch_refs);
    let (mut left, mut right) = (own(parent, i)?, own(other, j)?);
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
        // The hole may continue in the leaf before, if that has the same parent.
        let before = own(parent, i.checked_sub(1)?)?;
        if body(before).ends_with_hole() {
            (i, left) = (i - 1, before);
            (min, a) = (seps.start(i, low), body(left).len() - 1);
            first = body(left).start(a, min);
        }
    }
    let (mut max, one) = (behind.end(j, top), body(right));
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
    } else if last < Index::MAX {
        // As for the first leaf.
        if j + 1 == behind.len() {
            return None;
        }
        let after = own(other, j + 1)?;
        if body(after).is_hole(0) {
            (j, right, b) = (j + 1, after, 1);
            max = behind.end(j, top);
            last = body(right).end(0, max);
        }
    }
    let parents = [parent, other];
    Some(Ends { parents, i, j, left, a, right, b, first, last, min, max, top })
}

/// The leaves between the first and the last.
fn between<'n>(
    [parent, other]: [&'n Inner; 2],
    (i, j): (usize, usize),
) -> impl Iterator<Item = Link> + 'n {
    let one = ptr::eq(parent, other);
    // SAFETY: we are the writer.
    let end = if one { j } else { unsafe { parent.seps() }.len() };
    let more = if one { 0 } else { j };
    let behind = (0..more).map(|slot| other.child(slot));
    (i + 1..end).map(|slot| parent.child(slot)).chain(behind)
}

/// The change that makes one new leaf: the first slots of one leaf, the hole, and the last slots of
/// another. `None` if it does not fit, or if the two have different forms.
#[cfg_attr(not(unoptimized), inline(always))]
fn composed(
    (left, a): (&Body, usize),
    hole: (Index, Index),
    right: Option<(&Body, usize)>,
) -> Option<Change> {
    let form = match right {
        Some((right, _)) if a == 0 => right,
        Some((right, _)) if !right.has_form_of(left) => return None,
        _ => left,
    };
    let bound = |is: bool, slot: usize, end: Index| {
        Some(Bound { is, slot, value: if is { form.encode_if_taken(end)? } else { 0 } })
    };
    let new = [
        bound(a > 0, a.wrapping_sub(1), hole.0.wrapping_sub(1))?,
        bound(right.is_some(), a, hole.1)?,
    ];
    let change = Change::of_parts((left, a), 1, right.unwrap_or((left, left.len())), new);
    change.fits(form).then_some(change)
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Target<'_, E, R, A> {
    /// Makes `first..=last` a hole. The range extends beyond the leaf on the path; slot `slot` of
    /// that leaf holds `first`. No node on the path is shared.
    #[inline(always)]
    pub(in crate::write) fn erase_span_from<S: Search>(
        &mut self,
        search: S,
        descent: &WriteDescent,
        range: (Index, Index),
        slot: usize,
        removed: Removed,
    ) -> Fast {
        if descent.height() == 1 {
            return Fast::Other;
        }
        match ends(search, descent, range, slot, E::SHARES) {
            Some(ends) => self.erase_span(search, descent, &ends, removed),
            None => Fast::Other,
        }
    }

    /// Makes the hole.
    #[cfg_attr(not(unoptimized), inline(always))]
    fn erase_span<S: Search>(
        &mut self,
        search: S,
        descent: &WriteDescent,
        ends: &Ends,
        removed: Removed,
    ) -> Fast {
        let &Ends { parents: [parent, other], i, j, left: from, a, right: to, b, .. } = ends;
        let &Ends { first, last, min, max, top, .. } = ends;
        // SAFETY: the promise of `Target::new`.
        let (left, right) = unsafe { (from.body(), to.body()) };
        // SAFETY: as above.
        let lens = unsafe { [parent.seps().len(), other.seps().len()] };
        let is_one = ptr::eq(parent, other);
        let hole = (first, last);
        let stays = b < right.len();
        // One leaf for everything that stays, or two.
        let (change, two) = match composed((left, a), hole, stays.then_some((right, b))) {
            Some(one) => (one, false),
            None if a > 0 && stays => match composed((left, a), hole, None) {
                Some(alone) => (alone, true),
                None => return Fast::Other,
            },
            None => return Fast::Other,
        };
        let enough = if is_one {
            lens[0] - (j - i) + usize::from(two)
                >= if descent.height() == 2 { 2 } else { INNER_MIN }
        } else {
            i + 1 >= INNER_MIN && lens[1] - (j + 1) + usize::from(two) >= INNER_MIN
        };
        if !enough {
            return Fast::Other;
        }
        let need = Need { leaves: 1 + usize::from(two), inners: if is_one { 1 } else { 3 } };
        if self.supplies.nodes.fill(need).is_err() {
            return Fast::OutOfMemory;
        }
        // Nothing fails from here on. No remaining hole is longer than the gap of its leaf, so
        // usually the new hole is the longest. But testing that mispredicts often, so with SIMD the
        // rest is measured always.
        let length = last - first + 1;
        let rest = |most: Index, body: &Body, holes: u32, ends: (Index, Index), least: Index| {
            if !S::MEASURES && most <= least {
                return least;
            }
            search.gap(body, body.holes() & holes, ends, Index::MAX).max(least)
        };
        let before = rest(parent.gap(i), left, (1 << a) - 1, (min, first), length);
        let least = if two { 0 } else { before };
        let behind = rest(other.gap(j), right, u32::MAX << b, (last, max), least);
        let block = self.supplies.nodes.take_leaf_block().as_ptr();
        let (from, to) = (ptr::from_ref(from), ptr::from_ref(to));
        let mut items = [(last, Link::to_leaf(block), before), (max, Link::to_leaf(block), behind)];
        // SAFETY: the blocks are ours alone; their sources do not change.
        unsafe {
            let base = if a > 0 { from } else { to };
            search.change_apart(&change, (base, to), block, ptr::null_mut());
            if two {
                let rest = self.supplies.nodes.take_leaf_block().as_ptr();
                search.change_apart(&Change::rest(right, b), (to, to), rest, ptr::null_mut());
                items[1].1 = Link::to_leaf(rest);
            }
        }
        let items = &items[usize::from(!two)..];
        self.supplies.drop_spare();
        #[cfg(test)]
        SPANS_ERASED.with_borrow_mut(|erased| erased[usize::from(!is_one)][usize::from(two)] += 1);
        if is_one {
            // The old parent is retired below: its children are read first.
            let splice = Splice { gone: i..j + 1, items };
            let _ = self.replace_children(search, descent, splice, false);
        } else {
            self.erase_span_two(search, descent, [parent, other], (i, j), items, top);
        }
        // SAFETY: the promise of `Target::new`. Everything retired here left the tree and is still
        // allocated: a node is read before it is retired.
        unsafe {
            if E::NEEDS_DROP && removed == Removed::Drop {
                let ranks = left.rank(a)..left.count();
                let gone = ranks.map(|rank| left.word_of_rank(rank));
                let gone = gone.chain((0..right.rank(b)).map(|rank| right.word_of_rank(rank)));
                for raw in gone.filter_map(NonNull::new) {
                    self.supplies.bin.entry(raw);
                }
            }
            for leaf in between([parent, other], (i, j)) {
                match removed {
                    Removed::Drop => self.supplies.bin.leaf(leaf),
                    // The leaf held only the erased entry, which belongs to the caller; its parents
                    // are this tree's own.
                    Removed::Keep => self.supplies.bin.node(leaf),
                }
            }
            self.supplies.bin.node(other.child(j));
            self.supplies.bin.node(parent.child(i));
            let links = (descent.link(1), if is_one { None } else { Some(descent.link(2)) });
            self.supplies.bin.node(links.0);
            if let Some(above) = links.1 {
                let (inner, at) = descent.step(2);
                self.supplies.bin.node(inner.child(at + 1));
                self.supplies.bin.node(above);
            }
        }
        Fast::Done
    }

    /// Replaces the last leaves of one parent and the first ones of the next, which ends at `top`,
    /// by new ones. The separator between the parents moves, so their parent is new, too.
    #[cold]
    #[inline(never)]
    fn erase_span_two<S: Search>(
        &mut self,
        search: S,
        descent: &WriteDescent,
        [parent, other]: [&Inner; 2],
        (i, j): (usize, usize),
        items: &[Item],
        top: Index,
    ) {
        let nodes = [(); 2].map(|()| self.supplies.nodes.take_inner_block());
        let (first, second) = items.split_at(1);
        let (end, gap) = (first[0].0, |items: &[Item]| items.first().map_or(0, |item| item.2));
        // SAFETY: the promise of `Target::new`; the blocks are ours alone.
        unsafe {
            let gaps = [
                search.max_gap_with(parent, (u32::MAX << i, gap(first)), Index::MAX),
                search.max_gap_with(other, ((2 << j) - 1, gap(second)), Index::MAX),
            ];
            search.splice(
                parent,
                nodes[0],
                end,
                Splice { gone: i..parent.seps().len(), items: first },
            );
            search.splice(other, nodes[1], top, Splice { gone: 0..j + 1, items: second });
            let (above, at) = descent.step(2);
            let pair = [
                (end, Link::inner(nodes[0], 1), gaps[0]),
                (top, Link::inner(nodes[1], 1), gaps[1]),
            ];
            let largest = search.max_gap_with(above, (3 << at, gaps[0].max(gaps[1])), Index::MAX);
            let splice = Splice { gone: at..at + 2, items: &pair };
            let _ = self.replace_at(search, descent, 2, splice, false);
            if descent.height() > 3 {
                descent.raise_gap(search, 3, largest);
            }
        }
    }
}
