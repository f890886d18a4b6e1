//! The general write that stays within one leaf. Nearly all writes do.
//!
//! The leaf is copied, the copy changed, and one store puts it into the parent. An exclusive owner
//! changes the leaf itself. A narrow leaf whose form does not fit a new bound gets another form. A
//! leaf without room is split, a hole that continues in the next leaf and a leaf that would have
//! too little go to another of the rewrites ([`crate::write::rewrite`]), and the rest to the plan.
//!
//! Cost with concurrent readers: the descent, one allocation, four cache lines copied, one release
//! store, two words for the grace period. For an exclusive owner: the descent, and two short moves
//! in the leaf.
//!
//! The largest gap of the leaf is measured again: with AVX-512 always, except for a moved end;
//! otherwise only if a hole that was the largest has changed. It is always stored, which writes one
//! more cache line, of the parent.

use crate::Index;
use crate::alloc::NodeAlloc;
use crate::entry::{Entry, Raw};
use crate::error::Error;
use crate::node::{self, Body, Edit, Fit, Job, Leaf, Search};
use crate::write::descent::WriteDescent;
use crate::write::leaf::fast::Fast;
use crate::write::leaf::place::{Holes, Place};
use crate::write::leaf::removed::RemovedSlots;
use crate::write::{Removed, SHORTCUTS, Target};
use core::hint;
use core::ptr::{self, NonNull};
use grace::Reclaim;

/// The effects of a write.
#[derive(Clone, Copy)]
pub(in crate::write) struct Demands {
    /// It makes a hole instead of an entry.
    hole: bool,
    /// It fails if an entry is in the range.
    insert: bool,
    /// It covers the whole entry that holds `first`.
    whole: bool,
    /// The caller keeps the removed entry, so that it is not dropped.
    keep: bool,
}

impl Demands {
    /// An entry replaces what is in the range.
    const STORE: Demands = Demands { hole: false, insert: false, whole: false, keep: false };
}

/// The kind of a write. Each kind is compiled separately, by its type. In small code the demands
/// are the type of all kinds.
pub(in crate::write) trait QuickWrite: Copy {
    /// The effects of a write of this kind.
    fn demands(self) -> Demands;
}

/// Replaces the range by an entry.
#[derive(Clone, Copy)]
pub(in crate::write) struct Store;
/// Replaces the range by a hole.
#[derive(Clone, Copy)]
pub(in crate::write) struct Clear;
/// Puts an entry into a free range.
#[derive(Clone, Copy)]
pub(in crate::write) struct Insert;
/// Replaces the entry that holds `first` by a hole. The caller gets the entry.
#[derive(Clone, Copy)]
pub(in crate::write) struct Erase;
/// Replaces an entry by itself over a longer range, which begins with the entry and is free behind
/// it.
#[derive(Clone, Copy)]
pub(in crate::write) struct Extend;

impl QuickWrite for Store {
    fn demands(self) -> Demands {
        Demands::STORE
    }
}
impl QuickWrite for Clear {
    fn demands(self) -> Demands {
        Demands { hole: true, ..Demands::STORE }
    }
}
impl QuickWrite for Insert {
    fn demands(self) -> Demands {
        Demands { insert: true, ..Demands::STORE }
    }
}
impl QuickWrite for Erase {
    fn demands(self) -> Demands {
        Demands { hole: true, whole: true, keep: true, ..Demands::STORE }
    }
}
impl QuickWrite for Extend {
    fn demands(self) -> Demands {
        Demands { keep: true, ..Demands::STORE }
    }
}
#[cfg(feature = "small")]
impl QuickWrite for Demands {
    fn demands(self) -> Demands {
        self
    }
}

/// The outcome of a write.
pub(in crate::write) enum Outcome {
    /// Done. An erase returns the entry with its range.
    Done(Option<(Index, Index, Raw)>),
    Failed(Error),
    /// Nothing was done; the plan must replace `first..=last`. An erase returns the entry found.
    Plan(Index, Index, Option<(Index, Index, Raw)>),
}

impl Outcome {
    #[inline(always)]
    fn found(done: Result<(), Error>, entry: Option<(Index, Index, Raw)>) -> Outcome {
        match done {
            Ok(()) => Outcome::Done(entry),
            Err(error) => Outcome::Failed(error),
        }
    }
}

