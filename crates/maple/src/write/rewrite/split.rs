//! A write into a full leaf: the leaf is split in two, if its parent has room for one more child.
//!
//! The slots are not unpacked: the second half is copied, and the first half is the leaf with a
//! smaller length. An exclusive owner changes the leaf and its parent in place. With concurrent
//! readers one store publishes two new leaves and a new parent.
//!
//! A write at an end of the leaf leaves all other slots in one half, so that a run of writes in one
//! direction leaves full leaves behind.
//!
//! A leaf that would have to become wide is split, too, before the write: at its longest slot, such
//! as the hole between a program's heap and its libraries, so that the halves stay narrow.

use crate::Index;
use crate::alloc::NodeAlloc;
use crate::entry::Entry;
use crate::error::Error;
use crate::layout::{INNER_SLOTS, LEAF_LOW, NARROW};
use crate::node::{Body, Change, Edit, Fit, Item, Leaf, Link, Search, Splice};
use crate::write::descent::WriteDescent;
use crate::write::leaf::place::Holes;
use crate::write::leaf::removed::RemovedSlots;
use crate::write::{Need, Removed, Target};
use core::ptr;
use grace::Reclaim;

/// The least number of entries of a half of a leaf that is split because of its form.
const LEAST: usize = LEAF_LOW.div_ceil(NARROW.entry + NARROW.hole);

impl<E: Entry, R: Reclaim, A: NodeAlloc> Target<'_, E, R, A> {
    /// Makes a change for which the leaf is too full. Returns `None`, and does nothing, if the plan
    /// must do it. The new bounds fit the form of the leaf.
    #[cold]
    #[inline(never)]
    pub(in crate::write) fn split<S: Search>(
        &mut self,
        search: S,
        descent: &WriteDescent,
        (edit, holes): (&Edit, Holes),
        removed: Removed,
    ) -> Option<Result<(), Error>> {
        // Not an argument: a reference argument stays borrowed until the call returns, but the leaf
        // is changed before that. SAFETY: the promise of `Target::new`.
        let body = unsafe { descent.leaf().as_leaf().body() };
        if self.is_parent_full(descent) {
            return None;
        }
        let is_root = descent.height() == 1;
        let at = cut(body, edit)?;
        if !edit.has_room_in_half(body, at) {
            return None;
        }
        let in_place = self.supplies.bin.in_place();
        let need = Need {
            leaves: if in_place { 1 } else { 2 },
            inners: usize::from(is_root || !in_place),
        };
        if let Err(error) =
            self.second_half(body, edit).and_then(|()| self.supplies.nodes.fill(need))
        {
            return Some(Err(error));
        }
        // Nothing fails from here on.
        let copy = if edit.splits() { self.take_copy() } else { ptr::null_mut() };
        let gone = RemovedSlots::of::<E>(body, edit.removed(), removed);
        let (end, body_is_wide) = (body.bound(at - 1), body.is_wide());
        // SAFETY: the promise of `Target::new`.
        let (min, max) = unsafe { (descent.min(0), descent.max(0)) };
        let old = descent.leaf().node().cast::<Leaf>();
        let right = self.supplies.nodes.take_leaf_block().as_ptr();
        let left = if in_place { old } else { self.supplies.nodes.take_leaf_block().as_ptr() };
        let below = edit.from < at;
        // The holes that stay are measured in the old leaf. The new hole lies in one of the halves.
        let stay = body.holes() & !edit.replaced();
        let gap = |half: u32, ends: (Index, Index), changed: bool| {
            let gap = search.gap(body, stay & half, ends, Index::MAX);
            if changed { gap.max(holes.after) } else { gap }
        };
        let low = (1 << at) - 1;
        let gaps = [gap(low, (min, end), below), gap(!low, (end, max), !below)];
        // SAFETY: the blocks are ours; the owner of a leaf changed in place is alone, and `body` is
        // not used any more.
        unsafe {
            search.change_apart(&Change::rest(body, at), (old, old), right, ptr::null_mut());
            if below {
                let own = edit.change(body).of_first(body, at);
                search.change_apart(&own, (old, old), left, copy);
            } else if in_place {
                (*left).body_mut().truncate(at);
            } else {
                let first = Change::first(body, at);
                search.change_apart(&first, (old, old), left, ptr::null_mut());
            }
            if !below {
                let own = edit.within((*right).body(), at);
                debug_assert!(
                    own.fit((*right).body(), true) == Fit::Fits,
                    "the change does not fit into a half"
                );
                search.change_apart(&own.change((*right).body()), (right, right), right, copy);
            }
            // A half of a wide leaf may fit a narrow one.
            if body_is_wide {
                reform(left);
                reform(right);
            }
        }
        let pair = [(end, Link::to_leaf(left), gaps[0]), (max, Link::to_leaf(right), gaps[1])];
        // SAFETY: both halves are in place of the leaf.
        unsafe { self.publish_halves(search, descent, pair) }
        self.finish(&gone);
        Some(Ok(()))
    }

    /// Splits a narrow leaf that would have to become wide because of new bounds, at its longest
    /// slot, so that each half gets a form of its own. The contents stay the same, so a failure
    /// leaves a valid tree (I7). The path is invalid afterwards. Returns false, and does nothing,
    /// if the leaf has few entries, or if nodes are preallocated: they are counted for the write
    /// alone.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[cold]
    #[inline(never)]
    pub(in crate::write) fn halve<S: Search>(
        &mut self,
        search: S,
        descent: &WriteDescent,
        bounds: [Option<Index>; 2],
    ) -> Result<bool, Error> {
        // SAFETY: the promise of `Target::new`. As in `split`, not an argument.
        let body = unsafe { descent.leaf().as_leaf().body() };
        if body.can_be_narrow_with(bounds) || !self.supplies.nodes.is_empty() {
            return Ok(false);
        }
        let Some(at) = chasm(body, bounds) else { return Ok(false) };
        if self.is_parent_full(descent) {
            return self.make_room(search, descent);
        }
        let in_place = self.supplies.bin.in_place();
        let is_root = descent.height() == 1;
        self.supplies.nodes.fill(Need {
            leaves: if in_place { 1 } else { 2 },
            inners: usize::from(is_root || !in_place),
        })?;
        // Nothing fails from here on.
        let end = body.bound(at - 1);
        // SAFETY: the promise of `Target::new`.
        let (min, max) = unsafe { (descent.min(0), descent.max(0)) };
        let low = (1 << at) - 1;
        let gap = |half: u32, ends| search.gap(body, body.holes() & half, ends, Index::MAX);
        let gaps = [gap(low, (min, end)), gap(!low, (end, max))];
        let old = descent.leaf().node().cast::<Leaf>();
        let right = self.supplies.nodes.take_leaf_block().as_ptr();
        let left = if in_place { old } else { self.supplies.nodes.take_leaf_block().as_ptr() };
        // SAFETY: as in `split`.
        unsafe {
            search.change_apart(&Change::rest(body, at), (old, old), right, ptr::null_mut());
            let first = Change::first(body, at);
            search.change_apart(&first, (old, old), left, ptr::null_mut());
            reform(left);
            reform(right);
        }
        let pair = [(end, Link::to_leaf(left), gaps[0]), (max, Link::to_leaf(right), gaps[1])];
        // SAFETY: both halves are in place of the leaf.
        unsafe { self.publish_halves(search, descent, pair) }
        Ok(true)
    }

    /// Publishes the halves of the leaf on the path: end, link and gap of each. There are supplies
    /// for it.
    ///
    /// # Safety
    /// The halves are complete. If the owner is exclusive, the first one is the leaf itself.
    unsafe fn publish_halves<S: Search>(
        &mut self,
        search: S,
        descent: &WriteDescent,
        pair: [Item; 2],
    ) {
        let in_place = self.supplies.bin.in_place();
        // SAFETY: the promise of `Target::new`.
        let slot = if descent.height() == 1 { 0 } else { unsafe { descent.step(1) }.1 };
        let splice = Splice { gone: slot..slot + 1, items: &pair };
        let parent = self.replace_children(search, descent, splice, in_place);
        if !in_place {
            self.retire_leaf(descent, parent);
        }
    }

    /// Whether the leaf's parent has no room for another child.
    #[inline(always)]
    pub(in crate::write) fn is_parent_full(&self, descent: &WriteDescent) -> bool {
        // SAFETY: the promise of `Target::new`; there is a parent.
        descent.height() > 1 && unsafe { descent.step(1).0.seps() }.len() == INNER_SLOTS
    }
}

