//! The search for free ranges, guided by the gaps that inner nodes keep.
//!
//! A hole lies in one leaf, so `size` free indices fit below a child only if the child's gap is at
//! least `size`. Every other child is skipped unread.
//!
//! A hole that is long enough may still fail by alignment. After [`PATIENCE`] leaves with such
//! holes, the search looks for holes of `size + align - 1` indices, which cannot fail. The place
//! that it then finds need not be the lowest (highest) one any more. If no such hole exists, the
//! search starts again and looks at every hole that is long enough, before it reports that there is
//! no space.
//!
//! Cost: besides the descents to its bounds, a search visits only subtrees with a hole that is long
//! enough, so its cost is height times width. The exception is the last search for a place that
//! alignment makes rare: its cost grows with the tree. Most searches end in their first leaf, at
//! the first hole that is long enough. The position of that hole is unpredictable, so SIMD measures
//! all holes of a leaf ([`Search::holes`]) and all gaps of a node ([`Search::gaps`]) at once.
//!
//! Correctness with a concurrent writer: gaps are hints. A gap that is too large leads the search
//! to a subtree without a place, and the search goes on behind it. A gap that is too small hides a
//! hole that a writer is just making. A range that the search returns was free at some moment under
//! the guard, because the search reads it from a leaf.

use crate::Index;
use crate::descent::{Descent, Pick};
use crate::error::Error;
use crate::node::{self, Job, Link, Search};
use core::ops::RangeInclusive;

/// The request: `size` free indices, the first a multiple of `align`, inside `min..=max`.
#[derive(Clone, Copy)]
pub(crate) struct Want {
    min: Index,
    max: Index,
    size: Index,
    align: Index,
}

impl Want {
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) fn new(
        bounds: RangeInclusive<Index>,
        size: Index,
        align: Index,
    ) -> Result<Self, Error> {
        if bounds.is_empty() {
            Err(Error::EmptyRange)
        } else if size == 0 {
            Err(Error::ZeroSize)
        } else if !align.is_power_of_two() {
            Err(Error::BadAlign)
        } else {
            Ok(Want { min: *bounds.start(), max: *bounds.end(), size, align })
        }
    }

    /// The lowest (highest) place for the request in the hole `min..=max`.
    #[inline]
    fn place(&self, end: End, min: Index, max: Index) -> Option<Index> {
        match end {
            End::Lowest => self.lowest(min, max),
            End::Highest => self.highest(min, max),
        }
    }

    /// The lowest place for the request in the hole `min..=max`.
    #[inline(always)]
    fn lowest(&self, min: Index, max: Index) -> Option<Index> {
        let start = min.max(self.min);
        let start = start.checked_add(self.align - 1)? & !(self.align - 1);
        let end = start.checked_add(self.size - 1)?;
        (end <= max.min(self.max)).then_some(start)
    }

    /// The highest place for the request in the hole `min..=max`.
    #[inline(always)]
    fn highest(&self, min: Index, max: Index) -> Option<Index> {
        let start = max.min(self.max).checked_sub(self.size - 1)? & !(self.align - 1);
        (start >= min.max(self.min)).then_some(start)
    }
}

/// The number of leaves in which holes may fail by alignment. With five leaves of ten holes each, a
/// search takes less than three times as long as one for a rare hole.
const PATIENCE: usize = 5;

/// The length of the longest hole. `Index::MAX` for an empty tree, whose hole is one index longer.
///
/// Cost: reads the root only.
///
/// # Safety
/// As for [`Descent::walk`].
pub(crate) unsafe fn largest(root: Link) -> Index {
    if root.is_null() {
        return Index::MAX;
    }
    // A root covers every index, and a hole lies in one leaf, so no hole continues beyond the root.
    // SAFETY: the caller's promise.
    unsafe {
        if root.level() == 0 {
            root.as_leaf().body().largest_gap((0, Index::MAX))
        } else {
            root.as_inner().max_gap(Index::MAX)
        }
    }
}

/// The direction of a search.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Lowest,
    Highest,
}

/// The lowest (highest) place for the request, or another place if that one is far away.
///
/// Afterwards the steps of `path` lead to the hole; the caller must [complete](Descent::complete)
/// their ranges.
///
/// Cost: one node per level, and with SIMD one comparison of all holes of the leaf. One leaf in a
/// dozen has no place; then the search compares the parent's gaps and reads another leaf. That is
/// the only unpredictable branch.
///
/// # Safety
/// As for [`Descent::walk`].
pub(crate) unsafe fn search(
    root: Link,
    path: &mut Descent,
    want: &Want,
    end: End,
) -> Option<Index> {
    if root.is_null() {
        path.clear();
        return want.place(end, 0, Index::MAX);
    }
    match end {
        End::Lowest => search_from::<true>(root, path, want),
        End::Highest => search_from::<false>(root, path, want),
    }
}

/// The caller keeps the promise of [`Descent::walk`]; the root is not null.
#[inline(always)]
fn search_from<const UP: bool>(root: Link, path: &mut Descent, want: &Want) -> Option<Index> {
    if let Some(found) = node::run(First::<UP> { root, path: &mut *path, want }) {
        return Some(found);
    }
    search_on::<UP>(root, path, want)
}

/// Continues the search in the leaves after the first.
#[inline(never)]
fn search_on<const UP: bool>(root: Link, path: &mut Descent, want: &Want) -> Option<Index> {
    path.complete();
    match node::run(Rest::<UP> { path: &mut *path, want, patience: PATIENCE }) {
        Err(Hasty) => {
            // SAFETY: the promise of `search`.
            unsafe { path.walk(root, Pick::Index(if UP { want.min } else { want.max })) };
            let rest = Rest::<UP> { path, want, patience: usize::MAX };
            node::run(rest).unwrap_or(None)
        }
        Ok(found) => found,
    }
}

