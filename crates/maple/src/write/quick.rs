//! A write that stays within one leaf: nearly all of them.
//!
//! The leaf is copied, the copy changed, and put in its parent's slot by one store. An exclusive
//! owner changes the leaf itself. A leaf without room is cut in two first ([`super::split`]). What
//! needs another form of leaf, would leave too little, or concerns a hole that goes on in the next
//! leaf, is left to the plan.
//!
//! Cost, beside readers: the walk, one block, four cache lines copied, one release store, two words
//! for the grace period; for an exclusive owner: the walk, and two short moves in the leaf. The
//! largest gap of the leaf is counted anew: by AVX-512 in any case, but for a moved end; else only
//! if a hole that was the largest has changed. It is stored in any case: one more line, of the
//! parent.

use super::fast::Fast;
use super::removed::RemovedSlots;
use super::write_descent::WriteDescent;
use super::{Removed, Target};
use crate::alloc::NodeAlloc;
use crate::entry::{Entry, Raw};
use crate::error::Error;
use crate::node::{Body, Change, Edit, Fit, Job, Leaf, Link, Search};
use core::hint::{self, select_unpredictable};
use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use grace::Reclaim;

/// What a write is to do. Each kind is compiled by itself.
pub(super) trait Kind {
    /// Makes a hole, not an entry.
    const HOLE: bool;
    /// Only if nothing is there.
    const INSERT: bool = false;
    /// Of the entry that holds `first`, whole.
    const WHOLE: bool = false;
    /// What is removed is still somebody's: it is not dropped.
    const KEEP: bool = false;
}

/// Replace what is there by an entry.
pub(super) struct Store;
/// Replace what is there by a hole.
pub(super) struct Clear;
/// Put an entry where nothing is.
pub(super) struct Insert;
/// Make a hole of the entry that holds `first`. The caller gets it.
pub(super) struct Erase;
/// Replace an entry by itself over a longer range, which begins with it and is free behind it.
pub(super) struct Extend;

impl Kind for Store {
    const HOLE: bool = false;
}
impl Kind for Clear {
    const HOLE: bool = true;
}
impl Kind for Insert {
    const HOLE: bool = false;
    const INSERT: bool = true;
}
impl Kind for Erase {
    const HOLE: bool = true;
    const WHOLE: bool = true;
    const KEEP: bool = true;
}
impl Kind for Extend {
    const HOLE: bool = false;
    const KEEP: bool = true;
}

/// What came of it.
pub(super) enum Outcome {
    /// Done. For an erase: the entry, with its range.
    Done(Option<(usize, usize, Raw)>),
    Failed(Error),
    /// Nothing done: it takes a plan. What to replace, `first..=last`; an erase has found the
    /// entry.
    Plan(usize, usize, Option<(usize, usize, Raw)>),
}

impl Outcome {
    #[inline(always)]
    fn found(done: Result<(), Error>, entry: Option<(usize, usize, Raw)>) -> Outcome {
        match done {
            Ok(()) => Outcome::Done(entry),
            Err(error) => Outcome::Failed(error),
        }
    }
}

/// A write on its way.
pub(super) struct Quick<'q, 't, K, E: Entry, R: Reclaim, A: NodeAlloc> {
    target: &'q mut Target<'t, E, R, A>,
    first: usize,
    last: usize,
    word: *mut (),
    _kind: PhantomData<K>,
}

impl<'q, 't, K: Kind, E: Entry, R: Reclaim, A: NodeAlloc> Quick<'q, 't, K, E, R, A> {
    /// `word` is null if and only if the kind makes a hole.
    #[inline(always)]
    pub(super) fn new(
        target: &'q mut Target<'t, E, R, A>,
        (first, last): (usize, usize),
        word: *mut (),
    ) -> Self {
        debug_assert!(word.is_null() == K::HOLE);
        Quick { target, first, last, word, _kind: PhantomData }
    }
}

impl<K: Kind, E: Entry, R: Reclaim, A: NodeAlloc> Job for Quick<'_, '_, K, E, R, A> {
    type Out = Outcome;