/// A write in progress.
struct Quick<'q, 't, K, E: Entry, R: Reclaim, A: NodeAlloc> {
    target: &'q mut Target<'t, E, R, A>,
    first: Index,
    last: Index,
    word: *mut (),
    kind: K,
}

impl<K: QuickWrite, E: Entry, R: Reclaim, A: NodeAlloc> Job for Quick<'_, '_, K, E, R, A> {
    type Out = Outcome;

    #[cfg_attr(not(unoptimized), inline(always))]
    fn run<S: Search>(self, search: S) -> Outcome {
        let Quick { target, mut first, mut last, mut word, kind } = self;
        let demands = kind.demands();
        if demands.hole {
            word = ptr::null_mut();
        } else {
            // SAFETY: the promise of `quick`.
            unsafe { hint::assert_unchecked(!word.is_null()) }
        }
        let removed = if demands.keep { Removed::Keep } else { Removed::Drop };
        let mut descent = WriteDescent::new();
        let (place, from, shared) = target.reach(search, first, &mut descent);
        let Place { descent, body } = place;
        let mut to = from;
        let mut found = None;
        if demands.whole {
            let Some(raw) = NonNull::new(body.word(from)) else { return Outcome::Done(None) };
            (first, last) = (place.start(from), place.end(from));
            found = Some((first, last, raw));
        } else {
            if demands.insert && !body.is_hole(from) {
                return Outcome::Failed(occupied(place, from));
            }
            if last > place.end(from) {
                if last > place.end(body.len() - 1) {
                    let erased = if SHORTCUTS && demands.hole && !shared {
                        target.erase_span_from(search, descent, (first, last), from, removed)
                    } else {
                        Fast::Other
                    };
                    return match erased {
                        Fast::Done => Outcome::Done(None),
                        Fast::OutOfMemory => Outcome::Failed(Error::OutOfMemory),
                        Fast::Again | Fast::Other => Outcome::Plan(first, last, None),
                    };
                }
                if demands.insert {
                    // A hole ends at an entry.
                    return Outcome::Failed(occupied(place, from + 1));
                }
                to = search.leaf(body, last);
            }
        }
        if shared {
            return Outcome::Plan(first, last, found);
        }
        let change = if demands.hole {
            hole(place, (from, to), (first, last))
        } else {
            Some(entry(place, (from, to), (first, last), word))
        };
        let Some((edit, holes)) = change else {
            // The hole continues in the next leaf.
            let whole = SHORTCUTS
                && from == to
                && !body.is_hole(from)
                && (demands.whole || (first, last) == (place.start(from), place.end(from)));
            return match if whole { target.border(search, descent, from, removed) } else { None } {
                Some(done) => Outcome::found(done, found),
                None => Outcome::Plan(first, last, found),
            };
        };
        let Some(edit) = edit else { return Outcome::Done(None) };
        let made = match edit.fit(body, descent.height() == 1) {
            Fit::Fits => target.make(search, descent, &edit, holes, removed, None),
            Fit::Full => match target.split(search, descent, (&edit, holes), removed) {
                Some(made) => made,
                None => return Outcome::Plan(first, last, found),
            },
            Fit::Not => match target.make_reformed(search, descent, &edit, holes, removed) {
                Some(made) => made,
                None => return Outcome::Plan(first, last, found),
            },
        };
        Outcome::found(made, found)
    }
}

#[cold]
fn occupied(place: Place, slot: usize) -> Error {
    Error::Occupied { start: place.start(slot), end: place.end(slot) }
}

/// The change that makes `first..=last` a hole, and its effect on holes. The range lies in the
/// slots `from..=to`. The outer `None`: the change is not within this leaf. The inner: nothing
/// changes.
#[cfg_attr(not(unoptimized), inline(always))]
fn hole(
    place: Place,
    (mut from, mut to): (usize, usize),
    (mut first, mut last): (Index, Index),
) -> Option<(Option<Edit>, Holes)> {
    let body = place.body;
    let (mut start, mut end) = (place.start(from), place.end(to));
    // Holes stay whole: the new hole is merged with the holes next to it.
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
    // It is longer than the holes merged into it.
    let holes = Holes::made((last - first).wrapping_add(1), (start, end));
    let rests = (start < first, last < end);
    Some((Some(Edit::new(body, (from, to), rests, (first, last), ptr::null_mut())), holes))
}

