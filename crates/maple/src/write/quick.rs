//! A write that stays within one leaf: nearly all of them.
//!
//! The leaf is copied, the copy changed, and put in its parent's slot by one store. An exclusive owner changes
//! the leaf itself. A leaf without room is cut in two first ([`super::split`]). What needs another form of
//! leaf, would leave too little, or concerns a hole that goes on in the next leaf, is left to the plan.
//!
//! Cost, beside readers: the walk, one block, four cache lines copied, one release store, two words for the
//! grace period; for an exclusive owner: the walk, and two short moves in the leaf. The largest gap of the
//! leaf is counted anew only if the hole that it came from has become smaller.

use super::gone::Gone;
use super::trail::Trail;
use super::{Need, Removed, Target};
use crate::alloc::NodeAlloc;
use crate::entry::{Entry, Raw};
use crate::error::Error;
use crate::node::{Body, Edit, Fit, Job, Leaf, Link, Search};
use core::ptr::{self, NonNull};
use grace::Reclaim;

/// What a write is to do.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Replace what is there.
    Store,
    /// Only if nothing is there.
    Insert,
    /// Remove the entry that holds `first`, whole.
    Erase,
}

/// What came of it.
pub(super) enum Outcome {
    /// Done. For an erase: the entry, with its range.
    Done(Option<(usize, usize, Raw)>),
    Failed(Error),
    /// Nothing done: it takes a plan. What to replace, `first..=last`; an erase has found the entry.
    Plan(usize, usize, Option<(usize, usize, Raw)>),
}

/// A write on its way.
pub(super) struct Quick<'q, 't, E: Entry, R: Reclaim, A: NodeAlloc> {
    pub(super) target: &'q mut Target<'t, E, R, A>,
    pub(super) kind: Kind,
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) word: *mut (),
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Job for Quick<'_, '_, E, R, A> {
    type Out = Outcome;

    #[inline(always)]
    fn run<S: Search>(self, search: S) -> Outcome {
        let Quick { target, kind, mut first, mut last, word } = self;
        let trail = &mut Trail::new();
        // SAFETY: the target's promise; the root is not null.
        unsafe { trail.walk(search, target.tree.load(), first) };
        // SAFETY: as above.
        let body = unsafe { trail.leaf.as_leaf().body() };
        let slot = search.leaf(body, first);
        let (start, end) = (body.start(slot, trail.min), body.end(slot, trail.max));
        let mut found = None;
        match kind {
            Kind::Store => {}
            Kind::Insert => {
                if !body.is_hole(slot) {
                    return Outcome::Failed(Error::Occupied { start, end });
                }
                if last > end {
                    // A hole ends at an entry.
                    if slot + 1 == body.len() {
                        return Outcome::Plan(first, last, None);
                    }
                    let (start, end) = (end + 1, body.end(slot + 1, trail.max));
                    return Outcome::Failed(Error::Occupied { start, end });
                }
            }
            Kind::Erase => {
                let Some(raw) = NonNull::new(body.word(slot)) else { return Outcome::Done(None) };
                (first, last) = (start, end);
                found = Some((start, end, raw));
            }
        }
        // SAFETY: the target's promise.
        if last > trail.max || (E::SHARES && unsafe { trail.is_shared() }) {
            return Outcome::Plan(first, last, found);
        }
        let (mut to, mut to_end) = (slot, end);
        if last > end {
            to = search.leaf(body, last);
            to_end = body.end(to, trail.max);
        }
        let ends = Ends { from: slot, start, to, end: to_end };
        let removed = if kind == Kind::Erase { Removed::Keep } else { Removed::Drop };
        let Some((edit, holes)) = edit(body, trail, ends, first, last, word) else {
            // A hole that goes on in the next leaf.
            let whole = slot == to && (first, last) == (start, end) && !body.is_hole(slot);
            return match if whole { target.border(trail, slot, removed) } else { None } {
                Some(Ok(())) => Outcome::Done(found),
                Some(Err(error)) => Outcome::Failed(error),
                None => Outcome::Plan(first, last, found),
            };
        };
        let Some(edit) = edit else { return Outcome::Done(None) };
        let made = match edit.fit(body, trail.height == 1) {
            Fit::Fits => target.make(trail, &edit, holes, removed),
            // A wide leaf is packed anew: its contents may be narrow by now.
            Fit::Full if trail.height > 1 && !body.is_wide() => {
                match target.split(trail, &edit, removed) {
                    Some(made) => made,
                    None => return Outcome::Plan(first, last, found),
                }
            }
            _ => return Outcome::Plan(first, last, found),
        };
        match made {
            Ok(()) => Outcome::Done(found),
            Err(error) => Outcome::Failed(error),
        }
    }
}

/// The slots that hold the ends of a range, with the start of the one and the end of the other.
#[derive(Clone, Copy)]
struct Ends {
    from: usize,
    start: usize,
    to: usize,
    end: usize,
}

/// The longest hole that a change takes, and that it makes.
#[derive(Clone, Copy)]
pub(super) struct Holes {
    before: usize,
    after: usize,
}