    #[inline(always)]
    fn run<S: Search>(self, search: S) -> Outcome {
        let Quick { target, mut first, mut last, mut word, .. } = self;
        if K::HOLE {
            word = ptr::null_mut();
        } else {
            // SAFETY: the promise of `new`.
            unsafe { hint::assert_unchecked(!word.is_null()) }
        }
        let removed = if K::KEEP { Removed::Keep } else { Removed::Drop };
        let mut trail = WriteDescent::new();
        let (place, from, shared) = target.reach(search, first, &mut trail);
        let Place { trail, body } = place;
        let mut to = from;
        let mut found = None;
        if K::WHOLE {
            let Some(raw) = NonNull::new(body.word(from)) else { return Outcome::Done(None) };
            (first, last) = (place.start(from), place.end(from));
            found = Some((first, last, raw));
        } else {
            if K::INSERT && !body.is_hole(from) {
                return Outcome::Failed(occupied(place, from));
            }
            if last > place.end(from) {
                if last > place.end(body.len() - 1) {
                    let swept = if K::HOLE && !shared {
                        target.sweep_from(search, trail, (first, last), from, removed)
                    } else {
                        Fast::Other
                    };
                    return match swept {
                        Fast::Done => Outcome::Done(None),
                        Fast::OutOfMemory => Outcome::Failed(Error::OutOfMemory),
                        Fast::Again | Fast::Other => Outcome::Plan(first, last, None),
                    };
                }
                if K::INSERT {
                    // A hole ends at an entry.
                    return Outcome::Failed(occupied(place, from + 1));
                }
                to = search.leaf(body, last);
            }
        }
        if shared {
            return Outcome::Plan(first, last, found);
        }
        let change = if K::HOLE {
            hole(place, (from, to), (first, last))
        } else {
            Some(entry(place, (from, to), (first, last), word))
        };
        let Some((edit, holes)) = change else {
            // A hole that goes on in the next leaf.
            let whole = from == to
                && !body.is_hole(from)
                && (K::WHOLE || (first, last) == (place.start(from), place.end(from)));
            return match if whole { target.border(search, trail, from, removed) } else { None } {
                Some(done) => Outcome::found(done, found),
                None => Outcome::Plan(first, last, found),
            };
        };
        let Some(edit) = edit else { return Outcome::Done(None) };
        let made = match edit.fit(body, trail.height() == 1) {
            Fit::Fits => target.make(search, trail, &edit, holes, removed),
            // A wide leaf is packed anew: its contents may be narrow by now.
            Fit::Full if !body.is_wide() => {
                match target.split(search, trail, (&edit, holes), removed) {
                    Some(made) => made,
                    None => return Outcome::Plan(first, last, found),
                }
            }
            _ => return Outcome::Plan(first, last, found),
        };
        Outcome::found(made, found)
    }
}

/// A leaf where it is. Only a slot at an end of the leaf needs to know where that is.
#[derive(Clone, Copy)]
pub(super) struct Place<'p> {
    pub(super) trail: &'p WriteDescent,
    pub(super) body: &'p Body,
}

impl Place<'_> {
    /// The first index of a slot.
    #[inline(always)]
    pub(super) fn start(self, slot: usize) -> usize {
        // SAFETY: the promise of `Target::new`.
        if slot == 0 { unsafe { self.trail.min(0) } } else { self.body.bound(slot - 1) + 1 }
    }

    /// The last index of a slot.
    #[inline(always)]
    pub(super) fn end(self, slot: usize) -> usize {
        if slot + 1 < self.body.len() {
            self.body.bound(slot)
        } else {
            // SAFETY: the promise of `Target::new`.
            unsafe { self.trail.max(0) }
        }
    }
}

impl Place<'_> {
    /// As [`Place::end`], of a narrow leaf, where it cannot be foretold whether it is the last
    /// slot: one in five is.
    #[inline(always)]
    pub(super) fn end_of(self, slot: usize) -> usize {
        // SAFETY: the promise of `Target::new`.
        let max = unsafe { self.trail.leaf_end() };
        select_unpredictable(slot + 1 < self.body.len(), self.body.bound_or_any(slot), max)
    }

    /// Whether the leaf before this ends with a hole.
    pub(super) fn has_hole_before(self) -> bool {
        // SAFETY: the promise of `Target::new`.
        unsafe { self.trail.neighbour(false).is_some_and(|leaf| leaf.body().ends_with_hole()) }
    }

    /// Whether the leaf after this begins with a hole.
    pub(super) fn has_hole_after(self) -> bool {
        // SAFETY: the promise of `Target::new`.
        unsafe { self.trail.neighbour(true).is_some_and(|leaf| leaf.body().is_hole(0)) }
    }
}

