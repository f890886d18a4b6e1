//! The search for an entry with its range: the one at an index, or the nearest on one side of it.
//!
//! The descent is that of [`load`](crate::node::load()). It also keeps two pointers: to the separators
//! before and at the end of the child's range. They are selected without branches, because the
//! child that holds an index cannot be predicted, and read only in the leaf. There one mask gives
//! the slot: the entries at and above (or at and below) the index's slot. If there is none on that
//! side, the search continues from the root with the index next to the leaf.
//!
//! Without a writer two descents are enough, because holes that touch are one hole, so only one
//! leaf can end (or begin) with a hole before the next entry. With a concurrent writer, a descent
//! sees what the tree held at some moment under the guard, for indices that no earlier descent has
//! covered (I1).
//!
//! Cursors and iterators go on from the place that they find, so their [`walk`] notes the nodes and
//! slots of the descent: two stores a level. They never search from the root again, which would
//! give up the promise that a walk meets each index once.
//!
//! Cost of a descent: that of `load`, and per level two selections and the header's line, which
//! `load` does not read; in the leaf two bounds, and a branch for its form. For random indices
//! about every tenth search needs the second descent, whose upper nodes are in the cache.

use super::spot::{Aim, Spot};
use super::unpack::Unpacked;
use super::{Descent, Span};
use crate::Index;
use crate::node::{Body, Job, Link, Search, run, word};
use core::hint::select_unpredictable;
use core::marker::PhantomData;
use core::ptr;

/// The entry that holds `index`; a null word if there is none.
///
/// # Safety
/// As for [`load`](crate::node::load()).
#[inline(always)]
pub(crate) unsafe fn lookup(root: Link, index: Index) -> Span {
    run(Lookup(root, index))
}

/// The lowest entry that ends at or after `index`. If it begins after `limit`, which is not below
/// `index`, that entry or a null word.
///
/// # Safety
/// As for [`load`](crate::node::load()).
#[inline(always)]
pub(crate) unsafe fn at_or_after(root: Link, index: Index, limit: Index) -> Span {
    run(AtOrAfter { root, index, limit })
}

/// The highest entry that begins at or before `index`. If it ends before `limit`, which is not
/// above `index`, that entry or a null word.
///
/// # Safety
/// As for [`load`](crate::node::load()).
#[inline(always)]
pub(crate) unsafe fn at_or_before(root: Link, index: Index, limit: Index) -> Span {
    run(AtOrBefore { root, index, limit })
}

/// Walks to the leaf that holds `index`, and there to the slot that `A` takes for it. Returns the
/// range and the word of the slot; the word of a hole is null. Without such a slot, walks to the
/// one that holds the index, and returns a null word.
///
/// Afterwards `path` leads to the leaf. Its steps have no ranges until [`Descent::complete`].
///
/// # Safety
/// As for [`Descent::walk`]; the root is not null. That holds for the place, too.
#[inline(always)]
pub(crate) unsafe fn walk<A: Aim>(
    root: Link,
    index: Index,
    path: &mut Descent,
    spot: &mut Spot,
) -> Span {
    run(Walk { root, index, path, spot, aim: PhantomData::<A> })
}

/// As [`walk`], and opens the entry there alone, if there is one.
///
/// # Safety
/// As for [`walk`]. That holds for `to`, too.
#[inline(always)]
pub(crate) unsafe fn walk_open<A: Aim, const UP: bool>(
    root: Link,
    index: Index,
    path: &mut Descent,
    spot: &mut Spot,
    to: &mut Unpacked<UP>,
) -> bool {
    run(WalkOpen(Walk { root, index, path, spot, aim: PhantomData::<A> }, to))
}

/// No entry.
const NONE: Span = Span { min: 0, max: 0, word: ptr::null_mut() };

/// The separator at the end of the whole index range. Index 0 comes after it, too, by wrapping.
static END: Index = Index::MAX;

/// A leaf, and pointers to the separators around it.
struct Place<'a> {
    leaf: Link,
    body: &'a Body,
    before: *const Index,
    last: *const Index,
}

impl Place<'_> {
    /// The leaf's first index.
    #[inline(always)]
    fn min(&self) -> Index {
        // SAFETY: `descend` selected a separator of a node that stays allocated, or `END`.
        unsafe { *self.before }.wrapping_add(1)
    }

    /// The leaf's last index.
    #[inline(always)]
    fn max(&self) -> Index {
        // SAFETY: as above.
        unsafe { *self.last }
    }

    /// The entry in a slot; `rank` is the number of entries below it.
    #[inline(always)]
    fn entry(&self, slot: usize, rank: usize) -> Span {
        // SAFETY: the room is initialised.
        let word = word::taken_out(unsafe { self.body.cell(rank).read() });
        let min = self.body.start_of(slot, self.min());
        Span { min, max: self.body.end_of(slot, self.max()), word }
    }
}

