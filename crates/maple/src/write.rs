//! Writes: each replaces the contents of a range by one entry or by a hole.
//!
//! A write in general has five phases. Steps that can fail come before the first store.
//!
//! 1. *Plan*: walk to both ends of the range and compute which nodes are replaced, and how many are
//!    needed. This changes nothing.
//! 2. *Reserve*: allocate the nodes, and the second copy of an entry that is split. After this
//!    phase nothing can fail, and nothing has changed yet (I7).
//! 3. *Build* the new nodes.
//! 4. *Publish* them by **one** pointer store, and update the gaps above. A reader sees the tree
//!    before or after that store, never in between (I1).
//! 5. *Retire* the replaced nodes and entries: they go to the grace period, or are freed at once if
//!    there are no readers.
//!
//! Few writes need a plan of several levels. Each module does its case, or does nothing and leaves
//! the write to the next one:
//!
//! | module | replaces | with readers, by |
//! |---|---|---|
//! | [`leaf`] | a leaf | a leaf |
//! | [`rewrite`] | some leaves of one parent, or of two neighbouring parents | one or two leaves, and their parents |
//! | [`plan`] | anything | up to three nodes per level |
//!
//! [`descent`] is a writer's path, [`gaps`] the gaps along it, [`retire`] the way out of the tree
//! and the spare nodes. With the feature `small` only the general forms are compiled (`SHORTCUTS`).
//!
//! A new kind of write that stays in a leaf is an `Edit` for `leaf::quick`. One that
//! changes a few neighbouring leaves is a module of [`rewrite`] that ends in `splice`.
//! `tests/model` runs either against a `BTreeMap`, on several layouts of nodes.
//!
//! An exclusive owner changes leaves and their parents in place. Sequential inserts into holes, and
//! repeated moves of an end, by the same [`Writer`](crate::Writer), reuse the path of the last
//! write ([`leaf::finger`]): no descent and no search.
//!
//! # Cost
//!
//! A write within a leaf: one descent, one node allocated, five cache lines written (the leaf and a
//! line of its parent's gaps), one release store, a word for the grace period.

mod descent;
mod gaps;
mod leaf;
mod plan;
mod retire;
mod rewrite;

pub(crate) use leaf::finger::Finger;
pub(crate) use plan::Need;
pub(crate) use retire::reserve::Reserve;
pub(crate) use retire::supplies::Supplies;
pub(crate) use retire::{Bin, Disposal};
#[cfg(test)]
pub(crate) use rewrite::erase_span::{JOINED, SPANS_ERASED};

use crate::Index;
use crate::alloc::NodeAlloc;
use crate::descent::{Descent, Pick, Span};
use crate::entry::{Entry, Raw};
use crate::error::Error;
use crate::node::{self, AtomicLink, Leaf, LeafSlot, Link, pack};
use core::ptr::{self, NonNull};
use grace::Reclaim;
use leaf::fast::{EraseOne, Fast, Found, InsertHole};
use leaf::quick::{Clear, Erase, Extend, Insert, Outcome, Store};
use leaf::set_end::SetEnd;

/// Whether these have code of their own: writes of one slot ([`leaf::fast`], [`leaf::set_end`]),
/// and holes over several leaves ([`rewrite::erase_span`], [`rewrite::border`]). Without, the first
/// are those of a leaf, and the others have a plan.
pub(crate) const SHORTCUTS: bool = !cfg!(feature = "small");

/// The destination of the entries that a write removes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Removed {
    /// They are dropped after a grace period.
    Drop,
    /// They belong to the caller.
    Keep,
}

/// A tree and the supplies of its writer.
pub(crate) struct Target<'t, E: Entry, R: Reclaim, A: NodeAlloc> {
    pub(crate) tree: &'t AtomicLink,
    pub(crate) supplies: &'t mut Supplies<E, R, A>,
}

impl<'t, E: Entry, R: Reclaim, A: NodeAlloc> Target<'t, E, R, A> {
    /// # Safety
    /// The caller is the tree's writer. If disposal is exclusive, there are no readers; otherwise
    /// the engine is [`grace::Concurrent`].
    pub(crate) unsafe fn new(tree: &'t AtomicLink, supplies: &'t mut Supplies<E, R, A>) -> Self {
        Target { tree, supplies }
    }