/// The change that makes `first..=last` an entry. The range lies in the slots `from..=to`.
#[cfg_attr(not(unoptimized), inline(always))]
fn entry(
    place: Place,
    (from, to): (usize, usize),
    (first, last): (Index, Index),
    word: *mut (),
) -> (Option<Edit>, Holes) {
    let body = place.body;
    let (start, end) = (place.start(from), place.end(to));
    // The rests of holes on both sides.
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

/// The longest hole in some slots.
#[inline]
fn longest(place: Place, from: usize, to: usize) -> Index {
    let length = |slot| (place.end(slot) - place.start(slot)).wrapping_add(1);
    (from..=to).filter(|&slot| place.body.is_hole(slot)).map(length).max().unwrap_or(0)
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Target<'_, E, R, A> {
    /// Makes a write of this kind, if it stays within a leaf or is one of the rewrites. `word` must
    /// be null if and only if the kind makes a hole.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(in crate::write) fn quick(
        &mut self,
        kind: impl QuickWrite,
        (first, last): (Index, Index),
        word: *mut (),
    ) -> Outcome {
        debug_assert!(word.is_null() == kind.demands().hole);
        // All kinds share one function.
        #[cfg(feature = "small")]
        let kind = kind.demands();
        node::run(Quick { target: self, first, last, word, kind })
    }

    /// Descends to the slot that holds an index, and returns whether a node on the path is shared
    /// with another tree.
    #[inline(always)]
    pub(in crate::write) fn reach<'p, S: Search>(
        &self,
        search: S,
        index: Index,
        descent: &'p mut WriteDescent,
    ) -> (Place<'p>, usize, bool) {
        // SAFETY: the promise of `Target::new`; the root is not null.
        let shared = unsafe { descent.walk(search, self.tree.load(), index, E::SHARES) };
        let descent = &*descent;
        // SAFETY: as above.
        let body = unsafe { descent.leaf().as_leaf().body() };
        (Place { descent, body }, search.leaf(body, index), shared)
    }

    /// Provides the second half of an entry that a change splits.
    #[inline(always)]
    pub(in crate::write) fn second_half(&mut self, body: &Body, edit: &Edit) -> Result<(), Error> {
        if edit.splits()
            && let Some(source) = NonNull::new(body.word(edit.from))
        {
            // SAFETY: the entry is in the tree; the new one is not in it yet.
            unsafe { self.supplies.provide(source, edit.word)? }
        }
        Ok(())
    }

    /// Makes a change whose bounds do not fit the form of a narrow leaf: the leaf gets another
    /// form. Returns `None`, and does nothing, if that is not the reason, or if a leaf of the other
    /// form does not hold the slots.
    #[cold]
    #[inline(never)]
    fn make_reformed<S: Search>(
        &mut self,
        search: S,
        descent: &WriteDescent,
        edit: &Edit,
        holes: Holes,
        removed: Removed,
    ) -> Option<Result<(), Error>> {
        // SAFETY: the promise of `Target::new`.
        let body = unsafe { descent.leaf().as_leaf().body() };
        if body.is_wide() {
            return None;
        }
        let other = body.reformed(edit.bounds())?;
        if edit.fit(&other, descent.height() == 1) != Fit::Fits {
            return None;
        }
        let from = Leaf::new(other);
        Some(self.make(search, descent, edit, holes, removed, Some(&from)))
    }

    /// Makes a change that fits into the leaf, or into `from`, which has the same slots.
    #[cfg_attr(not(unoptimized), inline(always))]
    fn make<S: Search>(
        &mut self,
        search: S,
        descent: &WriteDescent,
        edit: &Edit,
        holes: Holes,
        removed: Removed,
        from: Option<&Leaf>,
    ) -> Result<(), Error> {
        // Not an argument: a reference argument stays borrowed until the call returns, but the leaf
        // is changed before that. SAFETY: the promise of `Target::new`.
        let body = unsafe { descent.leaf().as_leaf().body() };
        self.second_half(body, edit)?;
        let gone = RemovedSlots::of::<E>(body, edit.removed(), removed);
        let from = from.map_or(descent.leaf().node().cast::<Leaf>().cast_const(), ptr::from_ref);
        // SAFETY: the leaf does not change before the change is made.
        let change = edit.change(unsafe { (*from).body() });
        self.commit_from(search, descent, from, &change, holes, (None, false))?;
        self.drop_gone(&gone);
        Ok(())
    }
}
