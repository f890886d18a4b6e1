//! The one way to change a tree: replace what lies in a range by one entry or by a hole.
//!
//! Every write goes through the same phases, one module each:
//!
//! 1. [`plan`] walks to both ends of the range and works out, level by level, which nodes are
//!    replaced and how many are needed. It changes nothing.
//! 2. [`reserve`]: the nodes (and the second copy of an entry that is split in two) are allocated.
//!    Only this phase can fail, and nothing has changed yet (I7).
//! 3. [`build`] fills the new nodes aside.
//! 4. [`publish`] makes them visible by **one** pointer store, and brings the gaps above up to
//!    date. A reader sees the tree before or after that store, never between (I1).
//! 5. [`retire`] hands the replaced nodes and entries to the grace period, or frees them when the
//!    owner is alone.
//!
//! Few writes need all that. Each of these hands over to the next what it does not do itself,
//! nothing changed:
//!
//! | write | module | new nodes beside readers |
//! |---|---|---|
//! | an entry into a hole, an erase, an end moved, within a leaf | [`fast`] | a leaf |
//! | any change within a leaf | [`quick`] | a leaf |
//! | into a full leaf: it is cut, and full nodes above it before that | [`split`], [`room`] | two leaves and their parent |
//! | an erase whose hole goes on in the next leaf; an end moved into it | [`border`] | a leaf and its parent; the parent |
//! | an erase that leaves too little in a leaf, if a sibling takes the rest | [`join`] | a leaf and its parent |
//! | a hole over several leaves of one parent, or of two neighbours | [`erase_span`] | one or two leaves and their parent; or both, and theirs |
//! | all else | [`plan`] | up to three a level |
//!
//! An exclusive owner changes leaves in place, and their parent. A run of entries into holes side
//! by side, and an end that moves again, by the same [`Writer`](crate::Writer), take the way of the
//! last ([`finger`]): no walk, no search.
//!
//! # Cost
//!
//! A write within a leaf: one walk down, one node allocated, four cache lines written and the
//! parent's line of gaps, one release store, a word for the grace period.
//!
//! # What each step gave
//!
//! Nanoseconds a write of a tree of 1,000 entries, on the machine of the benchmark's results: to
//! build it in random order for one owner, and beside readers; to erase and insert beside readers;
//! to erase over 16.
//!
//! | step | owner | shared | erase + insert | over 16 |
//! |---|---|---|---|---|
//! | before | 75 | 124 | 134 | 600 |
//! | a leaf changed straight into its new block, by vectors, and not over the stack | 70 | 90 | 104 | |
//! | entries into holes and erases by themselves | 63 | 83 | 99 | |
//! | a hole at a leaf's end asks the next leaf, not a plan | 61 | 82 | 95 | |
//! | a full leaf cut into its blocks, gaps raised before they are stored | 57 | 77 | 93 | |
//! | new bounds and words by plain stores after the vectors | 56 | 74 | 91 | |
//! | retired nodes as words, and looked after every few batches | 56 | 71 | 85 | |
//! | holes over several leaves without a plan | | | | 378 |
//! | full inner nodes cut by themselves | 52 | 66 | 85 | 330 |
//!
//! Later, in other sittings, each step beside what was before it; the write of an erase and insert,
//! shared, of 100 and 1,000 ranges, the end moved at 1,000, and the erase over 16 at 1,000:
//!
//! | step | erase + insert | end moved | over 16 |
//! |---|---|---|---|
//! | before | 61 / 77 | 45 | 219 |
//! | the largest gap found in the leaf as it was, in any case, and stored in any case; where holes go when a leaf is cut; small stores that are no calls | 53 / 71 | 47 | 188 |
//! | gaps counted only where needed if an end is moved | 53 / 71 | 41 | 188 |
//!
//! Later again, each beside what was before it, in nanoseconds; the erase over 16, shared, of 100,
//! 1,000, 10,000 and 100,000:
//!
//! | step | over 16 |
//! |---|---|
//! | before | 289 / 251 / 191 / 354 |
//! | leaves and parents made of runs of others, by masked loads and whole lines instead of loops; gaps found in what was there; leaves of two neighbouring parents without a plan, which took one in nine at 1,000 | 174 / 147 / 158 / 280 |
//!
//! The same, where a full leaf is cut, takes 4 % off building in random order beside readers (63 to
//! 60 at 1,000), and nothing for an only owner, who moves less. The header of a leaf put into its
//! line in a register, so that less is stored twice, gave nothing; with the new bounds and the
//! word, too, so that all lines are stored whole and the next write can load them at once,
//! ascending order took a tenth longer, and random order 4 % (an only owner: 9 %).
//!
//! What counted in the table before were branches: of 2.5 guessed wrong in a write, 0.7 asked
//! whether the largest gap had changed and at which end of the leaf a hole lay. A leaf cut evenly
//! is cut before an entry, not before a hole: so few leaves begin with a hole, most writes find
//! what they asked before the same way each time, and an entry that grows finds its hole in its own
//! leaf. To erase all in random order takes a tenth to a third longer at 100 and 10,000: the first
//! entry of a leaf then has a hole before it which is another's. Memory is as it was: what one
//! order of insertion shows (23.6 bytes an entry instead of 25.3, at 1,000 that touch), others do
//! not.
//!
//! Slower, all by a few hundredths: a search by small loads in the leaf that was written last; a
//! moved bound put into its line by vectors; batches looked after more often; the parent's slots
//! copied one by one; nodes of both kinds freed without a branch.
//!
//! Again later, each beside what was before it; one owner and shared, of 100 and 1,000 ranges (see
//! [`join`], too):
//!
//! | step | erase + insert, one owner | shared |
//! |---|---|---|
//! | before | 36.3 / 49.3 | 44.6 / 59.2 |
//! | the way on the stack without cells, a run told by its entries ([`finger`]) | 35.6 / 49.4 | 45.1 / 59.1 |
//! | the end of a leaf without a branch: one write in five is to a last slot; gaps measured in place; nothing about wide leaves in what is for narrow ones | 31.7 / 45.8 | 40.8 / 54.7 |
//! | the parent's largest gap found and stored in any case where there is one above: one write in six changed it | - / 46.3 (before 50.5) | - / 54.9 (60.4) |
//! | inner nodes searched in fewer cycles by more instructions | 31.8 / 41.6 (before 32.7 / 43.8) | 41.4 / 52.5 (42.4 / 54.4) |
//!
//! Without vectors the largest step was not to call `memmove` for some ten words ([`crate::node`],
//! `few`): 255 to 126, and to 75 with the calls gone from inner nodes, too. At 100,000 entries
//! looking after what waits gave most: 160 to 135, since two megabytes of nodes were waiting and
//! out of the cache when they came back.

