//! The reads of a writer. They need no guard, because only the writer changes the tree.

use super::Writer;
use crate::Index;
use crate::alloc::NodeAlloc;
use crate::cursor::{Paused, Position, ReadCursor, WriteCursor};
use crate::descent;
use crate::dump::Dump;
use crate::entry::{Entry, Raw};
use crate::error::Error;
use crate::gap::largest;
use crate::iter::{Holes, Iter};
use crate::lock::{OwnerLock, WriteToken};
use crate::node::Link;
use crate::share::duplicate;
use crate::stats::Stats;
use crate::tree::MapleTree;
use crate::validate::{Violation, validate};
use core::ops::RangeInclusive;
use core::ptr::NonNull;
use grace::{Reclaim, Single};

impl<'t, E: Entry, R: Reclaim, A: NodeAlloc> Writer<'t, E, R, A> {
    /// The exact length of the longest free range; see [`MapleTree::largest_gap`]. Cost: one node.
    pub fn largest_gap(&self) -> Index {
        // SAFETY: we are the writer.
        unsafe { largest(self.root()) }
    }

    /// The entry at `index`.
    pub fn load(&self, index: Index) -> Option<E::Ref<'_>> {
        // SAFETY: we are the writer, and the reference borrows us.
        unsafe { self.core.load(index) }
    }

    /// The entry at `index`, with its whole range.
    pub fn lookup(&self, index: Index) -> Option<(RangeInclusive<Index>, E::Ref<'_>)> {
        // SAFETY: as for `load`.
        unsafe { self.core.lookup(index) }
    }

    /// The lowest entry that overlaps `bounds`; `None` also if the bounds are empty.
    pub fn find(
        &self,
        bounds: RangeInclusive<Index>,
    ) -> Option<(RangeInclusive<Index>, E::Ref<'_>)> {
        // SAFETY: as for `load`.
        unsafe { self.core.find(bounds) }
    }

    /// The highest entry that overlaps `bounds`; `None` also if the bounds are empty.
    pub fn find_rev(
        &self,
        bounds: RangeInclusive<Index>,
    ) -> Option<(RangeInclusive<Index>, E::Ref<'_>)> {
        // SAFETY: as for `load`.
        unsafe { self.core.find_rev(bounds) }
    }

    /// The entries that overlap `bounds`. The iterator is double-ended.
    pub fn iter(&self, bounds: RangeInclusive<Index>) -> Iter<'_, E> {
        // SAFETY: as for `load`.
        unsafe { Iter::new(self.root(), bounds) }
    }

    /// The entry with the lowest range.
    pub fn first(&self) -> Option<(RangeInclusive<Index>, E::Ref<'_>)> {
        self.find(0..=Index::MAX)
    }

    /// The entry with the highest range.
    pub fn last(&self) -> Option<(RangeInclusive<Index>, E::Ref<'_>)> {
        self.find_rev(0..=Index::MAX)
    }

    /// Whether an entry holds `index`.
    pub fn contains(&self, index: Index) -> bool {
        self.load(index).is_some()
    }

    /// The free ranges inside `bounds`, in order; those at the ends are cut off there.
    pub fn holes(&self, bounds: RangeInclusive<Index>) -> Holes<'_, E> {
        // SAFETY: as for `load`.
        Holes::new(
            unsafe { ReadCursor::new(&self.core.root, Position::new(*bounds.start())) },
            bounds,
        )
    }

    /// A cursor at `index`.
    pub fn cursor(&mut self, index: Index) -> WriteCursor<'_, 't, E, R, A> {
        WriteCursor::new(self, Position::new(index))
    }

    /// A cursor that continues from the position where another was paused.
    pub fn resume(&mut self, place: Paused) -> WriteCursor<'_, 't, E, R, A> {
        WriteCursor::new(self, place.position())
    }

    /// Whether there is no entry. Constant time.
    pub fn is_empty(&self) -> bool {
        self.root().is_null()
    }

    /// The number of levels from the root to the leaves; 0 when empty. Constant time.
    pub fn height(&self) -> usize {
        self.core.height()
    }

    /// The number of entries. Time: the number of nodes.
    pub fn len(&self) -> usize {
        self.stats().entries
    }

    /// The numbers of nodes, entries, holes and bytes. Time: the number of nodes.
    pub fn stats(&self) -> Stats {
        // SAFETY: we are the writer.
        unsafe { Stats::of(self.root()) }
    }

    /// A new tree with the same ranges and entries.
    ///
    /// If entries are shared pointers or plain values ([`Entry::SHARES`]), it shares the nodes.
    /// That takes constant time and allocates nothing; each tree copies a node when it first writes
    /// to it. Other entries are duplicated ([`Entry::try_dup`]); the time is the number of nodes
    /// and entries.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; the partial copy is freed.
    ///
    /// # Misuse
    /// A node counts at most 2^30 parents. Then a duplicate fails with [`Error::OutOfMemory`].
    pub fn duplicate(&self) -> Result<MapleTree<E, R, A>, Error> {
        let tree = MapleTree::from_root(self.duplicate_root()?);
        tree.core.set_wrapped(self.core.wrapped());
        Ok(tree)
    }

    /// As [`duplicate`](Writer::duplicate), but the new tree has one owner, and is read without a
    /// guard: the tree as it is now, whatever is written to this one later.
    ///
    /// The two trees may share nodes although this one has readers: it gives up a node only after
    /// their grace period, and neither tree changes a node that both have.
    ///
    /// ```
    /// use maple::{Epoch, MapleTree};
    /// let tree = MapleTree::<u32, Epoch>::new();
    /// tree.store_range(0..=9, 1)?;
    /// let mut then = tree.lock().snapshot()?;
    /// tree.store_range(5..=9, 2)?;
    /// assert_eq!(then.get_mut().load(7), Some(1));
    /// # Ok::<(), maple::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`duplicate`](Writer::duplicate).
    pub fn snapshot(&self) -> Result<MapleTree<E, Single, A>, Error> {
        Ok(MapleTree::from_root(self.duplicate_root()?))
    }

    /// The word of a duplicate of the entry at an index, which there is.
    pub(crate) fn duplicate_word(&self, index: Index) -> Result<Raw, Error> {
        // SAFETY: we are the writer.
        let span = unsafe { descent::lookup(self.root(), index) };
        let raw = NonNull::new(span.word).ok_or(Error::NoSpace)?;
        // SAFETY: the entry is in the tree.
        unsafe { E::try_dup(raw) }
    }

    /// The root of a duplicate.
    pub(crate) fn duplicate_root(&self) -> Result<Link, Error> {
        // From now on the nodes may be shared.
        self.finger.forget();
        // SAFETY: we are the writer.
        unsafe { duplicate::<E, R, A>(self.root()) }
    }

    /// As [`duplicate`](Writer::duplicate), but the new tree is written with a token; see
    /// [`OwnerLock`].
    ///
    /// # Errors
    /// As for [`duplicate`](Writer::duplicate).
    #[allow(clippy::type_complexity)]
    pub fn duplicate_with_token(
        &self,
    ) -> Result<(MapleTree<E, R, A, OwnerLock>, WriteToken), Error> {
        let (tree, token) = MapleTree::from_root_with_token(self.duplicate_root()?);
        tree.core.set_wrapped(self.core.wrapped());
        Ok((tree, token))
    }

    /// Checks every structural invariant; see [`Violation`]. Time: the number of slots.
    ///
    /// # Errors
    /// The first violation found.
    pub fn validate(&self) -> Result<(), Violation> {
        // SAFETY: we are the writer.
        unsafe { validate(self.root()) }
    }

    /// The tree in readable form, node by node.
    pub fn dump(&self) -> Dump<'_> {
        // SAFETY: we are the writer, and the dump borrows us.
        unsafe { Dump::new(self.root()) }
    }
}