    /// Replaces the contents of `first..=last` by `new` (null for a hole). On error nothing has
    /// changed and `new` still belongs to the caller.
    #[inline]
    pub(crate) fn replace(
        mut self,
        finger: &mut Finger,
        (first, last): (Index, Index),
        new: *mut (),
    ) -> Result<(), Error> {
        if self.tree.load().is_null() {
            return self.first_entry(first, last, new);
        }
        if self.fill(finger, first, last, new, true)? {
            Ok(())
        } else {
            self.replace_any(first, last, new)
        }
    }

    /// Puts an entry into a hole, or with `swaps` in the place of another one. Returns false, and
    /// does nothing, if the case is not that simple.
    #[cfg_attr(not(unoptimized), inline(always))]
    fn fill(
        &mut self,
        finger: &mut Finger,
        first: Index,
        last: Index,
        new: *mut (),
        swaps: bool,
    ) -> Result<bool, Error> {
        let Some(word) = NonNull::new(new).filter(|_| SHORTCUTS) else {
            finger.forget();
            return Ok(false);
        };
        loop {
            let done = if finger.is_near(first) {
                self.fill_near(finger, (first, last), word, swaps)
            } else {
                finger.forget();
                let target = &mut *self;
                node::run(InsertHole::<E, R, A, false> { target, finger, first, last, word, swaps })
            };
            match done {
                Fast::Done => return Ok(true),
                Fast::Again => {}
                Fast::OutOfMemory => return Err(Error::OutOfMemory),
                Fast::Other => return Ok(false),
            }
        }
    }

    #[inline(never)]
    fn replace_any(&mut self, first: Index, last: Index, new: *mut ()) -> Result<(), Error> {
        let outcome = if new.is_null() {
            self.quick(Clear, (first, last), new)
        } else {
            self.quick(Store, (first, last), new)
        };
        match outcome {
            Outcome::Done(_) => Ok(()),
            Outcome::Failed(error) => Err(error),
            Outcome::Plan(first, last, _) => self.carry_out(first, last, new, Removed::Drop),
        }
    }

    /// As [`Target::replace`], if the range is free.
    #[inline]
    pub(crate) fn insert(
        mut self,
        finger: &mut Finger,
        (first, last): (Index, Index),
        new: *mut (),
    ) -> Result<(), Error> {
        if self.tree.load().is_null() {
            return self.first_entry(first, last, new);
        }
        if self.fill(finger, first, last, new, false)? {
            Ok(())
        } else {
            self.insert_any(first, last, new)
        }
    }

    #[inline(never)]
    fn insert_any(&mut self, first: Index, last: Index, new: *mut ()) -> Result<(), Error> {
        match self.quick(Insert, (first, last), new) {
            Outcome::Done(_) => Ok(()),
            Outcome::Failed(error) => Err(error),
            Outcome::Plan(first, last, _) => {
                let mut path = Descent::new();
                // SAFETY: the promise of `new`.
                unsafe { path.walk(self.tree.load(), Pick::Index(first)) };
                if let Some(Span { min, max, .. }) = in_the_way(&path, last) {
                    return Err(Error::Occupied { start: min, end: max });
                }
                self.carry_out(first, last, new, Removed::Drop)
            }
        }
    }

    /// Replaces the entry that holds `index` by a hole. Returns the entry, which then belongs to
    /// the caller.
    #[inline]
    pub(crate) fn erase(
        mut self,
        finger: &Finger,
        index: Index,
    ) -> Result<Option<(Index, Index, Raw)>, Error> {
        finger.forget();
        if self.tree.load().is_null() {
            return Ok(None);
        }
        if !SHORTCUTS {
            return self.erase_any(index);
        }
        let mut found = Found { start: 0, end: 0, word: ptr::null_mut() };
        match node::run(EraseOne { target: &mut self, index, found: &mut found }) {
            Fast::Done => Ok(NonNull::new(found.word).map(|raw| (found.start, found.end, raw))),
            Fast::OutOfMemory => Err(Error::OutOfMemory),
            Fast::Again | Fast::Other => self.erase_any(index),
        }
    }

