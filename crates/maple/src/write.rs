//! The one way to change a tree: replace what lies in a range by one entry or by a hole.
//!
//! Every write goes through the same phases, one module each:
//!
//! 1. [`plan`] walks to both ends of the range and works out, level by level, which nodes are replaced
//!    and how many are needed. It changes nothing.
//! 2. [`reserve`]: the nodes (and the second copy of an entry that is split in two) are allocated. Only
//!    this phase can fail, and nothing has changed yet (I7).
//! 3. [`build`] fills the new nodes aside.
//! 4. [`publish`] makes them visible by **one** pointer store, and brings the gaps above up to date. A
//!    reader sees the tree before or after that store, never between (I1).
//! 5. [`retire`] hands the replaced nodes and entries to the grace period, or frees them when the owner
//!    is alone.
//!
//! With an exclusive owner, a write that stays within one leaf changes the leaf in place instead.
//!
//! # Cost
//!
//! A write within a leaf: one walk down, one node allocated, about four cache lines written, one
//! release store, one deferred free. A split adds two nodes a level; a range over several leaves up to
//! three a level, and one deferred free for every node and entry that goes.

mod build;
mod plan;
mod publish;
mod reserve;
mod retire;

pub(crate) use reserve::Reserve;
pub(crate) use retire::{Disposal, retire_nodes};

use crate::alloc::NodeAlloc;
use crate::entry::{Entry, Raw, drop_raw};
use crate::error::Error;
use crate::node::{AtomicLink, Body, Leaf, Link};
use core::ptr;
use grace::Reclaim;
use plan::Plan;

/// What becomes of the entries that a write removes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Removed {
    /// They are dropped after a grace period.
    Drop,
    /// The caller has them.
    Keep,
}

/// What a writer has in hand for writes to come.
pub(crate) struct Supplies<E: Entry, A: NodeAlloc> {
    pub(crate) nodes: Reserve<A>,
    /// A duplicate made ahead, with the entry that it duplicates.
    spare: Option<(Raw, Raw)>,
    _entry: core::marker::PhantomData<E>,
}

impl<E: Entry, A: NodeAlloc> Supplies<E, A> {
    pub(crate) const fn new() -> Self {
        Supplies { nodes: Reserve::new(), spare: None, _entry: core::marker::PhantomData }
    }

    /// Makes sure that there is a duplicate of `source`.
    ///
    /// # Safety
    /// As for [`Entry::try_dup`].
    unsafe fn provide(&mut self, source: Raw) -> Result<(), Error> {
        if self.spare.is_none_or(|(of, _)| of != source) {
            // SAFETY: the caller's promise.
            let copy = unsafe { E::try_dup(source)? };
            self.drop_spare();
            self.spare = Some((source, copy));
        }
        Ok(())
    }

    fn drop_spare(&mut self) {
        if let Some((_, copy)) = self.spare.take() {
            // SAFETY: the duplicate is ours alone.
            unsafe { drop_raw::<E>(copy) }
        }
    }
}

impl<E: Entry, A: NodeAlloc> Drop for Supplies<E, A> {
    fn drop(&mut self) {
        self.drop_spare();
    }
}

/// Makes sure that storing an entry or a hole over `first..=last` will find its memory in `supplies`.
///
/// # Safety
/// The caller has the writer's right to the tree.
pub(crate) unsafe fn prepare<E: Entry, A: NodeAlloc>(
    root: &AtomicLink,
    supplies: &mut Supplies<E, A>,
    first: usize,
    last: usize,
) -> Result<(), Error> {
    let root = root.load();
    let mut needed = 1;
    if !root.is_null() {
        for hole in [false, true] {
            let mut plan = Plan::new();
            // SAFETY: the writer's right keeps every node as it is.
            if unsafe { plan.make(root, first, last, hole)? } {
                needed = needed.max(plan.nodes());
                if let Some(source) = plan.split() {
                    // SAFETY: the entry is in the tree.
                    unsafe { supplies.provide(source)? }
                }
            }
        }
    }
    supplies.nodes.fill(needed)
}

/// Replaces what lies in `first..=last` by `new` (null: a hole). On error nothing has changed and
/// `new` is still the caller's.
///
/// # Safety
/// The caller has the writer's right to the tree, and when `disposal` is exclusive, no reader exists.
/// `new` is null or an entry's word. With [`Removed::Keep`], the caller takes over the entries that lie
/// wholly in the range.
pub(crate) unsafe fn replace<E: Entry, R: Reclaim, A: NodeAlloc>(
    tree: &AtomicLink,
    supplies: &mut Supplies<E, A>,
    disposal: Disposal,
    first: usize,
    last: usize,
    new: *mut (),
    removed: Removed,
) -> Result<(), Error> {
    let root = tree.load();
    if root.is_null() {
        return first_entry(tree, supplies, first, last, new);
    }
    let mut plan = Plan::new();
    // SAFETY: the writer's right keeps every node as it is.
    if !unsafe { plan.make(root, first, last, new.is_null())? } {
        return Ok(());
    }
    if let Some(source) = plan.split() {
        // SAFETY: the entry is in the tree.
        unsafe { supplies.provide(source)? }
    }
    let in_place = disposal == Disposal::Exclusive && plan.within_leaf();
    if !in_place {
        supplies.nodes.fill(plan.nodes())?;
    }
    // Nothing fails from here on.
    let copy = match plan.split() {
        Some(_) => supplies.spare.take().map_or(ptr::null_mut(), |(_, copy)| copy.as_ptr()),
        None => ptr::null_mut(),
    };
    if in_place {
        let old = publish::in_place(&plan, new, copy);
        if removed == Removed::Drop {
            // SAFETY: the slots left the tree with the old body, and the owner is alone.
            unsafe { retire::entries_of::<E, R>(&retire::Bin::new(disposal), &plan, &old) };
        }
        supplies.drop_spare();
        return Ok(());
    }
    let top = build::build(&plan, new, copy, &mut supplies.nodes);
    let old = publish::publish(tree, &plan, root, top);
    // SAFETY: what the plan replaced is unreachable since `publish`.
    unsafe { retire::retire::<E, R, A>(disposal, &plan, root, old, removed) };
    // A duplicate made ahead is for the next write only: its source may be gone by the one after.
    supplies.drop_spare();
    Ok(())
}

/// The first entry of an empty tree: one leaf.
fn first_entry<E: Entry, A: NodeAlloc>(
    tree: &AtomicLink,
    supplies: &mut Supplies<E, A>,
    first: usize,
    last: usize,
    new: *mut (),
) -> Result<(), Error> {
    if new.is_null() {
        return Ok(());
    }
    supplies.nodes.fill(1)?;
    let mut body = Body::EMPTY;
    if first > 0 {
        body.push(first - 1, ptr::null_mut());
    }
    body.push(last, new);
    if last < usize::MAX {
        body.push(usize::MAX, ptr::null_mut());
    }
    tree.publish(Link::leaf(supplies.nodes.take(Leaf::new(body))));
    Ok(())
}