/// The leaf that holds `index`. The nodes and slots on the way are noted in `path`.
///
/// # Safety
/// As for [`load`](crate::node::load()); nodes stay allocated for `'a`.
#[cfg_attr(not(unoptimized), inline(always))]
unsafe fn descend<'a, S: Search>(
    search: S,
    root: Link,
    index: Index,
    path: &mut impl Notes,
) -> Place<'a> {
    let (mut link, mut before, mut last) = (root, &raw const END, &raw const END);
    path.begin(root);
    for level in (1..=root.level()).rev() {
        // SAFETY: the caller's promise.
        let inner = unsafe { &*ptr::from_ref(link.as_inner()) };
        inner.prefetch();
        // SAFETY: the caller's promise; a published node's separators do not change.
        let seps = unsafe { inner.seps() };
        let slot = search.inner(seps, index);
        path.note(level, link, slot);
        link = inner.child(slot);
        // The pointer before the first separator, and the one after the last, are not selected.
        let own = seps.bounds.as_ptr().wrapping_add(slot);
        before = select_unpredictable(slot == 0, before, own.wrapping_sub(1));
        last = select_unpredictable(slot + 1 < seps.len(), own, last);
    }
    // SAFETY: the caller's promise; a published leaf does not change.
    let body = unsafe { (*ptr::from_ref(link.as_leaf())).body() };
    body.prefetch_words();
    path.note(0, link, 0);
    Place { leaf: link, body, before, last }
}

/// Notes of a descent.
trait Notes {
    #[inline(always)]
    fn begin(&mut self, _root: Link) {}
    #[inline(always)]
    fn note(&mut self, _level: usize, _link: Link, _slot: usize) {}
}

/// None.
impl Notes for () {}

impl Notes for Descent {
    #[inline(always)]
    fn begin(&mut self, root: Link) {
        self.begin_partial(root);
    }

    #[inline(always)]
    fn note(&mut self, level: usize, link: Link, slot: usize) {
        self.set_place(level, link, slot);
    }
}

struct Lookup(Link, Index);

impl Job for Lookup {
    type Out = Span;

    #[cfg_attr(not(unoptimized), inline(always))]
    fn run<S: Search>(self, search: S) -> Span {
        let Lookup(root, index) = self;
        // SAFETY: the promise of `lookup`.
        let place = unsafe { descend(search, root, index, &mut ()) };
        let below = search.below(place.body, index);
        let entries = place.body.entries();
        if entries & (below + 1) == 0 {
            return NONE;
        }
        place.entry(below.count_ones() as usize, (entries & below).count_ones() as usize)
    }
}

struct AtOrAfter {
    root: Link,
    index: Index,
    limit: Index,
}

impl Job for AtOrAfter {
    type Out = Span;

    #[cfg_attr(not(unoptimized), inline(always))]
    fn run<S: Search>(self, search: S) -> Span {
        let AtOrAfter { root, mut index, limit } = self;
        loop {
            // SAFETY: the promise of `at_or_after`.
            let place = unsafe { descend(search, root, index, &mut ()) };
            let below = search.below(place.body, index);
            let entries = place.body.entries();
            let rest = entries & !below;
            if rest != 0 {
                // Between the index's slot and the entry's are only holes.
                let rank = (entries & below).count_ones() as usize;
                return place.entry(rest.trailing_zeros() as usize, rank);
            }
            if place.max() >= limit {
                return NONE;
            }
            index = place.max() + 1;
        }
    }
}

struct AtOrBefore {
    root: Link,
    index: Index,
    limit: Index,
}

impl Job for AtOrBefore {
    type Out = Span;

    #[cfg_attr(not(unoptimized), inline(always))]
    fn run<S: Search>(self, search: S) -> Span {
        let AtOrBefore { root, mut index, limit } = self;
        loop {
            // SAFETY: the promise of `at_or_before`.
            let place = unsafe { descend(search, root, index, &mut ()) };
            let below = search.below(place.body, index);
            // The index's slot and those below it.
            let rest = place.body.entries() & (2 * below + 1);
            if rest != 0 {
                return place.entry(rest.ilog2() as usize, rest.count_ones() as usize - 1);
            }
            if place.min() <= limit {
                return NONE;
            }
            index = place.min() - 1;
        }
    }
}

struct Walk<'w, A> {
    root: Link,
    index: Index,
    path: &'w mut Descent,
    spot: &'w mut Spot,
    aim: PhantomData<A>,
}

impl<A: Aim> Job for Walk<'_, A> {
    type Out = Span;

    #[inline(always)]
    fn run<S: Search>(self, search: S) -> Span {
        let Walk { root, index, path, spot, .. } = self;
        // SAFETY: the promise of `walk`.
        unsafe {
            let place = descend(search, root, index, path);
            let range = (place.min(), place.max());
            spot.locate::<A, S>(search, place.leaf, range, index)
        }
    }
}

struct WalkOpen<'w, A, const UP: bool>(Walk<'w, A>, &'w mut Unpacked<UP>);

impl<A: Aim, const UP: bool> Job for WalkOpen<'_, A, UP> {
    type Out = bool;

    #[cfg_attr(not(unoptimized), inline(always))]
    fn run<S: Search>(self, search: S) -> bool {
        let WalkOpen(Walk { root, index, path, spot, aim }, to) = self;
        let walk = Walk { root, index, path, spot: &mut *spot, aim };
        let span = walk.run(search);
        let found = !span.word.is_null();
        if found {
            // SAFETY: the promise of `walk_open`.
            unsafe { to.open_one(spot, span) };
        }
        found
    }
}
