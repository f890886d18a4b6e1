//! The finger: the position of a writer's last write. Programs often write in one place: a heap
//! grows, or mappings are made side by side. From the third write of a sequential run on, or the
//! second move of an end, a write needs neither a descent nor a search: it reuses the path of the
//! write before. An erase always descends.
//!
//! # Why the path is still valid
//!
//! The writer is the only one as long as it lives, so only it changes the nodes on the path. Each
//! write to a non-empty tree first [forgets](Finger::forget) the finger, whatever its outcome. So
//! does every other operation by which a writer changes nodes or shares them with another tree. A
//! write [notes](Finger::note) the finger as its last step, and only if it replaced one leaf or
//! changed it in place, and changed nothing above the leaf but gaps and the pointer to it. Then the
//! path is the same and ends at the current leaf. A write that fails or panics notes nothing. A
//! build with debug assertions also descends, and compares the two.
//!
//! Cost: a random write pays a few instructions, because its path is a local variable and the
//! finger is noted only in a run. A run is detected by entries that lie side by side.

use crate::Index;
use crate::alloc::NodeAlloc;
use crate::entry::Entry;
use crate::node::{self, Link, Search};
use crate::write::Target;
use crate::write::descent::WriteDescent;
use crate::write::leaf::fast::{Fast, InsertHole};
use crate::write::leaf::place::Place;
use crate::write::leaf::set_end::SetEnd;
use core::cell::Cell;
use core::ptr::NonNull;
use grace::Reclaim;

/// The path of a writer's last write, and facts about the leaf at its end.
///
/// Fields other than the path are cells, because duplicating a tree borrows its writer immutably.
pub(crate) struct Finger {
    pub(in crate::write) descent: WriteDescent,
    /// A slot of the leaf: its first and last index, and its number. If nothing is noted, they are
    /// the range of the last entry put into a hole.
    first: Cell<Index>,
    last: Cell<Index>,
    slot: Cell<usize>,
    /// The first index of the slot before it (`first` if that is unknown), and the number of
    /// indices from there to the end of the slot behind it (or to `last`). 0 if nothing is known.
    from: Cell<Index>,
    len: Cell<Index>,
}

/// The slot of a leaf that holds an index.
pub(in crate::write) struct Spot<'p> {
    pub(in crate::write) place: Place<'p>,
    pub(in crate::write) slot: usize,
    pub(in crate::write) start: Index,
    pub(in crate::write) end: Index,
    /// Whether a node on the path is shared with another tree.
    pub(in crate::write) shared: bool,
}

impl Finger {
    /// A finger that knows nothing.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) const fn new() -> Finger {
        Finger {
            descent: WriteDescent::new(),
            first: Cell::new(0),
            last: Cell::new(0),
            slot: Cell::new(0),
            from: Cell::new(0),
            len: Cell::new(0),
        }
    }

    /// Forgets the position.
    #[inline(always)]
    pub(crate) fn forget(&self) {
        self.len.set(0);
    }

    /// Sets the leaf at the end of the path. A leaf changed in place is not stored again, because
    /// the next write would have to wait for that store.
    #[inline(always)]
    pub(in crate::write) fn end_at(&mut self, leaf: Link) {
        if self.descent.leaf() != leaf {
            self.descent.set_leaf(leaf);
        }
    }

    /// Notes a slot of the leaf at the end of the path, the first index of the slot before it, and
    /// the last index of the slot behind it.
    #[inline(always)]
    pub(in crate::write) fn note(
        &self,
        slot: usize,
        (first, last): (Index, Index),
        (from, to): (Index, Index),
    ) {
        debug_assert!(from <= first && first <= last && last <= to);
        self.first.set(first);
        self.last.set(last);
        self.slot.set(slot);
        self.from.set(from);
        // If the range is all indices, the length wraps to 0: the next write descends.
        self.len.set((to - from).wrapping_add(1));
    }

    /// Notes the range of an entry that was put into a hole, but not its position.
    #[inline(always)]
    pub(in crate::write) fn pass(&self, (first, last): (Index, Index)) {
        self.first.set(first);
        self.last.set(last);
    }

    /// Whether a hole is next to the last entry that was put into one. A false positive is
    /// harmless: it only notes a position that the next write does not use.
    #[inline(always)]
    pub(in crate::write) fn is_beside(&self, (start, end): (Index, Index)) -> bool {
        (start.wrapping_sub(1) == self.last.get()) | (end.wrapping_add(1) == self.first.get())
    }

    /// Whether the slot that holds an index is known.
    #[inline(always)]
    pub(in crate::write) fn is_near(&self, index: Index) -> bool {
        index.wrapping_sub(self.from.get()) < self.len.get()
    }

    /// The number and the range of the slot that holds an index, which must be near. Forgets the
    /// position.
    #[cfg_attr(not(unoptimized), inline(always))]
    fn take(&self, index: Index) -> (usize, Index, Index) {
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
    /// The slot that holds an index, by the path of the last write. The index must be near. Forgets
    /// the position.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(in crate::write) fn near<S: Search, E: Entry, R: Reclaim, A: NodeAlloc>(
        &self,
        target: &Target<'_, E, R, A>,
        search: S,
        index: Index,
    ) -> Spot<'_> {
        let (slot, start, end) = self.take(index);
        // SAFETY: the promise of `Target::new`; nothing on the path has changed since the last
        // write.
        let body = unsafe { self.descent.leaf().as_leaf().body() };
        if cfg!(debug_assertions) {
            self.check(target, search, index, (slot, start, end));
        }
        Spot { place: Place { descent: &self.descent, body }, slot, start, end, shared: false }
    }

    /// Panics if a descent does not find the same slot.
    fn check<S: Search, E: Entry, R: Reclaim, A: NodeAlloc>(
        &self,
        target: &Target<'_, E, R, A>,
        search: S,
        index: Index,
        known: (usize, Index, Index),
    ) {
        let mut descent = WriteDescent::new();
        let Spot { place, slot, start, end, shared } = target.spot(search, index, &mut descent);
        assert!(
            !shared && self.descent.is_same(place.descent),
            "the finger has another path than a descent"
        );
        assert_eq!((slot, start, end), known, "the finger has another slot than a search");
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Target<'_, E, R, A> {
    /// Puts an entry into a hole near the last write.
    #[inline(never)]
    pub(in crate::write) fn fill_near(
        &mut self,
        finger: &mut Finger,
        (first, last): (Index, Index),
        word: NonNull<()>,
        swaps: bool,
    ) -> Fast {
        node::run(InsertHole::<E, R, A, true> { target: self, finger, first, last, word, swaps })
    }

    /// Moves the end of an entry near the last write.
    #[inline(never)]
    pub(in crate::write) fn slide_near(
        &mut self,
        finger: &mut Finger,
        (index, end): (Index, Index),
        range: &mut (Index, Index),
    ) -> Fast {
        node::run(SetEnd::<E, R, A, true> { target: self, finger, index, end, range })
    }

    /// Finds the slot that holds an index, from the root. A separate function from
    /// [`Finger::near`], so that random writes do not pay for the finger.
    #[inline(always)]
    pub(in crate::write) fn spot<'p, S: Search>(
        &self,
        search: S,
        index: Index,
        descent: &'p mut WriteDescent,
    ) -> Spot<'p> {
        let (place, slot, shared) = self.reach(search, index, descent);
        Spot { place, slot, start: place.start(slot), end: place.end_of(slot), shared }
    }
}
