//! A set of keys, as ranges.

use super::key::{Key, keys};
use super::{RangeMap, indices};
use crate::Index;
use crate::alloc::{NodeAlloc, Nodes};
use crate::error::Error;
use core::fmt;
use core::ops::{RangeBounds, RangeInclusive};

/// A set of keys that is kept as ranges, with one owner: free blocks, addresses that are in use,
/// lines that are covered. Ranges that touch are one range.
///
/// ```
/// use maple::RangeSet;
/// let mut free = RangeSet::<u32>::new();
/// free.insert(0..100)?;
/// free.remove(10..20)?;
/// free.insert(10..15)?;
/// assert!(free.iter().eq([0..=14, 20..=99]));
/// assert!(free.contains(12) && !free.contains(15));
/// # Ok::<(), maple::Error>(())
/// ```
pub struct RangeSet<K, A: NodeAlloc = Nodes>(RangeMap<K, (), A>);

impl<K> RangeSet<K> {
    /// An empty set. Allocates nothing.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        RangeSet(RangeMap::new())
    }
}

impl<K: Key, A: NodeAlloc> RangeSet<K, A> {
    /// As [`new`](RangeSet::new), with nodes from `A`.
    pub fn new_in() -> Self {
        RangeSet(RangeMap::new_in())
    }

    /// Adds the keys of a range. Returns the range that they are part of now. Cost: one write.
    ///
    /// # Errors
    /// [`Error::EmptyRange`], [`Error::OutOfMemory`]. The set is as it was.
    pub fn insert(&mut self, range: impl RangeBounds<K>) -> Result<RangeInclusive<K>, Error> {
        Ok(self.0.store_merged(range, (), |()| true)?)
    }

    /// Removes the keys of a range. Cost: one write.
    ///
    /// # Errors
    /// As for [`insert`](RangeSet::insert).
    pub fn remove(&mut self, range: impl RangeBounds<K>) -> Result<(), Error> {
        self.0.erase_range(range)
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Whether a key is in the set.
    pub fn contains(&self, key: K) -> bool {
        self.0.contains(key)
    }

    /// Whether all keys of a range are in the set; false for an empty range.
    pub fn contains_all(&self, range: impl RangeBounds<K>) -> bool {
        let range = indices(&range);
        let held = self.0.lookup_index(*range.start());
        !range.is_empty() && held.is_some_and(|held| held.end() >= range.end())
    }

    /// Whether the set has a key of a range.
    pub fn overlaps(&self, range: impl RangeBounds<K>) -> bool {
        self.0.range(range).next().is_some()
    }

    /// The whole range of keys in the set around a key; `None` if the key is not in the set.
    pub fn lookup(&self, key: K) -> Option<RangeInclusive<K>> {
        self.0.lookup_index(key.to_index()).map(|range| keys(&range))
    }

    /// The ranges of keys in the set, in order and from both ends.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = RangeInclusive<K>> + '_ {
        self.0.keys()
    }

    /// The ranges that overlap `range`, each as a whole.
    pub fn range(
        &self,
        range: impl RangeBounds<K>,
    ) -> impl DoubleEndedIterator<Item = RangeInclusive<K>> + '_ {
        self.0.range(range).map(|(range, ())| range)
    }

    /// The ranges of keys inside `range` that are not in the set, in order.
    pub fn gaps(&self, range: impl RangeBounds<K>) -> super::Holes<'_, K, ()> {
        self.0.holes(range)
    }

    /// The number of ranges. Time: the number of nodes.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no key is in the set. Constant time.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The map inside, for what a set does not have: searches for free places, statistics.
    pub fn map(&self) -> &RangeMap<K, (), A> {
        &self.0
    }
}

impl<K: Key, A: NodeAlloc> RangeMap<K, (), A> {
    fn lookup_index(&self, index: Index) -> Option<RangeInclusive<Index>> {
        self.tree.lookup(Self::GUARD, index).map(|(range, ())| range)
    }
}

impl<K: Key, A: NodeAlloc> Default for RangeSet<K, A> {
    fn default() -> Self {
        Self::new_in()
    }
}

impl<K: Key, A: NodeAlloc> Clone for RangeSet<K, A> {
    /// Constant time: the sets share nodes until one of them is written.
    fn clone(&self) -> Self {
        RangeSet(self.0.clone())
    }
}

impl<K: Key + PartialEq, A: NodeAlloc> PartialEq for RangeSet<K, A> {
    /// Whether both have the same keys. Time: that of what they do not share.
    fn eq(&self, other: &Self) -> bool {
        self.0.diff(&other.0).next().is_none()
    }
}

impl<K: Key + Eq, A: NodeAlloc> Eq for RangeSet<K, A> {}

impl<K: Key + fmt::Debug, A: NodeAlloc> fmt::Debug for RangeSet<K, A> {
    /// Shows the ranges.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl<K: Key, A: NodeAlloc, Q: RangeBounds<K>> Extend<Q> for RangeSet<K, A> {
    /// [`RangeSet::insert`] of each.
    ///
    /// # Panics
    /// If one fails.
    fn extend<I: IntoIterator<Item = Q>>(&mut self, ranges: I) {
        for range in ranges {
            self.insert(range).expect("a range that can be inserted");
        }
    }
}

impl<K: Key, A: NodeAlloc, Q: RangeBounds<K>> FromIterator<Q> for RangeSet<K, A> {
    /// As [`Extend`].
    ///
    /// # Panics
    /// If an insertion fails.
    fn from_iter<I: IntoIterator<Item = Q>>(ranges: I) -> Self {
        let mut set = Self::new_in();
        set.extend(ranges);
        set
    }
}