#[cold]
fn occupied(place: Place, slot: usize) -> Error {
    Error::Occupied { start: place.start(slot), end: place.end(slot) }
}

/// The holes that a change takes; the longest of them, and the longest that it makes; and the slots
/// that it changes, by their ends.
#[derive(Clone, Copy)]
pub(super) struct Holes {
    /// Those that it takes: bit `i` for slot `i`. None if it makes one that is longer.
    pub(super) gone: u32,
    pub(super) before: usize,
    pub(super) after: usize,
    pub(super) start: usize,
    pub(super) end: usize,
    /// Whether the holes that stay are measured in any case, where AVX-512 does it: for who wants
    /// to know whether that is needed guesses wrong half the time. (Not so for a moved end.)
    pub(super) measure: bool,
}

impl Holes {
    /// One of so many indices is made, and none is taken, in slots from `start` to `end`.
    #[inline(always)]
    pub(super) fn made(after: usize, (start, end): (usize, usize)) -> Holes {
        Holes { gone: 0, before: 0, after, start, end, measure: true }
    }

    /// Whether the change is at the very end of the indices, and leaves or makes a hole longer than
    /// all before it.
    #[inline(always)]
    pub(super) fn is_tail(self) -> bool {
        self.end == usize::MAX && self.after > self.start
    }
}

/// The change that makes a hole of `first..=last`, which lies in the slots `from..=to`; and of the
/// holes that it touches. The outer `None`: not within this leaf; the inner: nothing to change.
#[inline(always)]
fn hole(
    place: Place,
    (mut from, mut to): (usize, usize),
    (mut first, mut last): (usize, usize),
) -> Option<(Option<Edit>, Holes)> {
    let body = place.body;
    let (mut start, mut end) = (place.start(from), place.end(to));
    // Holes stay whole: a hole next to a hole takes it in.
    if body.is_hole(from) {
        if from == to {
            return Some((None, Holes::made(0, (start, end))));
        }
        first = start;
    } else if first == start {
        if from > 0 {
            if body.is_hole(from - 1) {
                from -= 1;
                start = place.start(from);
                first = start;
            }
        } else if place.has_hole_before() {
            return None;
        }
    }
    if body.is_hole(to) {
        last = end;
    } else if last == end {
        if to + 1 < body.len() {
            if body.is_hole(to + 1) {
                to += 1;
                end = place.end(to);
                last = end;
            }
        } else if place.has_hole_after() {
            return None;
        }
    }
    // It is longer than those that it takes in.
    let holes = Holes::made((last - first).wrapping_add(1), (start, end));
    let rests = (start < first, last < end);
    Some((Some(Edit::new(body, (from, to), rests, (first, last), ptr::null_mut())), holes))
}

/// The change that makes an entry of `first..=last`, which lies in the slots `from..=to`.
#[inline(always)]
fn entry(
    place: Place,
    (from, to): (usize, usize),
    (first, last): (usize, usize),
    word: *mut (),
) -> (Option<Edit>, Holes) {
    let body = place.body;
    let (start, end) = (place.start(from), place.end(to));
    // What is left of holes on either side.
    let left = if body.is_hole(from) { first - start } else { 0 };
    let right = if body.is_hole(to) { end - last } else { 0 };
    let before = if from == to {
        if body.is_hole(from) { (end - start).wrapping_add(1) } else { 0 }
    } else {
        longest(place, from, to)
    };
    let rests = (start < first, last < end);
    let edit = Edit::new(body, (from, to), rests, (first, last), word);
    let gone = body.holes() & (u32::MAX >> (31 - to)) & (u32::MAX << from);
    (Some(edit), Holes { gone, before, after: left.max(right), start, end, measure: true })
}