    #[inline(never)]
    fn erase_any(&mut self, index: Index) -> Result<Option<(Index, Index, Raw)>, Error> {
        let word = ptr::null_mut();
        match self.quick(Erase, (index, index), word) {
            Outcome::Done(erased) => Ok(erased),
            Outcome::Failed(error) => Err(error),
            Outcome::Plan(first, last, erased) => {
                self.carry_out(first, last, word, Removed::Keep)?;
                Ok(erased)
            }
        }
    }

    /// Moves the last index of the entry that holds `index` to `end`. Returns the entry's range;
    /// `None` for a hole.
    #[inline]
    pub(crate) fn set_end(
        mut self,
        finger: &mut Finger,
        index: Index,
        end: Index,
    ) -> Result<Option<(Index, Index)>, Error> {
        if self.tree.load().is_null() {
            return Ok(None);
        }
        if !SHORTCUTS {
            return self.set_end_any(index, end);
        }
        let mut range = (0, 0);
        let done = if finger.is_near(index) {
            self.slide_near(finger, (index, end), &mut range)
        } else {
            finger.forget();
            let (target, range) = (&mut self, &mut range);
            node::run(SetEnd::<E, R, A, false> { target, finger, index, end, range })
        };
        match done {
            Fast::Done => Ok(Some(range)),
            Fast::OutOfMemory => Err(Error::OutOfMemory),
            Fast::Again | Fast::Other => self.set_end_any(index, end),
        }
    }

    #[inline(never)]
    fn set_end_any(&mut self, index: Index, end: Index) -> Result<Option<(Index, Index)>, Error> {
        let mut path = Descent::new();
        // SAFETY: the promise of `new`; the root is not null.
        unsafe { path.walk(self.tree.load(), Pick::Index(index)) };
        let Span { min, max, word } = path.span();
        if word.is_null() {
            return Ok(None);
        }
        if end < min {
            return Err(Error::EmptyRange);
        }
        if end < max {
            self.replace_any(end + 1, max, ptr::null_mut())?;
        } else if end > max {
            // There is a slot behind it, because there is an index behind it.
            path.next_slot();
            if let Some(Span { min, max, .. }) = in_the_way(&path, end) {
                return Err(Error::Occupied { start: min, end: max });
            }
            match self.quick(Extend, (min, end), word) {
                Outcome::Done(_) => {}
                Outcome::Failed(error) => return Err(error),
                Outcome::Plan(first, last, _) => {
                    self.carry_out(first, last, word, Removed::Keep)?
                }
            }
        }
        Ok(Some((min, end)))
    }

    /// The duplicate that was made for this write.
    fn take_copy(&mut self) -> *mut () {
        self.supplies.spare.take().map_or(ptr::null_mut(), |(_, copy)| copy.as_ptr())
    }

    /// Stores the first entry of an empty tree: one leaf.
    #[cold]
    fn first_entry(&mut self, first: Index, last: Index, new: *mut ()) -> Result<(), Error> {
        if new.is_null() {
            return Ok(());
        }
        self.supplies.nodes.fill(Need { leaves: 1, inners: 0 })?;
        let hole = ptr::null_mut();
        let slots = [
            LeafSlot { end: first.wrapping_sub(1), word: hole },
            LeafSlot { end: last, word: new },
            LeafSlot { end: Index::MAX, word: hole },
        ];
        let from = usize::from(first == 0);
        let to = if last == Index::MAX { 2 } else { 3 };
        let leaf = self.supplies.nodes.take_leaf(Leaf::new(pack(&slots[from..to])));
        self.tree.publish(Link::leaf(leaf));
        Ok(())
    }
}

/// The lowest entry from the slot of `path` up to `last`.
#[inline]
fn in_the_way(path: &Descent, last: Index) -> Option<Span> {
    let mut span = path.span();
    if span.word.is_null() && span.max < last {
        // A hole ends at an entry.
        let mut path = path.clone();
        if path.next_slot() {
            span = path.span();
        }
    }
    (!span.word.is_null()).then_some(span)
}
