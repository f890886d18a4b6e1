//! Phase five: the nodes and entries that a write replaced go to the grace period.
//!
//! Replaced nodes are treated in one of two ways. Of the nodes at the ends of the range, the
//! contents were *taken over* by the new nodes, so only their memory is freed. A whole subtree
//! between them loses one reference. If that was the last, everything below it is freed, too. A
//! subtree is retired as one object, however large it is.
//!
//! The work goes from the top down: an owner that frees at once must read a node before it is
//! freed.
//!
//! `batch` collects what leaves the tree, so that much of it is retired at once. `reserve` has the
//! nodes that are allocated before a write, `supplies` those that a writer keeps between writes.

pub(super) mod batch;
pub(super) mod reserve;
pub(super) mod supplies;

use crate::alloc::NodeAlloc;
use crate::entry::{Entry, Raw, drop_raw};
use crate::node::{Body, Link, free_node};
use crate::write::Removed;
use crate::write::plan::Plan;
use crate::write::retire::batch::Heap;
use core::marker::PhantomData;
use core::ops::Range;
use core::ptr::NonNull;
use grace::Reclaim;

/// How nodes and entries are freed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Disposal {
    /// After a grace period, because readers may see them. Only for trees over a
    /// [`grace::Concurrent`] engine.
    Deferred,
    /// Nodes at once, and entries after a grace period: nothing reads the tree during the write,
    /// but references to entries that were found before it may still be held.
    Alone,
    /// At once, because there are no readers.
    Exclusive,
}

/// Takes the nodes and entries that leave the tree. With deferred disposal it collects them, and
/// hands them to the engine many at a time: when a batch is full, and when the bin is dropped
/// together with its writer. See [`crate::write::retire::batch`].
pub(crate) struct Bin<E: Entry, R: Reclaim, A: NodeAlloc> {
    disposal: Disposal,
    /// Nodes whose contents were taken over.
    nodes: Heap<Link, A>,
    /// Entries and subtrees.
    things: Heap<Thing, A>,
    /// Whether the engine should free what it can: there is much.
    much: bool,
    #[allow(clippy::type_complexity)]
    _kinds: PhantomData<fn() -> (E, R)>,
}

/// A pointer and the function that frees it.
pub(in crate::write) type Thing = (NonNull<()>, unsafe fn(NonNull<()>));

impl<E: Entry, R: Reclaim, A: NodeAlloc> Bin<E, R, A> {
    #[inline(always)]
    pub(crate) const fn new(disposal: Disposal) -> Self {
        Bin { disposal, nodes: Heap::new(), things: Heap::new(), much: false, _kinds: PhantomData }
    }

    /// Whether entries are freed at once, because there are no readers.
    #[inline(always)]
    pub(crate) fn is_exclusive(&self) -> bool {
        self.disposal == Disposal::Exclusive
    }

    /// Whether nodes are changed in place, and freed at once, because nothing reads them meanwhile.
    #[inline(always)]
    pub(crate) fn in_place(&self) -> bool {
        self.disposal != Disposal::Deferred
    }

    /// Changes how nodes and entries are freed from now on. Returns how they were freed before.
    #[inline(always)]
    pub(crate) fn dispose_by(&mut self, disposal: Disposal) -> Disposal {
        core::mem::replace(&mut self.disposal, disposal)
    }

    /// # Safety
    /// The object is unreachable, `free` is its function, and with exclusive disposal nothing
    /// accesses it.
    #[inline]
    unsafe fn dispose(&mut self, ptr: NonNull<()>, free: unsafe fn(NonNull<()>)) {
        // SAFETY: the caller's promise.
        unsafe {
            if self.is_exclusive() {
                free(ptr)
            } else {
                self.much |= self.things.push::<R>((ptr, free));
                self.free_much();
            }
        }
    }

    /// Hands over everything collected.
    #[cold]
    fn flush(&mut self) {
        self.much |= self.nodes.flush::<R>();
        self.much |= self.things.flush::<R>();
    }

    /// Lets the engine free what it can, if there is much. Frees may read the tree, so a writer
    /// that is alone calls this after its write.
    #[inline(always)]
    pub(crate) fn free_much(&mut self) {
        if self.much && self.disposal != Disposal::Alone {
            self.much = false;
            R::flush(&R::pin());
        }
    }

