//! A write that stays within one leaf: nearly all of them.
//!
//! The leaf is copied, the copy changed, and put in its parent's slot by one store. An exclusive owner changes
//! the leaf itself. What does not fit, would leave too little, or concerns a hole that goes on in the next
//! leaf, is left to the plan.
//!
//! Cost, beside readers: the walk, one block, four cache lines copied, one release store, one deferred
//! free; for an exclusive owner: the walk, and two short moves in the leaf. The largest gap of the leaf is counted
//! anew only if the hole that it came from has become smaller.

use super::publish::raise_gap;
use super::{Need, Removed, Target};
use crate::alloc::NodeAlloc;
use crate::entry::Entry;
use crate::error::Error;
use crate::layout::LEAF_SLOTS;
use crate::node::{Body, Leaf, Link, Slot, Splice};
use crate::path::{Path, Step};
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use grace::Reclaim;

/// The holes that a write takes and makes: how long the longest of each is.
struct Holes {
    before: usize,
    after: usize,
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Target<'_, E, R, A> {
    /// Replaces what lies in `first..=last` by `new`, if it can be done within the leaf to which `path` leads;
    /// `None`, and nothing done, if not.
    #[inline]
    pub(super) fn quick(
        &mut self,
        path: &Path,
        first: usize,
        last: usize,
        new: *mut (),
        removed: Removed,
    ) -> Option<Result<(), Error>> {
        let step = path.step(0);
        if last > step.max {
            return None;
        }
        // SAFETY: the path's invariant.
        let body = unsafe { step.link.as_leaf().body() };
        let Some((splice, first, last)) = splice(body, step, first, last, new)? else {
            return Some(Ok(()));
        };
        if !splice.fits(body, path.height() == 1) {
            return None;
        }
        Some(self.make(path, body, splice, first, last, removed))
    }

    /// Makes a change that fits. It replaces `first..=last`.
    #[inline]
    fn make(
        &mut self,
        path: &Path,
        body: &Body,
        mut splice: Splice,
        first: usize,
        last: usize,
        removed: Removed,
    ) -> Result<(), Error> {
        let step = *path.step(0);
        let in_place = self.supplies.bin.is_exclusive();
        if let Some(right) = splice.right
            && let Some(source) = NonNull::new(right)
            && splice.left.is_some()
            && splice.from == splice.to
        {
            // An entry is split in two.
            // SAFETY: the entry is in the tree.
            unsafe { self.supplies.provide(source)? }
            if !in_place {
                self.supplies.nodes.fill(Need { leaves: 1, inners: 0 })?;
            }
            splice.right = Some(self.take_copy());
        } else if !in_place {
            self.supplies.nodes.fill(Need { leaves: 1, inners: 0 })?;
        }
        // Nothing fails from here on.
        let holes = holes(body, &step, &splice, first, last);
        let gone = if E::NEEDS_DROP && removed == Removed::Drop {
            Some(Gone::of(body, &splice))
        } else {
            None
        };
        let link = if in_place {
            // SAFETY: the owner is alone, and `body` is not used any more.
            splice.apply(unsafe { step.link.as_leaf().body_mut() });
            step.link
        } else {
            let leaf = self.supplies.nodes.take_leaf(Leaf::new(*body));
            // SAFETY: the leaf is new and only ours.
            splice.apply(unsafe { leaf.as_ref().body_mut() });
            let link = Link::leaf(leaf);
            match path.height() {
                1 => self.tree.publish(link),
                _ => {
                    let parent = path.step(1);
                    // SAFETY: the path's invariant.
                    unsafe { parent.link.as_inner() }.publish(parent.slot, link);
                }
            }
            link
        };
        if path.height() > 1 {
            update_gap(path, link, holes);
        }
        if !in_place {
            // SAFETY: the leaf was replaced by its copy.
            unsafe { self.supplies.bin.node(step.link) }
        }
        if let Some(gone) = gone {
            for &raw in gone.entries() {
                // SAFETY: the entry left the tree, and only with this write.
                unsafe { self.supplies.bin.entry(raw) }
            }
        }
        // A duplicate made ahead is for the next write only: its source may be gone by the one after.
        self.supplies.drop_spare();
        Ok(())
    }
}