mod batch;
mod border;
mod build;
mod erase_span;
mod fast;
mod finger;
mod join;
mod plan;
mod publish;
mod quick;
mod removed;
mod reserve;
mod retire;
mod room;
mod split;
mod supplies;
mod unshare;
mod write_descent;

#[cfg(test)]
pub(crate) use erase_span::{JOINED, SWEPT};
pub(crate) use finger::Finger;
pub(crate) use plan::Need;
pub(crate) use reserve::Reserve;
pub(crate) use retire::{Bin, Disposal};
pub(crate) use supplies::Supplies;
pub(crate) use unshare::Copies;

use crate::alloc::NodeAlloc;
use crate::descent::{Descent, Pick, Span};
use crate::entry::{Entry, Raw};
use crate::error::Error;
use crate::layout::INNER_SLOTS;
use crate::node::{self, AtomicLink, Leaf, Link, Slot, pack};
use core::ptr::{self, NonNull};
use fast::{EraseOne, Fast, Found, InsertHole, SetEnd};
use grace::Reclaim;
use plan::Plan;
use quick::{Clear, Erase, Extend, Insert, Outcome, Quick, Store};

// A plan lives on the stack.
const _: () = assert!(size_of::<Plan>() <= 7 * 1024);

/// What becomes of the entries that a write removes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Removed {
    /// They are dropped after a grace period.
    Drop,
    /// The caller has them.
    Keep,
}

impl Need {
    /// Enough for either.
    fn or(self, other: Need) -> Need {
        Need { leaves: self.leaves.max(other.leaves), inners: self.inners.max(other.inners) }
    }
}

/// A tree in the hands of its writer.
pub(crate) struct Target<'t, E: Entry, R: Reclaim, A: NodeAlloc> {
    tree: &'t AtomicLink,
    supplies: &'t mut Supplies<E, R, A>,
}

impl<'t, E: Entry, R: Reclaim, A: NodeAlloc> Target<'t, E, R, A> {
    /// # Safety
    /// The caller has the writer's right to the tree. When its disposal is exclusive, no reader
    /// exists; when it is not, the engine is [`grace::Concurrent`].
    pub(crate) unsafe fn new(tree: &'t AtomicLink, supplies: &'t mut Supplies<E, R, A>) -> Self {
        Target { tree, supplies }
    }

