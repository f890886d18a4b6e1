//! Phase five: what a write replaced is handed to the grace period.
//!
//! Two things happen to replaced nodes. Those at the ends of the range were *taken over*: what they
//! held is in the new nodes now, so only their memory goes. Whole subtrees between them are *let
//! go*: one reference less, and if that was the last, all that hangs below goes too. A subtree is
//! let go as one, however large.
//!
//! The work goes from the top down, so that even an owner who frees at once has read a node before
//! it is freed.

use super::Removed;
use super::batch::Heap;
use super::plan::Plan;
use crate::alloc::NodeAlloc;
use crate::entry::{Entry, Raw, drop_raw};
use crate::node::{Body, Link, free_node};
use core::marker::PhantomData;
use core::ops::Range;
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

/// Takes what leaves the tree. What is deferred is collected, and handed over to the engine many at
/// a time: when there is a batch of it, and when the bin is dropped, which is with its writer. See
/// [`super::batch`].
pub(crate) struct Bin<E: Entry, R: Reclaim, A: NodeAlloc> {
    disposal: Disposal,
    /// Nodes whose contents were taken over.
    nodes: Heap<Link, A>,
    /// Entries, and subtrees.
    things: Heap<Thing, A>,
    #[allow(clippy::type_complexity)]
    _kinds: PhantomData<fn() -> (E, R)>,
}

/// Something to be freed, and what frees it.
pub(super) type Thing = (NonNull<()>, unsafe fn(NonNull<()>));

impl<E: Entry, R: Reclaim, A: NodeAlloc> Bin<E, R, A> {
    pub(crate) const fn new(disposal: Disposal) -> Self {
        Bin { disposal, nodes: Heap::new(), things: Heap::new(), _kinds: PhantomData }
    }

    /// Whether things are freed at once: nobody else looks.
    #[inline(always)]
    pub(crate) fn is_exclusive(&self) -> bool {
        self.disposal == Disposal::Exclusive
    }

    /// # Safety
    /// The thing is unreachable, nobody looks at it if disposal is exclusive, and `free` fits it.
    #[inline]
    unsafe fn dispose(&mut self, ptr: NonNull<()>, free: unsafe fn(NonNull<()>)) {
        // SAFETY: the caller's promise.
        unsafe { if self.is_exclusive() { free(ptr) } else { self.things.push::<R>((ptr, free)) } }
    }

    /// Hands over what has been collected.
    #[cold]
    fn flush(&mut self) {
        self.nodes.flush::<R>();
        self.things.flush::<R>();
    }

    /// Takes an entry.
    ///
    /// # Safety
    /// It has left the tree, and nobody else has it.
    pub(crate) unsafe fn entry(&mut self, raw: Raw) {
        // SAFETY: the caller's promise.
        unsafe { self.dispose(raw, drop_raw::<E>) }
    }

    /// Takes the memory of a node whose contents were taken over.
    ///
    /// # Safety
    /// It has left the tree and was not shared.
    #[inline(always)]
    pub(crate) unsafe fn node(&mut self, link: Link) {
        if link.is_null() {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe {
            debug_assert!(!link.refs().shared(), "a shared node is freed");
            if self.is_exclusive() { free_node::<A>(link) } else { self.nodes.push::<R>(link) }
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
            // Much may hang on it: not to wait until many such have come together.
            self.flush();
            R::flush(&R::pin());
        }
    }

    /// Takes a leaf with all that it holds.
    ///
    /// # Safety
    /// It has left the tree; the nodes on the way to it were this tree's own.
    #[inline(always)]
    pub(super) unsafe fn leaf(&mut self, link: Link) {
        // SAFETY: the caller's promise. One of this tree's own that holds nothing to be dropped is
        // its memory.
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
    }
}

/// A subtree from this level up is freed by parts, where a reader may have to do it: what hangs on
/// a node below is some hundred entries.
const BY_PARTS: usize = 2;

/// As many parts are handed over together.
const TOGETHER: usize = 4;

/// As [`let_go`] of an inner node, but what hangs on it is retired anew, a few children at a time:
/// so that no thread frees much at once.
///
/// # Safety
/// As for [`let_go`]; the link's level is [`BY_PARTS`] or above.
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
            // SAFETY: the reference to the child was the node's; no reader is left that it stood
            // for, so none that comes reaches it by this way.
            unsafe { R::retire(&guard, child, free) }
        }
        if (slot + 1).is_multiple_of(TOGETHER) {
            R::flush(&guard);
        }
    }
    R::flush(&guard);
    // SAFETY: nobody looks at the node any more.
    unsafe { free_node::<A>(link) }
}

/// Takes away one reference to a subtree, and frees it if that was the last.
///
/// # Safety
/// The word is that of a link to a node of a tree of this kind; the reference is the caller's, and
/// no reader that it stood for is left.
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
                    // SAFETY: the entries go with the leaf.
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
                // As deep as the tree is high.
                // SAFETY: the reference to the child was the node's.
                unsafe { let_go::<E, A>(child) }
            }
        }
    }
    // SAFETY: nobody looks at the node any more.
    unsafe { free_node::<A>(link) }
}

/// Retires what the plan replaced. `old` is the top of the replaced subtree.
///
/// # Safety
/// The plan is published, and its nodes are not retired yet; for [`Disposal::Exclusive`], no reader
/// exists.
pub(super) unsafe fn retire<E: Entry, R: Reclaim, A: NodeAlloc>(
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
            // SAFETY: as above; what is taken over is not shared.
            unsafe { bin.node(link) }
        }
    }
}

/// Retires the replaced children of a node, but for those that were taken over: their turn comes.
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
            // A sibling from beyond took its place at the end of the range: below it, there is
            // something that was taken over. SAFETY: the caller's promise.
            unsafe {
                children(bin, plan, child, 0..child.len(), removed);
                bin.node(child);
            }
        } else if removed == Removed::Keep {
            // The one entry removed was alone in its leaf, with holes on either side.
            debug_assert!(child.level() == 0);
            // SAFETY: the caller's promise; the entry is somebody's, and the leaf was on the way to
            // it.
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
/// They have left the tree.
unsafe fn covered<E: Entry, R: Reclaim, A: NodeAlloc>(
    bin: &mut Bin<E, R, A>,
    plan: &Plan,
    body: &Body,
    slots: Range<usize>,
    leaf: Link,
) {
    let [left, right] = plan.kept();
    for slot in slots {
        // The slot of which a rest stays is still somebody's.
        if (leaf, slot) != left
            && (leaf, slot) != right
            && let Some(raw) = NonNull::new(body.word(slot))
        {
            // SAFETY: the caller's promise; each word is one entry.
            unsafe { bin.entry(raw) }
        }
    }
}