/// The longest hole among some slots.
#[inline]
fn longest(place: Place, from: usize, to: usize) -> usize {
    let length = |slot| (place.end(slot) - place.start(slot)).wrapping_add(1);
    (from..=to).filter(|&slot| place.body.is_hole(slot)).map(length).max().unwrap_or(0)
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Target<'_, E, R, A> {
    /// Walks to the slot that holds an index, and tells whether a node on the way belongs to
    /// another tree, too.
    #[inline(always)]
    pub(super) fn reach<'p, S: Search>(
        &self,
        search: S,
        index: usize,
        trail: &'p mut WriteDescent,
    ) -> (Place<'p>, usize, bool) {
        // SAFETY: the promise of `Target::new`; the root is not null.
        let shared = unsafe { trail.walk(search, self.tree.load(), index, E::SHARES) };
        let trail = &*trail;
        // SAFETY: as above.
        let body = unsafe { trail.leaf().as_leaf().body() };
        (Place { trail, body }, search.leaf(body, index), shared)
    }

    /// The second half of an entry that a change splits, or null.
    #[inline(always)]
    pub(super) fn second_half(&mut self, body: &Body, edit: &Edit) -> Result<(), Error> {
        if edit.splits()
            && let Some(source) = NonNull::new(body.word(edit.from))
        {
            // SAFETY: the entry is in the tree; the new one is not yet.
            unsafe { self.supplies.provide(source, edit.word)? }
        }
        Ok(())
    }

    /// Makes a change that fits.
    #[inline(always)]
    fn make<S: Search>(
        &mut self,
        search: S,
        trail: &WriteDescent,
        edit: &Edit,
        holes: Holes,
        removed: Removed,
    ) -> Result<(), Error> {
        // Not an argument: those are borrowed to the end of the call, and the leaf is changed
        // before that. SAFETY: the promise of `Target::new`.
        let body = unsafe { trail.leaf().as_leaf().body() };
        self.second_half(body, edit)?;
        let gone = RemovedSlots::of::<E>(body, edit.removed(), removed);
        self.commit::<S, false>(search, trail, &edit.change(body), holes, false)?;
        self.drop_gone(&gone);
        Ok(())
    }

    /// Carries out a change of the leaf on the way, and returns the leaf that is there now.
    ///
    /// Cost: for an exclusive owner four cache lines loaded and stored; beside readers those four
    /// are others, and come from the supplies, and there is one release store and two words for the
    /// grace period.
    ///
    /// `NARROW` says that the leaf is. `near` the last write it may well be one at the end of the
    /// leaf, where nothing moves. An exclusive owner then writes what is new and nothing else, and
    /// does not read by vectors what has only just been written.
    #[inline(always)]
    pub(super) fn commit<S: Search, const NARROW: bool>(
        &mut self,
        search: S,
        trail: &WriteDescent,
        change: &Change,
        holes: Holes,
        near: bool,
    ) -> Result<Link, Error> {
        let in_place = self.supplies.bin.is_exclusive();
        let old = trail.leaf().node().cast::<Leaf>();
        let new = if in_place { old } else { self.supplies.nodes.leaf()?.as_ptr() };
        // Nothing fails from here on.
        let copy = if change.splits { self.take_copy() } else { ptr::null_mut() };
        // A duplicate made ahead is for the next write only: its source may be gone by the one
        // after.
        self.supplies.drop_spare();
        if NARROW {
            // SAFETY: the caller's promise. It cannot be told from here, and what is done to wide
            // leaves is long.
            unsafe { hint::assert_unchecked(!(*old).body().is_wide()) }
        }
        // One entry for another, all of it: nothing about holes has changed, and their line is left
        // alone. A run at the very end changes the hole that is the largest on all levels, and
        // nothing need be read for that.
        let tail = near && holes.is_tail();
        let measured = !tail && (holes.gone != 0 || holes.after != 0);
        let gap = if measured {
            // SAFETY: the promise of `Target::new`; the leaf has not changed yet.
            unsafe { trail.gap_after(search, (*old).body(), holes) }
        } else {
            holes.after
        };
        // SAFETY: the owner is alone, and nobody has borrowed the leaf; or the block is ours, and
        // the old leaf stays as it is.
        unsafe {
            if near && in_place && change.moves_nothing() {
                change.put((*old).body_mut(), copy);
            } else {
                search.change(change, (old, old), new, copy);
            }
        }
        let leaf = trail.leaf();
        let link = Link::to_leaf(new);
        if !in_place {
            if trail.height() == 1 {
                self.tree.publish(link);
            } else {
                // SAFETY: the promise of `Target::new`; there are inner nodes.
                let (parent, slot) = unsafe { trail.step(1) };
                parent.publish(slot, link);
            }
        }
        // SAFETY: as above.
        unsafe {
            if measured {
                trail.settle_gap(search, gap);
            } else if tail {
                trail.settle_tail(gap);
            }
        }
        if !in_place {
            // SAFETY: the leaf was replaced by its copy.
            unsafe { self.supplies.bin.node(leaf) }
        }
        Ok(link)
    }
}
