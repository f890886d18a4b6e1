//! Where a writer last wrote. Programs write in one place again and again: a heap grows, mappings
//! are made side by side. Such a write, from the third of a run on, or the second move of an end,
//! neither walks nor searches: its way is that of the write before. An erase always walks.
//!
//! # Why the way is still right
//!
//! The writer has the tree to itself as long as it lives, so the nodes on the way change by its own
//! hand alone. Each write to a tree that is not empty [forgets](Finger::forget) the place before it
//! looks at the tree, whatever becomes of it, and so does all else by which a writer changes nodes,
//! or gives another tree a part in them. Only a write that has put one leaf in place of another, or
//! changed it in place, and nothing above it but gaps, [notes](Finger::note) the place anew, and as
//! its last step: the way down is the same, and ends at the leaf that is there now. One that fails
//! or panics notes nothing. A build with debug assertions walks all the same, and compares.
//!
//! # What it gave
//!
//! Nanoseconds a write of 100, 1,000 and 10,000 ranges, before and after, in turns:
//!
//! | | one owner | shared |
//! |---|---|---|
//! | to build in ascending order | 28 / 35 / 43 to 19 / 20 / 22 | 41 / 42 / 50 to 38 / 32 / 33 |
//! | to move an end at random | 23 / 27 / 41 to 22 / 25 / 37 | 33 / 39 / 53 to 35 / 39 / 52 |
//! | to build in random order, times | 1.03 / 1.03 / 1.02 | 1.02 / 1.03 / 1.01 |
//! | to erase and insert at random, times | 1.05 / 1.03 / 1.02 | 1.05 / 1.04 / 1.03 |
//!
//! The price is paid by who writes at random: it was 5 to 10 % with one function for both, and with
//! every write noted. It helps who writes more than once by one [`Writer`](crate::Writer).
//!
//! Most of the price has come back since: the way of a write at random is on its stack again, and
//! only a finger's own stays; and a run is told by its entries, which lie side by side, not by its
//! leaf, which in a tree of ten leaves is the same one time in ten.

use super::Target;
use super::fast::{Fast, InsertHole, SetEnd};
use super::quick::Place;
use super::write_descent::WriteDescent;
use crate::alloc::NodeAlloc;
use crate::entry::Entry;
use crate::node::{self, Link, Search};
use core::cell::Cell;
use core::ptr::NonNull;
use grace::Reclaim;

/// A writer's last way, and what it knows of the leaf there.
///
/// In cells but for the way, since who duplicates a tree does not have its writer mutably.
pub(crate) struct Finger {
    pub(super) trail: WriteDescent,
    /// A slot by its ends, and by number. The ends are also those of the last entry put into a hole
    /// where nothing was noted.
    first: Cell<usize>,
    last: Cell<usize>,
    slot: Cell<usize>,
    /// Where the slot before it begins (`first`, where nothing is known of that), and how many
    /// indices there are from there to the end of the slot behind it (or `last`). None if nothing
    /// is known at all.
    from: Cell<usize>,
    len: Cell<usize>,
}

/// The slot of a leaf that holds an index.
pub(super) struct Spot<'p> {
    pub(super) place: Place<'p>,
    pub(super) slot: usize,
    pub(super) start: usize,
    pub(super) end: usize,
    /// Whether a node on the way belongs to another tree, too.
    pub(super) shared: bool,
}

impl Finger {
    /// At no place.
    #[inline(always)]
    pub(crate) const fn new() -> Finger {
        Finger {
            trail: WriteDescent::new(),
            first: Cell::new(0),
            last: Cell::new(0),
            slot: Cell::new(0),
            from: Cell::new(0),
            len: Cell::new(0),
        }
    }

    /// Forgets the place.
    #[inline(always)]
    pub(crate) fn forget(&self) {
        self.len.set(0);
    }

    /// The way ends at this leaf now. One changed in place is not stored again: the next write
    /// would wait for that.
    #[inline(always)]
    pub(super) fn end_at(&mut self, leaf: Link) {
        if self.trail.leaf() != leaf {
            self.trail.set_leaf(leaf);
        }
    }