    /// Takes an entry.
    ///
    /// # Safety
    /// It left the tree and has no other owner.
    pub(crate) unsafe fn entry(&mut self, raw: Raw) {
        if E::owns(raw) {
            // SAFETY: the caller's promise.
            unsafe { self.dispose(raw, drop_raw::<E>) }
        }
    }

    /// Takes the memory of a node whose contents were taken over.
    ///
    /// # Safety
    /// It left the tree and was not shared.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) unsafe fn node(&mut self, link: Link) {
        if link.is_null() {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe {
            debug_assert!(!link.refs().shared(), "a shared node is freed");
            if self.in_place() {
                free_node::<A>(link)
            } else {
                self.much |= self.nodes.push::<R>(link);
                self.free_much();
            }
        }
    }

    /// Takes a reference to a subtree.
    ///
    /// # Safety
    /// The reference has left the tree.
    pub(crate) unsafe fn subtree(&mut self, link: Link) {
        let Some(tagged) = link.tagged() else { return };
        let by_parts = R::FREES_IN_PIN && link.level() >= BY_PARTS && !self.is_exclusive();
        let free = if by_parts { let_go_by_parts::<E, R, A> } else { let_go::<E, A> };
        // SAFETY: the caller's promise.
        unsafe { self.dispose(tagged, free) };
        if link.level() > 0 && !self.is_exclusive() {
            // The subtree may be large, so it does not wait for a full batch.
            self.flush();
            self.much = true;
            self.free_much();
        }
    }

