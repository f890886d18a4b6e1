//! A write into a leaf without room for it: the leaf becomes two, if their parent has room for one more.
//!
//! The slots are not unpacked: the second half is copied as it is, and the first is the leaf itself, with a smaller
//! count. An exclusive owner does that in place, in the parent, too; beside readers there are two new leaves and a
//! new parent, put in its place by one store.
//!
//! A write at an end of the leaf leaves all of it in one half, so that a run of writes in one direction leaves full
//! leaves behind it.

use super::gone::Gone;
use super::trail::Trail;
use super::{Need, Removed, Target};
use crate::alloc::NodeAlloc;
use crate::entry::Entry;
use crate::error::Error;
use crate::layout::INNER_SLOTS;
use crate::node::{Body, Edit, Fit, Inner, Leaf, Link, Search};
use core::ptr::{self, NonNull};
use grace::Reclaim;

impl<E: Entry, R: Reclaim, A: NodeAlloc> Target<'_, E, R, A> {
    /// Makes a change that found the leaf full; `None`, and nothing done, if it takes a plan. Its new bounds fit
    /// the form of the leaf.
    #[cold]
    #[inline(never)]
    pub(super) fn split<S: Search>(
        &mut self,
        search: S,
        trail: &Trail,
        edit: &Edit,
        removed: Removed,
    ) -> Option<Result<(), Error>> {
        // Not an argument: those are borrowed to the end of the call, and the leaf is changed before that.
        // SAFETY: the promise of `Target::new`.
        let body = unsafe { trail.leaf.as_leaf().body() };
        // SAFETY: the promise of `Target::new`; the caller has seen that there are inner nodes.
        let (parent, slot) = unsafe { trail.step(1) };
        // SAFETY: as above.
        if unsafe { parent.seps() }.len() == INNER_SLOTS {
            return None;
        }
        let at = cut(body, edit)?;
        if !edit.has_room_in_half(body, at) {
            return None;
        }
        let in_place = self.supplies.bin.is_exclusive();
        let need =
            if in_place { Need { leaves: 1, inners: 0 } } else { Need { leaves: 2, inners: 1 } };
        if let Err(error) =
            self.second_half(body, edit).and_then(|()| self.supplies.nodes.fill(need))
        {
            return Some(Err(error));
        }
        // Nothing fails from here on.
        let copy = if edit.splits() { self.take_copy() } else { ptr::null_mut() };
        let gone = Gone::of::<E>(body, edit.removed(), removed);
        let end = body.bound(at - 1);
        // SAFETY: the promise of `Target::new`.
        let (min, max) = unsafe { (trail.min(0), trail.max(0)) };
        let old = trail.leaf.node().cast::<Leaf>();
        let right = self.supplies.nodes.take_leaf_block().as_ptr();
        let left = if in_place { old } else { self.supplies.nodes.take_leaf_block().as_ptr() };
        // SAFETY: the blocks are ours; the owner of a leaf changed in place is alone, and `body` is not used any more.
        let gaps = unsafe {
            Leaf::copy_from(old, at, right);
            if !in_place {
                Leaf::copy(old, left);
            }
            (*left).body_mut().truncate(at);
            let (half, before) = if edit.from < at { (left, 0) } else { (right, at) };
            let own = edit.within((*half).body(), before);
            debug_assert!(own.fit((*half).body(), true) == Fit::Fits, "half of it is too much");
            search.change(&own.change((*half).body()), half, half, copy);
            [
                search.gap((*left).body(), min, end, usize::MAX),
                search.gap((*right).body(), end + 1, max, usize::MAX),
            ]
        };
        let pair = [(end, Link::to_leaf(left), gaps[0]), (max, Link::to_leaf(right), gaps[1])];
        if in_place {
            // SAFETY: the owner is alone.
            unsafe { parent.insert(slot, pair) }
        } else {
            let node = self.supplies.nodes.take_inner(Inner::new());
            // SAFETY: the new parent is ours alone; the old one does not change.
            unsafe {
                node.as_ref().fill_from(parent);
                node.as_ref().insert(slot, pair);
            }
            self.replace_parent(trail, node);
        }
        // SAFETY: the promise of `Target::new`.
        unsafe { trail.raise_parent(search) }
        self.finish(&gone);
        Some(Ok(()))
    }

    /// Publishes a new parent of the leaf, and gives up the old one and the leaf.
    pub(super) fn replace_parent(&mut self, trail: &Trail, node: NonNull<Inner>) {
        let old = self.publish_parent(trail, node);
        // SAFETY: the promise of `Target::new`; both left the tree.
        unsafe {
            self.supplies.bin.node(old);
            self.supplies.bin.node(trail.leaf);
        }
    }

    /// Publishes a new parent of the leaf. Returns the old one.
    pub(super) fn publish_parent(&mut self, trail: &Trail, node: NonNull<Inner>) -> Link {
        let link = Link::inner(node, 1);
        // SAFETY: the promise of `Target::new`.
        unsafe {
            let old = trail.link(1);
            if trail.height == 2 {
                self.tree.publish(link);
            } else {
                let (above, slot) = trail.step(2);
                above.publish(slot, link);
            }
            old
        }
    }
}

/// Where to cut: not within what changes, and so that either half has an entry.
fn cut(body: &Body, edit: &Edit) -> Option<usize> {
    let len = body.len();
    let at = if edit.to + 2 >= len {
        edit.from
    } else if edit.from <= 1 {
        edit.to + 1
    } else {
        let half = len / 2;
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