    /// Notes a slot of the leaf at the end of the way, with what is known of those next to it:
    /// where the one before it begins, and the one behind it ends.
    #[inline(always)]
    pub(super) fn note(
        &self,
        slot: usize,
        (first, last): (usize, usize),
        (from, to): (usize, usize),
    ) {
        debug_assert!(from <= first && first <= last && last <= to);
        self.first.set(first);
        self.last.set(last);
        self.slot.set(slot);
        self.from.set(from);
        // All indices there are would be none: then the next write walks.
        self.len.set((to - from).wrapping_add(1));
    }

    /// Remembers an entry put into a hole elsewhere, and of its place nothing.
    #[inline(always)]
    pub(super) fn pass(&self, (first, last): (usize, usize)) {
        self.first.set(first);
        self.last.set(last);
    }

    /// Whether a hole is next to the entry that was last put into one. It may say so if it is not:
    /// then the place of the next is noted for nothing.
    #[inline(always)]
    pub(super) fn is_beside(&self, (start, end): (usize, usize)) -> bool {
        (start.wrapping_sub(1) == self.last.get()) | (end.wrapping_add(1) == self.first.get())
    }

    /// Whether the slot that holds an index is known.
    #[inline(always)]
    pub(super) fn is_near(&self, index: usize) -> bool {
        index.wrapping_sub(self.from.get()) < self.len.get()
    }

    /// The slot that holds an index, and its ends, which is near; forgets the place.
    #[inline(always)]
    fn take(&self, index: usize) -> (usize, usize, usize) {
        debug_assert!(self.is_near(index));
        let (from, len) = (self.from.get(), self.len.get());
        self.forget();
        let (first, last, slot) = (self.first.get(), self.last.get(), self.slot.get());
        if index > last {
            (slot + 1, last + 1, from + (len - 1))
        } else if index >= first {
            (slot, first, last)
        } else {
            (slot - 1, from, first - 1)
        }
    }
}

impl Finger {
    /// The slot that holds an index, by the way of the last write, which is near; forgets the
    /// place.
    #[inline(always)]
    pub(super) fn near<S: Search, E: Entry, R: Reclaim, A: NodeAlloc>(
        &self,
        target: &Target<'_, E, R, A>,
        search: S,
        index: usize,
    ) -> Spot<'_> {
        let (slot, start, end) = self.take(index);
        // SAFETY: the promise of `Target::new`; the way is that of a write since which nothing on
        // it has changed.
        let body = unsafe { self.trail.leaf().as_leaf().body() };
        if cfg!(debug_assertions) {
            self.check(target, search, index, (slot, start, end));
        }
        Spot { place: Place { trail: &self.trail, body }, slot, start, end, shared: false }
    }

    /// Panics unless a walk finds what the finger says.
    fn check<S: Search, E: Entry, R: Reclaim, A: NodeAlloc>(
        &self,
        target: &Target<'_, E, R, A>,
        search: S,
        index: usize,
        known: (usize, usize, usize),
    ) {
        let mut trail = WriteDescent::new();
        let Spot { place, slot, start, end, shared } = target.spot(search, index, &mut trail);
        assert!(!shared && self.trail.is_same(place.trail), "the finger is at another leaf");
        assert_eq!((slot, start, end), known, "the finger is at another slot");
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Target<'_, E, R, A> {
    /// Puts an entry near the last write.
    #[inline(never)]
    pub(super) fn fill_near(
        &mut self,
        finger: &mut Finger,
        (first, last): (usize, usize),
        word: NonNull<()>,
    ) -> Fast {
        node::run(InsertHole::<E, R, A, true> { target: self, finger, first, last, word })
    }

    /// Moves an end near the last write.
    #[inline(never)]
    pub(super) fn slide_near(
        &mut self,
        finger: &mut Finger,
        (index, end): (usize, usize),
        range: &mut (usize, usize),
    ) -> Fast {
        node::run(SetEnd::<E, R, A, true> { target: self, finger, index, end, range })
    }

    /// Finds the slot that holds an index, from the root. Not one function with [`Finger::near`],
    /// so that who writes at random does not pay for what is of no use to it.
    #[inline(always)]
    pub(super) fn spot<'p, S: Search>(
        &self,
        search: S,
        index: usize,
        trail: &'p mut WriteDescent,
    ) -> Spot<'p> {
        let (place, slot, shared) = self.reach(search, index, trail);
        let end = if place.body.is_wide() { place.end(slot) } else { place.end_of(slot) };
        Spot { place, slot, start: place.start(slot), end, shared }
    }
}