    /// Makes sure that storing an entry or a hole over `first..=last`, and erasing the entry that
    /// holds `first`, will find their memory in the supplies. What is shared with another tree may
    /// be copied.
    pub(crate) fn prepare(mut self, first: usize, last: usize) -> Result<(), Error> {
        let mut needed = Need { leaves: 1, inners: 0 };
        let root = self.tree.load();
        if !root.is_null() {
            let mut path = Descent::new();
            // SAFETY: the promise of `new`.
            unsafe { path.walk(root, Pick::Index(first)) };
            let span = path.span();
            // What a leaf cut in two takes beside readers, a write at its border, and a hole over
            // leaves of two parents; and each full node above that must be cut first.
            let full = |&level: &usize| path.step(level).len() == INNER_SLOTS;
            let full = (1..path.height()).take_while(full).count();
            needed = Need { leaves: 2, inners: 3.max(1 + 3 * full) };
            let mut plan = Plan::new();
            if !span.word.is_null() && self.plan(&mut plan, span.min, span.max, true)? {
                needed = needed.or(plan.nodes());
            }
            for hole in [false, true] {
                if self.plan(&mut plan, first, last, hole)? {
                    needed = needed.or(plan.nodes());
                    if let Some(source) = plan.split() {
                        // SAFETY: the entry is in the tree.
                        unsafe { self.supplies.provide(source, ptr::null_mut())? }
                    }
                }
            }
        }
        self.supplies.nodes.fill(needed)
    }

    /// Replaces what lies in `first..=last` by `new` (null: a hole). On error nothing has changed
    /// and `new` is still the caller's.
    #[inline]
    pub(crate) fn replace(
        mut self,
        finger: &mut Finger,
        (first, last): (usize, usize),
        new: *mut (),
    ) -> Result<(), Error> {
        if self.tree.load().is_null() {
            return self.first_entry(first, last, new);
        }
        if self.fill(finger, first, last, new)? {
            Ok(())
        } else {
            self.replace_any(first, last, new)
        }
    }

