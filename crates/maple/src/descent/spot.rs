//! A place in a leaf: a slot, with what a step to a neighbour needs.
//!
//! A step to the next entry reads the mask, two bounds and a word. The rank of the slot, from which
//! the place of its word follows, is counted once, by the search that made the place; a step only
//! adds or subtracts one. So a step takes about thirty instructions, none of which has to count
//! bits, and one unpredictable branch: whether the leaf has another entry.
//!
//! Correctness: the place is in a leaf that does not change while the place is used, and that stays
//! allocated. The code that makes a place promises that.

use super::{Descent, Span, Step};
use crate::Index;
use crate::node::{Body, Job, Link, Search, run, word};
use core::ptr;

/// A slot of a leaf. Without a leaf, it is the hole that an empty tree is.
#[derive(Clone, Copy)]
pub(crate) struct Spot {
    /// The leaf, or null.
    leaf: Link,
    slot: usize,
    /// The number of entries in the slots before this one.
    rank: usize,
    /// The entries in the slots after this one: bit `i` for slot `i`. Steps upwards depend on this
    /// word alone, from which the next one is computed in two instructions.
    ahead: u32,
    /// The leaf's range.
    min: Index,
    max: Index,
}

/// The slot that a search takes, given the slot that holds the index.
pub(crate) trait Aim {
    /// Whether it is the first of [`Aim::among`], or the last.
    const UP: bool;

    /// The slots to choose from. `below` has a bit for each slot before the one of the index.
    fn among(entries: u32, below: u32) -> u32;
}

/// The slot that holds the index, entry or hole.
pub(crate) struct At;
/// The entry that holds the index, or the first one after it.
pub(crate) struct AtOrAfter;
/// The entry that holds the index, or the last one before it.
pub(crate) struct AtOrBefore;
/// The first entry after the slot that holds the index.
pub(crate) struct After;
/// The last entry before the slot that holds the index.
pub(crate) struct Before;

impl Aim for At {
    const UP: bool = true;

    #[inline(always)]
    fn among(_: u32, below: u32) -> u32 {
        below + 1
    }
}

impl Aim for AtOrAfter {
    const UP: bool = true;

    #[inline(always)]
    fn among(entries: u32, below: u32) -> u32 {
        entries & !below
    }
}

impl Aim for AtOrBefore {
    const UP: bool = false;

    #[inline(always)]
    fn among(entries: u32, below: u32) -> u32 {
        entries & (2 * below + 1)
    }
}

impl Aim for After {
    const UP: bool = true;

    #[inline(always)]
    fn among(entries: u32, below: u32) -> u32 {
        entries & !(2 * below + 1)
    }
}

impl Aim for Before {
    const UP: bool = false;

    #[inline(always)]
    fn among(entries: u32, below: u32) -> u32 {
        entries & below
    }
}

/// The entries in the slots after `slot`.
#[inline(always)]
fn after(entries: u32, slot: usize) -> u32 {
    entries & (u32::MAX - 1) << slot
}

impl Spot {
    /// The place in an empty tree.
    pub(crate) const EMPTY: Spot =
        Spot { leaf: Link::NULL, slot: 0, rank: 0, ahead: 0, min: 0, max: Index::MAX };

