//! The search for free runs, by the gaps that inner nodes keep.
//!
//! A hole lies in one leaf, so a run of `size` fits below a child only if the child's gap is at least
//! `size`; every other child is skipped without a look. So a search meets, besides the path to its
//! bound, only subtrees that have a hole long enough: its cost is height times width unless such holes
//! fail by alignment or by being cut by the bounds.
//!
//! Beside a writer the gaps are hints: one that is too large sends the search down in vain and it goes
//! on with the next; one that is too small hides a hole that is being made at that moment. A run that is
//! returned was free at some moment under the guard, since it was read from a leaf.

use crate::error::Error;
use crate::node::Link;
use crate::path::{Path, Pick, Span};
use core::ops::RangeInclusive;

/// What is looked for: `size` free indices at a multiple of `align`, inside `min..=max`.
#[derive(Clone, Copy)]
pub(crate) struct Want {
    min: usize,
    max: usize,
    size: usize,
    align: usize,
}

impl Want {
    pub(crate) fn new(
        bounds: RangeInclusive<usize>,
        size: usize,
        align: usize,
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

    /// The lowest place in the hole `min..=max`.
    fn lowest(&self, min: usize, max: usize) -> Option<usize> {
        let start = min.max(self.min);
        let start = start.checked_add(self.align - 1)? & !(self.align - 1);
        let end = start.checked_add(self.size - 1)?;
        (end <= max.min(self.max)).then_some(start)
    }

    /// The highest place in the hole `min..=max`.
    fn highest(&self, min: usize, max: usize) -> Option<usize> {
        let start = max.min(self.max).checked_sub(self.size - 1)? & !(self.align - 1);
        (start >= min.max(self.min)).then_some(start)
    }
}

/// Which of two searches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    Lowest,
    Highest,
}

/// The lowest (highest) place of what is wanted; `path` then leads to its hole.
///
/// # Safety
/// As for [`Path::walk`].
pub(crate) unsafe fn search(root: Link, path: &mut Path, want: Want, end: End) -> Option<usize> {
    let place = |span: Span| match end {
        _ if !span.word.is_null() => None,
        End::Lowest => want.lowest(span.min, span.max),
        End::Highest => want.highest(span.min, span.max),
    };
    let bound = if end == End::Lowest { want.min } else { want.max };
    // SAFETY: the caller's promise.
    unsafe { path.walk(root, Pick::Index(bound)) };
    if root.is_null() {
        return place(Span { min: 0, max: usize::MAX, word: core::ptr::null_mut() });
    }
    loop {
        // The rest of this leaf.
        loop {
            let step = *path.step(0);
            let span = path.span();
            if let Some(found) = place(span) {
                return Some(found);
            }
            let next = match end {
                End::Lowest if span.max >= want.max => return None,
                End::Highest if span.min <= want.min => return None,
                End::Lowest => step.slot + 1,
                End::Highest => step.slot.wrapping_sub(1),
            };
            if next >= step.len() {
                break;
            }
            path.set_slot(0, next);
        }
        if !next_leaf(path, want, end) {
            return None;
        }
    }
}

/// Goes to the next leaf (in the direction of the search) that may have a hole long enough.
fn next_leaf(path: &mut Path, want: Want, end: End) -> bool {
    // Up until a node has another child with such a gap, then down along such children.
    let mut level = 1;
    'up: while level < path.height() {
        let Some(mut slot) = candidate(path, level, want.size, end, false) else {
            level += 1;
            continue;
        };
        loop {
            let from = path.step(level);
            // SAFETY: the path's invariant.
            let seps = unsafe { from.link.as_inner().seps() };
            let beyond = match end {
                End::Lowest => seps.start(slot, from.min) > want.max,
                End::Highest => seps.end(slot, from.max) < want.min,
            };
            if beyond {
                return false;
            }
            // One level down only: the child chosen there need not be its first.
            path.set_floor(level - 1);
            path.turn(level, slot, if end == End::Lowest { Pick::First } else { Pick::Last });
            level -= 1;
            if level == 0 {
                return true;
            }
            match candidate(path, level, want.size, end, true) {
                Some(next) => slot = next,
                // A stale hint, beside a writer: nothing here after all.
                None => {
                    level += 1;
                    continue 'up;
                }
            }
        }
    }
    false
}

/// The next child (the present one counts if `here`) of the node at `level` whose gap is large enough.
fn candidate(path: &Path, level: usize, size: usize, end: End, here: bool) -> Option<usize> {
    let step = path.step(level);
    // SAFETY: the path's invariant.
    let inner = unsafe { step.link.as_inner() };
    let fits = |&slot: &usize| inner.gap(slot) >= size;
    match end {
        End::Lowest => (step.slot + usize::from(!here)..step.len()).find(fits),
        End::Highest => (0..step.slot + usize::from(here)).rev().find(fits),
    }
}