    /// Puts an entry into a hole; false, and nothing done, if it is not that simple.
    #[inline(always)]
    fn fill(
        &mut self,
        finger: &mut Finger,
        first: usize,
        last: usize,
        new: *mut (),
    ) -> Result<bool, Error> {
        let Some(word) = NonNull::new(new) else {
            finger.forget();
            return Ok(false);
        };
        loop {
            let done = if finger.is_near(first) {
                self.fill_near(finger, (first, last), word)
            } else {
                finger.forget();
                node::run(InsertHole::<E, R, A, false> { target: self, finger, first, last, word })
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
    fn replace_any(&mut self, first: usize, last: usize, new: *mut ()) -> Result<(), Error> {
        let outcome = if new.is_null() {
            node::run(Quick::<Clear, E, R, A>::new(self, (first, last), new))
        } else {
            node::run(Quick::<Store, E, R, A>::new(self, (first, last), new))
        };
        match outcome {
            Outcome::Done(_) => Ok(()),
            Outcome::Failed(error) => Err(error),
            Outcome::Plan(first, last, _) => self.carry_out(first, last, new, Removed::Drop),
        }
    }

    /// As [`Target::replace`], if nothing is in the way.
    #[inline]
    pub(crate) fn insert(
        mut self,
        finger: &mut Finger,
        (first, last): (usize, usize),
        new: *mut (),
    ) -> Result<(), Error> {
        if self.tree.load().is_null() {
            return self.first_entry(first, last, new);
        }
        if self.fill(finger, first, last, new)? {
            Ok(())
        } else {
            self.insert_any(first, last, new)
        }
    }

    #[inline(never)]
    fn insert_any(&mut self, first: usize, last: usize, new: *mut ()) -> Result<(), Error> {
        match node::run(Quick::<Insert, E, R, A>::new(self, (first, last), new)) {
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

    /// Makes a hole of the entry that holds `index`, and returns it; it is the caller's now.
    #[inline]
    pub(crate) fn erase(
        mut self,
        finger: &Finger,
        index: usize,
    ) -> Result<Option<(usize, usize, Raw)>, Error> {
        finger.forget();
        if self.tree.load().is_null() {
            return Ok(None);
        }
        let mut found = Found { start: 0, end: 0, word: ptr::null_mut() };
        match node::run(EraseOne { target: &mut self, index, found: &mut found }) {
            Fast::Done => Ok(NonNull::new(found.word).map(|raw| (found.start, found.end, raw))),
            Fast::OutOfMemory => Err(Error::OutOfMemory),
            Fast::Again | Fast::Other => self.erase_any(index),
        }
    }

    #[inline(never)]
    fn erase_any(&mut self, index: usize) -> Result<Option<(usize, usize, Raw)>, Error> {
        let word = ptr::null_mut();
        match node::run(Quick::<Erase, E, R, A>::new(self, (index, index), word)) {
            Outcome::Done(erased) => Ok(erased),
            Outcome::Failed(error) => Err(error),
            Outcome::Plan(first, last, erased) => {
                self.carry_out(first, last, word, Removed::Keep)?;
                Ok(erased)
            }
        }
    }

    /// Moves the last index of the entry that holds `index` to `end`, and returns its range; `None`
    /// for a hole.
    #[inline]
    pub(crate) fn set_end(
        mut self,
        finger: &mut Finger,
        index: usize,
        end: usize,
    ) -> Result<Option<(usize, usize)>, Error> {
        if self.tree.load().is_null() {
            return Ok(None);
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
    fn set_end_any(&mut self, index: usize, end: usize) -> Result<Option<(usize, usize)>, Error> {
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
            // There is a slot behind it, since an index is.
            path.next_slot();
            if let Some(Span { min, max, .. }) = in_the_way(&path, end) {
                return Err(Error::Occupied { start: min, end: max });
            }
            match node::run(Quick::<Extend, E, R, A>::new(self, (min, end), word)) {
                Outcome::Done(_) => {}
                Outcome::Failed(error) => return Err(error),
                Outcome::Plan(first, last, _) => {
                    self.carry_out(first, last, word, Removed::Keep)?
                }
            }
        }
        Ok(Some((min, end)))
    }

    /// All phases.
    #[cold]
    #[inline(never)]
    fn carry_out(
        &mut self,
        first: usize,
        last: usize,
        new: *mut (),
        removed: Removed,
    ) -> Result<(), Error> {
        let mut plan = Plan::new();
        if !self.plan(&mut plan, first, last, new.is_null())? {
            return Ok(());
        }
        if let Some(source) = plan.split() {
            // SAFETY: the entry is in the tree; the new one is not yet.
            unsafe { self.supplies.provide(source, new)? }
        }
        self.supplies.nodes.fill(plan.nodes())?;
        // Nothing fails from here on.
        let copy = if plan.split().is_some() { self.take_copy() } else { ptr::null_mut() };
        plan.complete(new, copy);
        let top = build::build(&plan, &mut self.supplies.nodes);
        let old = publish::publish(self.tree, &plan, top);
        // A duplicate made ahead is for the next write only: its source may be gone by the one
        // after.
        self.supplies.drop_spare();
        // SAFETY: what the plan replaced is unreachable since `publish`.
        unsafe { retire::retire(&mut self.supplies.bin, &plan, old, removed) };
        Ok(())
    }

    /// Works out a write; false if it changes nothing. What it replaces in part is this tree's own
    /// afterwards.
    fn plan(
        &mut self,
        plan: &mut Plan,
        first: usize,
        last: usize,
        hole: bool,
    ) -> Result<bool, Error> {
        if E::SHARES {
            // Holes may widen the range, beyond the leaves of its ends: those are this tree's own
            // all the same.
            self.unshare(first, 0)?;
            self.unshare(last, 0)?;
        }
        loop {
            // SAFETY: the promise of `new`; the root is not null.
            unsafe { plan.walk(self.tree.load(), first) };
            if !plan.make(first, last, hole)? {
                return Ok(false);
            }
            // Siblings that it takes in, and what lies above, may still be shared. After a copy
            // nothing that the plan knows may be looked at: what was let go may be gone.
            let Some((index, height)) = Self::shared(plan) else { return Ok(true) };
            self.unshare(index, height)?;
        }
    }

    /// A node that the plan changes or takes over, and that another tree has, too: by an index and
    /// its level.
    fn shared(plan: &Plan) -> Option<(usize, usize)> {
        if !E::SHARES {
            return None;
        }
        (0..plan.left.height()).rev().find_map(|height| {
            let changed = plan.changed(height).into_iter();
            // SAFETY: the writer's right.
            let mut shared =
                changed.filter(|(link, _)| !link.is_null() && unsafe { link.refs() }.shared());
            shared.next().map(|(_, index)| (index, height))
        })
    }

    /// The duplicate that was made for this write.
    fn take_copy(&mut self) -> *mut () {
        self.supplies.spare.take().map_or(ptr::null_mut(), |(_, copy)| copy.as_ptr())
    }

    /// The first entry of an empty tree: one leaf.
    #[cold]
    fn first_entry(&mut self, first: usize, last: usize, new: *mut ()) -> Result<(), Error> {
        if new.is_null() {
            return Ok(());
        }
        self.supplies.nodes.fill(Need { leaves: 1, inners: 0 })?;
        let hole = ptr::null_mut();
        let slots = [
            Slot { end: first.wrapping_sub(1), word: hole },
            Slot { end: last, word: new },
            Slot { end: usize::MAX, word: hole },
        ];
        let from = usize::from(first == 0);
        let to = if last == usize::MAX { 2 } else { 3 };
        let leaf = self.supplies.nodes.take_leaf(Leaf::new(pack(&slots[from..to])));
        self.tree.publish(Link::leaf(leaf));
        Ok(())
    }
}

/// The lowest entry between where `path` leads and `last`.
#[inline]
fn in_the_way(path: &Descent, last: usize) -> Option<Span> {
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