/// The change of a leaf, holes that it takes in included. The outer `None`: not within this leaf; the inner:
/// nothing to change.
#[inline(always)]
fn edit(
    body: &Body,
    trail: &Trail,
    mut ends: Ends,
    mut first: usize,
    mut last: usize,
    word: *mut (),
) -> Option<(Option<Edit>, Holes)> {
    let mut holes = Holes { before: 0, after: 0 };
    if word.is_null() {
        // Holes stay whole: a hole next to a hole takes it in.
        if body.is_hole(ends.from) {
            if ends.from == ends.to {
                return Some((None, holes));
            }
            first = ends.start;
        } else if first == ends.start {
            if ends.from > 0 {
                if body.is_hole(ends.from - 1) {
                    ends.from -= 1;
                    ends.start = body.start(ends.from, trail.min);
                    first = ends.start;
                }
            } else if first > 0 {
                return None;
            }
        }
        if body.is_hole(ends.to) {
            last = ends.end;
        } else if last == ends.end {
            if ends.to + 1 < body.len() {
                if body.is_hole(ends.to + 1) {
                    ends.to += 1;
                    ends.end = body.end(ends.to, trail.max);
                    last = ends.end;
                }
            } else if last < usize::MAX {
                return None;
            }
        }
        // It is longer than those that it takes in.
        holes.after = (last - first).wrapping_add(1);
    } else {
        if body.is_hole(ends.from) {
            holes.after = first - ends.start;
        }
        if body.is_hole(ends.to) {
            holes.after = holes.after.max(ends.end - last);
        }
        holes.before = if ends.from == ends.to {
            if body.is_hole(ends.from) { (ends.end - ends.start).wrapping_add(1) } else { 0 }
        } else {
            longest(body, trail, ends)
        };
    }
    let (left, right) = (ends.start < first, last < ends.end);
    let edit = Edit::new(body, (ends.from, ends.to), (left, right), (first, last), word);
    Some((Some(edit), holes))
}

/// The longest hole among some slots.
fn longest(body: &Body, trail: &Trail, ends: Ends) -> usize {
    let length = |slot| (body.end(slot, trail.max) - body.start(slot, trail.min)).wrapping_add(1);
    (ends.from..=ends.to).filter(|&slot| body.is_hole(slot)).map(length).max().unwrap_or(0)
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Target<'_, E, R, A> {
    /// The second half of an entry that a change splits, or null.
    #[inline(always)]
    pub(super) fn second_half(&mut self, body: &Body, edit: &Edit) -> Result<(), Error> {
        if edit.splits()
            && let Some(source) = NonNull::new(body.word(edit.from))
        {
            // SAFETY: the entry is in the tree.
            unsafe { self.supplies.provide(source)? }
        }
        Ok(())
    }

    /// Makes a change that fits.
    #[inline(always)]
    fn make(
        &mut self,
        trail: &Trail,
        edit: &Edit,
        holes: Holes,
        removed: Removed,
    ) -> Result<(), Error> {
        // Not an argument: those are borrowed to the end of the call, and the leaf is changed before that.
        // SAFETY: the promise of `Target::new`.
        let body = unsafe { trail.leaf.as_leaf().body() };
        self.second_half(body, edit)?;
        let in_place = self.supplies.bin.is_exclusive();
        if !in_place {
            self.supplies.nodes.fill(Need { leaves: 1, inners: 0 })?;
        }
        // Nothing fails from here on.
        let copy = if edit.splits() { self.take_copy() } else { ptr::null_mut() };
        let gone = Gone::of::<E>(body, edit.removed(), removed);
        let link = if in_place {
            // SAFETY: the owner is alone, and `body` is not used any more.
            edit.apply(unsafe { trail.leaf.as_leaf().body_mut() }, copy);
            trail.leaf
        } else {
            let leaf = self.supplies.nodes.take_leaf(Leaf::new(*body));
            // SAFETY: the leaf is new and only ours.
            edit.apply(unsafe { leaf.as_ref().body_mut() }, copy);
            let link = Link::leaf(leaf);
            if trail.height == 1 {
                self.tree.publish(link);
            } else {
                // SAFETY: the promise of `Target::new`.
                let (parent, slot) = unsafe { trail.step(1) };
                parent.publish(slot, link);
            }
            link
        };
        if trail.height > 1 {
            update_gap(trail, link, holes);
        }
        if !in_place {
            // SAFETY: the leaf was replaced by its copy.
            unsafe { self.supplies.bin.node(trail.leaf) }
        }
        self.finish(&gone);
        Ok(())
    }
}

/// Brings the gaps on the way up to date after a change of the leaf, which is `link` now.
#[inline(always)]
fn update_gap(trail: &Trail, link: Link, holes: Holes) {
    // SAFETY: the promise of `Target::new`; the tree has inner nodes.
    let (parent, slot) = unsafe { trail.step(1) };
    let gap = parent.gap(slot);
    let gap = if holes.after >= gap {
        holes.after
    } else if holes.before == gap {
        // SAFETY: the writer's right.
        unsafe { link.as_leaf().body() }.gap(trail.min, trail.max, gap)
    } else {
        return;
    };
    // SAFETY: as above.
    unsafe { trail.raise_gap(1, gap) }
}