/// The search found no place in holes that cannot fail by alignment; it skipped the other holes.
struct Hasty;

/// The search in the first leaf. It is small, because most searches end here.
///
/// The code that makes one keeps the promise of [`Descent::walk`]; the root is not null.
struct First<'p, const UP: bool> {
    root: Link,
    path: &'p mut Descent,
    /// By reference: a copy would be stored in one width and loaded in another, and the load would
    /// wait.
    want: &'p Want,
}

impl<const UP: bool> Job for First<'_, UP> {
    type Out = Option<Index>;

    #[cfg_attr(not(unoptimized), inline(always))]
    fn run<S: Search>(self, search: S) -> Self::Out {
        let First { root, path, want } = self;
        let bound = if UP { want.min } else { want.max };
        // SAFETY: the promise of `search`.
        let (leaf, far) = unsafe { path.walk_to_leaf::<UP, S>(search, root, bound) };
        // The leaf may continue on the far side of the bound; that part is not searched.
        let range = if UP { (bound, far) } else { (far, bound) };
        let (slot, place) = in_leaf::<UP, false, S>(search, leaf, range, want, want.size)?;
        path.set_slot(0, slot);
        Some(place)
    }
}

/// The search in the leaves after the one that `path` leads to. Up to `patience` leaves, including
/// that one, may have holes that fail by alignment.
struct Rest<'p, const UP: bool> {
    path: &'p mut Descent,
    want: &'p Want,
    patience: usize,
}

impl<const UP: bool> Job for Rest<'_, UP> {
    type Out = Result<Option<Index>, Hasty>;

    #[cfg_attr(not(unoptimized), inline(always))]
    fn run<S: Search>(self, search: S) -> Self::Out {
        let Rest { path, want, mut patience } = self;
        // The minimal length of a hole that the search reads.
        let mut size = want.size;
        loop {
            patience -= usize::from(want.align > 1);
            if patience == 0 {
                size = want.size.saturating_add(want.align - 1);
                patience = usize::MAX;
            }
            let step = path.step(0);
            let beyond = if UP { step.max >= want.max } else { step.min <= want.min };
            if beyond || !next_leaf::<UP, S>(search, path, want, size) {
                return if size == want.size { Ok(None) } else { Err(Hasty) };
            }
            let (leaf, range) = (path.step(0).link, (path.step(0).min, path.step(0).max));
            if let Some((slot, place)) = in_leaf::<UP, true, S>(search, leaf, range, want, size) {
                path.set_slot(0, slot);
                return Ok(Some(place));
            }
        }
    }
}

/// The slot and the place in a leaf, restricted to `range` and to holes of at least `size`.
#[inline(always)]
fn in_leaf<const UP: bool, const ENDS: bool, S: Search>(
    search: S,
    leaf: Link,
    range: (Index, Index),
    want: &Want,
    size: Index,
) -> Option<(usize, Index)> {
    let bound = if UP { want.min } else { want.max };
    // SAFETY: the invariant of the path.
    let body = unsafe { leaf.as_leaf().body() };
    let holes = search.holes::<UP, ENDS>(body, range, bound, (size, want.align));
    let place = |min, max| if UP { want.lowest(min, max) } else { want.highest(min, max) };
    body.find_place::<UP>(holes, range, place)
}

/// Moves `path` to the next leaf, in the direction of the search, that may have a hole of `size`.
/// Returns false if there is none inside the bounds.
#[cfg_attr(not(unoptimized), inline(always))]
fn next_leaf<const UP: bool, S: Search>(
    search: S,
    path: &mut Descent,
    want: &Want,
    size: Index,
) -> bool {
    // Go up to a node with another child that has such a gap, then down along such children.
    let mut level = 1;
    'up: while level < path.height() {
        let Some(mut slot) = candidate::<UP, S>(search, path, level, size, false) else {
            level += 1;
            continue;
        };
        loop {
            let from = path.step(level);
            // SAFETY: the invariant of the path.
            let seps = unsafe { from.link.as_inner().seps() };
            let beyond = if UP {
                seps.start(slot, from.min) > want.max
            } else {
                seps.end(slot, from.max) < want.min
            };
            if beyond {
                return false;
            }
            // One level down only: the search chooses the child there by its gap.
            path.set_floor(level - 1);
            path.turn(level, slot, if UP { Pick::First } else { Pick::Last });
            level -= 1;
            if level == 0 {
                return true;
            }
            match candidate::<UP, S>(search, path, level, size, true) {
                Some(next) => slot = next,
                // The gap was a stale hint of a concurrent writer: this subtree has no such
                // hole.
                None => {
                    level += 1;
                    continue 'up;
                }
            }
        }
    }
    false
}

/// The next child of the node at `level` whose gap is at least `size`; with `here` the present
/// child counts, too.
#[cfg_attr(not(unoptimized), inline(always))]
fn candidate<const UP: bool, S: Search>(
    search: S,
    path: &Descent,
    level: usize,
    size: Index,
    here: bool,
) -> Option<usize> {
    let step = path.step(level);
    // SAFETY: the invariant of the path.
    let inner = unsafe { step.link.as_inner() };
    // Unused slots have no gap.
    let fits = search.gaps(inner, size);
    let here = u32::from(here);
    if UP {
        let fits = fits & (u32::MAX << (step.slot as u32 + 1 - here));
        (fits != 0).then(|| fits.trailing_zeros() as usize)
    } else {
        let fits = fits & ((1 << (step.slot as u32 + here)) - 1);
        fits.checked_ilog2().map(|slot| slot as usize)
    }
}

#[cfg(test)]
mod tests;