/// Gives a leaf the narrow form that fits it best, if there is one.
///
/// # Safety
/// The caller owns the leaf alone, and has no reference to its contents.
unsafe fn reform(leaf: *mut Leaf) {
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(narrow) = (*leaf).body().narrowed() {
            *(*leaf).body_mut() = narrow;
        }
    }
}

/// The slot after the longest one, if it leaves enough entries on either side. If a new bound lies
/// farther beyond all bounds of the leaf than that slot is long, the cut next to that end.
fn chasm(body: &Body, bounds: [Option<Index>; 2]) -> Option<usize> {
    let enough = |&at: &usize| {
        let left = body.rank(at);
        left >= LEAST && body.count() - left >= LEAST
    };
    let length = |at: usize| body.bound(at - 1) - body.bound(at - 2);
    let longest = (2..body.len()).filter(enough).max_by_key(|&at| length(at))?;
    let (first, last) = (body.bound(0), body.bound(body.len() - 2));
    let beyond = |far: fn(Index, Index, Index) -> Index| {
        bounds.into_iter().flatten().any(|bound| far(bound, first, last) > length(longest))
    };
    if beyond(|bound, first, _| first.saturating_sub(bound)) {
        return (2..body.len()).find(enough);
    }
    if beyond(|bound, _, last| bound.saturating_sub(last)) {
        return (2..body.len()).rev().find(enough);
    }
    Some(longest)
}

/// The slot to split at: not inside the change, and so that both halves have an entry.
fn cut(body: &Body, edit: &Edit) -> Option<usize> {
    let len = body.len();
    let at = if edit.to + 2 >= len {
        edit.from
    } else if edit.from <= 1 {
        edit.to + 1
    } else {
        // A hole goes to the left half: then the entry before it can grow into it, and neither leaf
        // needs its first index.
        let half = len / 2 + usize::from(body.is_hole(len / 2) && len / 2 + 1 < len);
        if edit.from < half && half <= edit.to { edit.to + 1 } else { half }
    };
    if at == 0 || at >= len {
        return None;
    }
    let (left, right) = (body.entries() & ((1 << at) - 1), body.entries() >> at);
    let grows = !edit.word.is_null();
    let filled = |mask: u32, changed: bool| if changed { grows } else { mask != 0 };
    (filled(left, edit.from < at) && filled(right, edit.from >= at)).then_some(at)
}