/// The change of a leaf, with the range that it replaces, holes that are taken in included. The outer `None`:
/// not within this leaf; the inner: nothing to change.
#[inline]
fn splice(
    body: &Body,
    step: &Step,
    mut first: usize,
    mut last: usize,
    new: *mut (),
) -> Option<Option<(Splice, usize, usize)>> {
    let mut from = step.slot;
    let mut start = body.start(from, step.min);
    let mut end = body.end(from, step.max);
    let mut to = from;
    if last > end {
        to = body.find(last);
        end = body.end(to, step.max);
    }
    if new.is_null() {
        // Holes stay whole: a hole next to a hole takes it in.
        if body.is_hole(from) {
            if last <= end && from == to {
                return Some(None);
            }
            first = start;
        } else if first == start {
            if from > 0 {
                if body.is_hole(from - 1) {
                    from -= 1;
                    start = body.start(from, step.min);
                    first = start;
                }
            } else if start > 0 {
                return None;
            }
        }
        if body.is_hole(to) {
            last = end;
        } else if last == end {
            if to + 1 < body.len() {
                if body.is_hole(to + 1) {
                    to += 1;
                    end = body.end(to, step.max);
                    last = end;
                }
            } else if end < usize::MAX {
                return None;
            }
        }
    }
    let left = (start < first).then(|| Slot { end: first - 1, word: body.word(from) });
    let right = (last < end).then(|| body.word(to));
    let new = Slot { end: last, word: new };
    Some(Some((Splice { from, to, left, new, right }, first, last)))
}

/// How long the longest hole is that the change takes, and that it makes.
#[inline]
fn holes(body: &Body, step: &Step, splice: &Splice, first: usize, last: usize) -> Holes {
    let mut holes = Holes { before: 0, after: 0 };
    let start = body.start(splice.from, step.min);
    if splice.from == splice.to {
        let end = body.end(splice.to, step.max);
        if body.is_hole(splice.from) {
            holes.before = (end - start).wrapping_add(1);
        }
    } else {
        for slot in splice.from..=splice.to {
            if body.is_hole(slot) {
                let length = body.end(slot, step.max) - body.start(slot, step.min);
                holes.before = holes.before.max(length.wrapping_add(1));
            }
        }
    }
    if splice.new.word.is_null() {
        holes.after = (last - first).wrapping_add(1);
    } else {
        if splice.left.is_some_and(|left| left.word.is_null()) {
            holes.after = first - start;
        }
        if splice.right.is_some_and(|word| word.is_null()) {
            holes.after = holes.after.max(body.end(splice.to, step.max) - last);
        }
    }
    holes
}

/// Brings the gaps on the way up to date after a change of the leaf, which is `link` now.
#[inline]
fn update_gap(path: &Path, link: Link, holes: Holes) {
    let (leaf, parent) = (path.step(0), path.step(1));
    // SAFETY: the path's invariant.
    let gap = unsafe { parent.link.as_inner() }.gap(parent.slot);
    let gap = if holes.after >= gap {
        holes.after
    } else if holes.before == gap {
        // SAFETY: the writer's right.
        unsafe { link.as_leaf().body() }.gap(leaf.min, leaf.max, gap)
    } else {
        return;
    };
    raise_gap(path, 1, gap);
}

/// The entries that a change removes.
struct Gone {
    entries: [MaybeUninit<NonNull<()>>; LEAF_SLOTS],
    len: usize,
}

impl Gone {
    fn of(body: &Body, splice: &Splice) -> Gone {
        let mut gone = Gone { entries: [MaybeUninit::uninit(); LEAF_SLOTS], len: 0 };
        let from = splice.from + usize::from(splice.left.is_some());
        let to = splice.to + usize::from(splice.right.is_none());
        for slot in from..to {
            if let Some(raw) = NonNull::new(body.word(slot)) {
                gone.entries[gone.len].write(raw);
                gone.len += 1;
            }
        }
        gone
    }

    fn entries(&self) -> &[NonNull<()>] {
        // SAFETY: `of` has written the first `len`.
        unsafe { self.entries[..self.len].assume_init_ref() }
    }
}