    /// Moves to the slot that `A` takes for `index`, in a leaf that reaches from `min` to `max`.
    /// Returns its range and word. Without such a slot, moves to the one that holds the index, and
    /// returns a null word.
    ///
    /// # Safety
    /// The leaf stays allocated and does not change while the place is used.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(super) unsafe fn locate<A: Aim, S: Search>(
        &mut self,
        search: S,
        leaf: Link,
        (min, max): (Index, Index),
        index: Index,
    ) -> Span {
        // SAFETY: the caller's promise.
        let body = unsafe { leaf.as_leaf().body() };
        let below = search.below(body, index);
        let entries = body.entries();
        let among = A::among(entries, below);
        let slot = if among == 0 {
            below.count_ones()
        } else if A::UP {
            among.trailing_zeros()
        } else {
            among.ilog2()
        };
        let before = (1 << slot) - 1;
        let rank = (entries & before).count_ones() as usize;
        let ahead = entries & !(2 * before + 1);
        let spot = Spot { leaf, slot: slot as usize, rank, ahead, min, max };
        *self = spot;
        let span = spot.span_in(body);
        if among == 0 { Span { word: ptr::null_mut(), ..span } } else { span }
    }

    /// The place of a step of a path.
    ///
    /// # Safety
    /// As for [`Spot::locate`]; the step is on level 0.
    pub(crate) unsafe fn of(step: &Step) -> Self {
        let Step { link, slot, min, max } = *step;
        // SAFETY: the caller's promise.
        let body = unsafe { link.as_leaf().body() };
        let ahead = after(body.entries(), slot);
        Spot { leaf: link, slot, rank: body.rank(slot), ahead, min, max }
    }

    /// As [`walk`](super::walk()), within the leaf, which covers `index`.
    pub(crate) fn turn<A: Aim>(&mut self, index: Index) -> Span {
        struct Turn<'s, A>(&'s mut Spot, Index, core::marker::PhantomData<A>);
        impl<A: Aim> Job for Turn<'_, A> {
            type Out = Span;

            #[inline(always)]
            fn run<S: Search>(self, search: S) -> Span {
                let Spot { leaf, min, max, .. } = *self.0;
                // SAFETY: the invariant of the place.
                unsafe { self.0.locate::<A, S>(search, leaf, (min, max), self.1) }
            }
        }
        debug_assert!(self.covers(index));
        run(Turn::<A>(self, index, core::marker::PhantomData))
    }

    /// Whether it is in a leaf that covers an index.
    #[inline(always)]
    pub(crate) fn covers(&self, index: Index) -> bool {
        !self.leaf.is_null() && self.min <= index && index <= self.max
    }

    /// The leaf's first index.
    pub(crate) fn min(&self) -> Index {
        self.min
    }

    /// The leaf's last index.
    pub(crate) fn max(&self) -> Index {
        self.max
    }

    /// The leaf as the step of a path, at this slot.
    #[inline(always)]
    pub(crate) fn step(&self) -> Step {
        Step { link: self.leaf, slot: self.slot, min: self.min, max: self.max }
    }

    #[inline(always)]
    pub(super) fn slot(&self) -> usize {
        self.slot
    }

    #[inline(always)]
    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// The leaf; the caller knows that there is one. The reference is not kept longer than the
    /// place is in this leaf.
    #[inline(always)]
    pub(super) fn body<'l>(&self) -> &'l Body {
        // SAFETY: the invariant of the place.
        unsafe { self.leaf.as_leaf().body() }
    }

    /// The range and the word of the slot; the word of a hole is null.
    #[inline(always)]
    pub(crate) fn span(&self) -> Span {
        if self.leaf.is_null() {
            return Span { min: self.min, max: self.max, word: ptr::null_mut() };
        }
        self.span_in(self.body())
    }

    #[inline(always)]
    fn span_in(&self, body: &Body) -> Span {
        let (min, max) = (body.start_of(self.slot, self.min), body.end_of(self.slot, self.max));
        // Branchless: a hole cannot be predicted. SAFETY: the room is initialised. If the cell
        // holds no word, its contents become a pointer that is never dereferenced.
        let word = word::taken_out(unsafe { body.cell(self.rank).read() });
        let is_entry = (body.entries() >> self.slot & 1) as usize;
        let word = word.map_addr(|addr| addr & is_entry.wrapping_neg());
        Span { min, max, word }
    }

    /// Whether the leaf has an entry after the slot.
    pub(crate) fn has_next(&self) -> bool {
        self.ahead != 0
    }

    /// Whether the leaf has an entry before the slot.
    pub(crate) fn has_prev(&self) -> bool {
        self.rank != 0
    }

    /// Steps to the next entry of the leaf if it begins at or before `limit`. Otherwise returns
    /// `None` and does not move.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) fn next_entry(&mut self, limit: Index) -> Option<Span> {
        let ahead = self.ahead;
        if ahead == 0 {
            return None;
        }
        let body = self.body();
        let slot = ahead.trailing_zeros() as usize;
        // It is not the first slot.
        let min = body.bound(slot - 1) + 1;
        if min > limit {
            return None;
        }
        let rank = self.rank + usize::from(!body.is_hole(self.slot));
        (self.slot, self.rank, self.ahead) = (slot, rank, ahead & (ahead - 1));
        Some(Span { min, max: body.end_of(slot, self.max), word: body.word_of_rank(rank) })
    }

    /// Steps to the previous entry of the leaf if it ends at or after `limit`. Otherwise returns
    /// `None` and does not move.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) fn prev_entry(&mut self, limit: Index) -> Option<Span> {
        if self.leaf.is_null() {
            return None;
        }
        let body = self.body();
        let entries = body.entries();
        let slot = (entries & ((1 << self.slot) - 1)).checked_ilog2()? as usize;
        // It is not the last slot.
        let max = body.bound(slot);
        if max < limit {
            return None;
        }
        let rank = self.rank - 1;
        (self.slot, self.rank, self.ahead) = (slot, rank, after(entries, slot));
        Some(Span { min: body.start_of(slot, self.min), max, word: body.word_of_rank(rank) })
    }

    /// Steps to the next slot of the leaf. At the last one it returns false and does not move.
    #[inline]
    pub(crate) fn next_slot(&mut self) -> bool {
        if self.leaf.is_null() || self.slot + 1 == self.body().len() {
            return false;
        }
        self.rank += usize::from(!self.body().is_hole(self.slot));
        self.slot += 1;
        self.ahead &= !(1 << self.slot);
        true
    }

    /// Steps to the previous slot of the leaf. At the first one it returns false and does not move.
    #[inline]
    pub(crate) fn prev_slot(&mut self) -> bool {
        if self.slot == 0 {
            return false;
        }
        let here = self.body().entries() & 1 << self.slot;
        self.ahead |= here;
        self.slot -= 1;
        self.rank -= usize::from(!self.body().is_hole(self.slot));
        true
    }

    /// Moves to the first entry of the next leaf, or to its only slot, a hole. `path` leads to this
    /// leaf, and then to that one. At the end of the tree returns false and does not move.
    #[inline]
    pub(crate) fn leave_forwards(&mut self, path: &mut Descent) -> bool {
        let step = match path.next_sibling(self.max) {
            Some(step) => step,
            None if path.next_leaf() => *path.step(0),
            None => return false,
        };
        // SAFETY: the invariant of the path.
        let entries = unsafe { step.link.as_leaf().body() }.entries();
        *self = Spot {
            leaf: step.link,
            slot: if entries == 0 { 0 } else { entries.trailing_zeros() as usize },
            rank: 0,
            // Without the lowest bit.
            ahead: entries & entries.wrapping_sub(1),
            min: step.min,
            max: step.max,
        };
        true
    }

    /// As [`Spot::leave_forwards`], to the last entry of the previous leaf.
    #[inline]
    pub(crate) fn leave_backwards(&mut self, path: &mut Descent) -> bool {
        let step = match path.prev_sibling(self.min) {
            Some(step) => step,
            None if path.prev_leaf() => *path.step(0),
            None => return false,
        };
        // SAFETY: the invariant of the path.
        let body = unsafe { step.link.as_leaf().body() };
        *self = Spot {
            leaf: step.link,
            slot: body.entries().checked_ilog2().unwrap_or(0) as usize,
            rank: body.count().saturating_sub(1),
            ahead: 0,
            min: step.min,
            max: step.max,
        };
        true
    }

    /// Whether the slot is an entry. There is a leaf.
    #[inline]
    pub(crate) fn is_entry(&self) -> bool {
        !self.body().is_hole(self.slot)
    }
}
