//! Phase five: what a write replaced is handed to the grace period.
//!
//! The replaced nodes are found again in the old subtree, which is still whole: at each level, those
//! within the index range that the plan gives. Leaves go first, then the levels above, so that even an
//! owner who frees at once still has the nodes that lead to the next ones.

use super::Removed;
use super::plan::{Plan, Publish};
use crate::alloc::NodeAlloc;
use crate::entry::{Entry, drop_raw};
use crate::node::{Body, Link};
use crate::path::{Path, Pick};
use core::ptr::NonNull;
use grace::Reclaim;

/// How memory leaves the tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Disposal {
    /// Readers may look: after a grace period. Only trees over a [`grace::Concurrent`] engine.
    Deferred,
    /// Nobody else looks: at once.
    Exclusive,
}

/// Takes what leaves the tree during one write. Deferred disposal holds one guard for all of it.
struct Bin<R: Reclaim> {
    guard: Option<R::Guard>,
}

impl<R: Reclaim> Bin<R> {
    fn new(disposal: Disposal) -> Self {
        Bin { guard: (disposal == Disposal::Deferred).then(R::pin) }
    }

    /// # Safety
    /// The thing is unreachable, nobody looks at it if there is no guard, and `free` fits it.
    unsafe fn dispose(&self, ptr: NonNull<()>, free: unsafe fn(NonNull<()>)) {
        match &self.guard {
            // SAFETY: the caller's promise.
            Some(guard) => unsafe { R::retire(guard, ptr, free) },
            // SAFETY: the caller's promise.
            None => unsafe { free(ptr) },
        }
    }
}

/// Retires what the plan replaced. `old` is the top of the replaced subtree.
///
/// # Safety
/// The plan is published, and its nodes are not retired yet; for [`Disposal::Exclusive`], no reader
/// exists.
pub(super) unsafe fn retire<E: Entry, R: Reclaim, A: NodeAlloc>(
    disposal: Disposal,
    plan: &Plan,
    old: Link,
    removed: Removed,
) {
    let bin = Bin::<R>::new(disposal);
    let (min, max) = match plan.publish {
        Publish::Slot(_) => {
            let top = plan.levels()[plan.levels().len() - 1];
            (top.lo, top.hi)
        }
        Publish::Root | Publish::Empty => {
            debug_assert!(old == plan.root);
            (0, usize::MAX)
        }
    };
    for height in 0..=old.level() {
        // Levels above those rebuilt have no successor: the tree has become lower.
        let (lo, hi) =
            plan.levels().get(height).map_or((0, usize::MAX), |level| (level.lo, level.hi));
        let entries = (removed == Removed::Drop).then_some((plan.first, plan.last));
        // SAFETY: the caller's promise; every level is passed once, leaves first.
        unsafe { level::<E, R, A>(&bin, old, (min, max), height, (lo, hi), entries) };
    }
}

/// Retires a whole subtree that covers every index, with its entries.
///
/// # Safety
/// It is unreachable, and not retired yet; for [`Disposal::Exclusive`], no reader exists.
pub(crate) unsafe fn retire_nodes<E: Entry, R: Reclaim, A: NodeAlloc>(
    disposal: Disposal,
    top: Link,
) {
    if top.is_null() {
        return;
    }
    let bin = Bin::<R>::new(disposal);
    let all = (0, usize::MAX);
    for height in 0..=top.level() {
        // SAFETY: the caller's promise; every level is passed once, leaves first.
        unsafe { level::<E, R, A>(&bin, top, all, height, all, Some(all)) };
    }
}

/// Retires the nodes of one level that lie in `lo..=hi`, below `top`, which covers `min..=max`. Entries
/// that lie wholly in the range `entries` go too.
///
/// # Safety
/// As for [`retire`]; nodes above this level are still allocated.
unsafe fn level<E: Entry, R: Reclaim, A: NodeAlloc>(
    bin: &Bin<R>,
    top: Link,
    (min, max): (usize, usize),
    height: usize,
    (lo, hi): (usize, usize),
    entries: Option<(usize, usize)>,
) {
    let mut path = Path::new();
    // SAFETY: the old subtree is as it was, at this level and above.
    unsafe { path.walk_part(top, min, max, height, Pick::Index(lo)) };
    loop {
        let step = *path.step(height);
        let more = step.max < hi;
        if height == 0
            && E::NEEDS_DROP
            && let Some((first, last)) = entries
            && first <= step.max
            && step.min <= last
        {
            // SAFETY: the leaf is not freed yet.
            let body = unsafe { step.link.as_leaf().body() };
            // SAFETY: the entries left the tree with the plan's publication.
            unsafe { covered::<E, R>(bin, body, (step.min, step.max), (first, last)) };
        }
        // Step on before the node is given up: the way on is through it.
        let moved = more && path.next_node().is_some();
        if let Some(node) = NonNull::new(step.link.node()) {
            // SAFETY: the node is unreachable and passed once.
            unsafe { bin.dispose(node, step.link.free_fn::<A>()) };
        }
        if !moved {
            return;
        }
    }
}

/// Retires the entries of a leaf from `min` to `max` that lie wholly in `first..=last`.
///
/// # Safety
/// They have left the tree.
unsafe fn covered<E: Entry, R: Reclaim>(
    bin: &Bin<R>,
    body: &Body,
    (min, max): (usize, usize),
    (first, last): (usize, usize),
) {
    for slot in 0..body.len {
        if let Some(raw) = NonNull::new(body.slots[slot])
            && first <= body.start(slot, min)
            && body.end(slot, max) <= last
        {
            // SAFETY: the caller's promise; each word is one entry.
            unsafe { bin.dispose(raw, drop_raw::<E>) };
        }
    }
}

/// Retires the entries that a write within one leaf has removed from its old contents.
///
/// # Safety
/// They have left the tree, and for [`Disposal::Exclusive`] nobody looks at them.
pub(super) unsafe fn entries_of<E: Entry, R: Reclaim>(
    disposal: Disposal,
    plan: &Plan,
    old: &Body,
    removed: Removed,
) {
    if E::NEEDS_DROP && removed == Removed::Drop {
        let (level, range) = (&plan.levels()[0], (plan.first, plan.last));
        // SAFETY: the caller's promise.
        unsafe { covered::<E, R>(&Bin::new(disposal), old, (level.lo, level.hi), range) };
    }
}