    /// Takes a leaf with its entries.
    ///
    /// # Safety
    /// It left the tree, and the nodes on the path to it belonged to this tree alone.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(in crate::write) unsafe fn leaf(&mut self, link: Link) {
        // SAFETY: the caller's promise. If the leaf is this tree's own and its entries need no
        // drop, only its memory is freed.
        unsafe {
            if E::NEEDS_DROP || (E::SHARES && link.refs().shared()) {
                self.subtree(link)
            } else {
                self.node(link)
            }
        }
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Drop for Bin<E, R, A> {
    #[inline]
    fn drop(&mut self) {
        if !self.nodes.is_empty() || !self.things.is_empty() {
            self.flush();
        }
        self.free_much();
    }
}

/// A subtree of this level or above is freed in parts if a guard may have to free it: a node below
/// this level has only some hundred entries.
const BY_PARTS: usize = 2;

/// The number of parts that are handed over together.
const TOGETHER: usize = 4;

/// As [`let_go`] of an inner node, but its children are retired again, a few at a time, so that no
/// thread frees much at once.
///
/// # Safety
/// As for [`let_go`]; the link's level is at least [`BY_PARTS`].
unsafe fn let_go_by_parts<E: Entry, R: Reclaim, A: NodeAlloc>(tagged: NonNull<()>) {
    let link = Link::from_tagged(tagged);
    // SAFETY: the caller's reference keeps the node.
    if !unsafe { link.refs() }.release() {
        return;
    }
    let by_parts = link.level() > BY_PARTS;
    let free = if by_parts { let_go_by_parts::<E, R, A> } else { let_go::<E, A> };
    let guard = R::pin();
    // SAFETY: the node is ours alone.
    let inner = unsafe { link.as_inner() };
    // SAFETY: as above.
    for slot in 0..unsafe { inner.seps() }.len() {
        if let Some(child) = inner.child(slot).tagged() {
            // SAFETY: the reference to the child belonged to the node. No reader that it protected
            // is left, and no new reader can come this way.
            unsafe { R::retire(&guard, child, free) }
        }
        if (slot + 1).is_multiple_of(TOGETHER) {
            R::flush(&guard);
        }
    }
    R::flush(&guard);
    // SAFETY: nothing accesses the node any more.
    unsafe { free_node::<A>(link) }
}

/// Removes one reference to a subtree, and frees the subtree if that was the last.
///
/// # Safety
/// The word is a link to a node of a tree of this type. The reference is the caller's, and no
/// reader that it protected is left.
unsafe fn let_go<E: Entry, A: NodeAlloc>(tagged: NonNull<()>) {
    let link = Link::from_tagged(tagged);
    // SAFETY: the caller's reference keeps the node.
    if !unsafe { link.refs() }.release() {
        return;
    }
    if link.level() == 0 {
        if E::NEEDS_DROP {
            // SAFETY: the leaf is ours alone.
            let body = unsafe { *link.as_leaf().body() };
            for slot in 0..body.len() {
                if let Some(raw) = NonNull::new(body.word(slot)) {
                    // SAFETY: the entries belong to the leaf.
                    unsafe { drop_raw::<E>(raw) }
                }
            }
        }
    } else {
        // SAFETY: the node is ours alone.
        let inner = unsafe { link.as_inner() };
        // SAFETY: as above.
        for slot in 0..unsafe { inner.seps() }.len() {
            if let Some(child) = inner.child(slot).tagged() {
                // The recursion is as deep as the tree is high.
                // SAFETY: the reference to the child belonged to the node.
                unsafe { let_go::<E, A>(child) }
            }
        }
    }
    // SAFETY: nothing accesses the node any more.
    unsafe { free_node::<A>(link) }
}

/// Retires what the plan replaced. `old` is the top of the replaced subtree.
///
/// # Safety
/// The plan is published and its nodes are not retired yet. Unless disposal is deferred, nothing
/// reads the nodes.
pub(in crate::write) unsafe fn retire<E: Entry, R: Reclaim, A: NodeAlloc>(
    bin: &mut Bin<E, R, A>,
    plan: &Plan,
    old: Link,
    removed: Removed,
) {
    for height in (0..=old.level()).rev() {
        for (link, slots) in plan.taken_over(height) {
            if link.is_null() {
                continue;
            }
            if height > 0 {
                // SAFETY: the caller's promise.
                unsafe { children(bin, plan, link, slots, removed) }
            } else if E::NEEDS_DROP && removed == Removed::Drop && !slots.is_empty() {
                // SAFETY: as above.
                unsafe { covered(bin, plan, link.as_leaf().body(), slots, link) }
            }
            // SAFETY: as above; a node whose contents were taken over is not shared.
            unsafe { bin.node(link) }
        }
    }
}

/// Retires the replaced children of a node, except those that were taken over: they are retired at
/// their own level.
///
/// # Safety
/// As for [`retire`]; the node is still allocated.
unsafe fn children<E: Entry, R: Reclaim, A: NodeAlloc>(
    bin: &mut Bin<E, R, A>,
    plan: &Plan,
    link: Link,
    slots: Range<usize>,
    removed: Removed,
) {
    // SAFETY: the caller's promise.
    let inner = unsafe { link.as_inner() };
    for slot in slots {
        let child = inner.child(slot);
        if plan.taken_over(child.level()).iter().any(|(taken, _)| *taken == child) {
            continue;
        }
        if plan.on_the_way(child) {
            // A sibling from outside the range took its place in the plan, so something below it
            // was taken over. SAFETY: the caller's promise.
            unsafe {
                children(bin, plan, child, 0..child.len(), removed);
                bin.node(child);
            }
        } else if removed == Removed::Keep {
            // The only removed entry was alone in its leaf, with holes on both sides.
            debug_assert!(child.level() == 0);
            // SAFETY: the caller's promise. The entry belongs to the caller of the erase, and the
            // leaf was on the path to it.
            unsafe { bin.node(child) }
        } else {
            // SAFETY: the caller's promise.
            unsafe { bin.subtree(child) }
        }
    }
}

/// Retires the entries of a leaf that the plan removed.
///
/// # Safety
/// The entries have left the tree.
unsafe fn covered<E: Entry, R: Reclaim, A: NodeAlloc>(
    bin: &mut Bin<E, R, A>,
    plan: &Plan,
    body: &Body,
    slots: Range<usize>,
    leaf: Link,
) {
    let [left, right] = plan.kept();
    for slot in slots {
        // An entry of which a rest stays is still in the tree.
        if (leaf, slot) != left
            && (leaf, slot) != right
            && let Some(raw) = NonNull::new(body.word(slot))
        {
            // SAFETY: the caller's promise; each word is one entry.
            unsafe { bin.entry(raw) }
        }
    }
}
