//! Maps from ranges of keys to entries: the tree as a collection.
//!
//! [`RangeMap`] has one owner, like the maps of the standard library: reads take no guard.
//! [`SharedMap`] is read concurrently with a writer: its reads go through a [`View`], which is a
//! guard. Both take keys of any type that stands for an index ([`Key`]), and ranges in every form.
//! A call converts keys, and is one or two calls of the [`MapleTree`] inside.
//!
//! | module | has |
//! | --- | --- |
//! | `key` | keys, and ranges of keys as ranges of indices |
//! | `reads`, `writes` | the functions that both maps have |
//! | `iter` | iterators |
//! | `slot` | the contents of a key's place, and the ways to change them |
//! | `version` | the writer of a transaction |
//! | `set` | a set of keys, as ranges |
//! | `split` | a map that is divided in two, and two that become one |
//! | `shared` | the shared map |
//! | `collect` | the traits of collections: `FromIterator`, `Clone`, `PartialEq` and so on |
//! | `serde`, `rayon` | behind the features of these names |

mod collect;
mod iter;
mod key;
#[cfg(feature = "rayon")]
mod rayon;
mod reads;
#[cfg(feature = "serde")]
mod serde;
mod set;
mod shared;
mod slot;
mod split;
#[cfg(test)]
mod tests;
mod version;
mod writes;

#[cfg(feature = "rayon")]
pub use self::rayon::ParEntries;
pub use iter::{Changes, Entries, EntriesMut, Holes, IntoIter};
pub use key::Key;
pub use set::RangeSet;
pub use shared::{SharedMap, View};
pub use slot::{Free, Slot, Taken};
pub use version::Version;

use crate::Index;
use crate::alloc::{NodeAlloc, Nodes};
use crate::entry::{Entry, EntryMut};
use crate::error::{Error, Refused};
use crate::stats::Stats;
use crate::tree::MapleTree;
use core::marker::PhantomData;
use core::ops::{RangeBounds, RangeInclusive};
use grace::{Concurrent, Reclaim, Single};
use key::{indices, keys};
use reads::reads;
use writes::writes;

/// A map from ranges of keys to entries, with one owner.
///
/// A store overwrites what it overlaps and divides entries, like a brush. See [`Entry`] for what
/// can be stored, and [`SharedMap`] for readers concurrent with a writer.
///
/// ```
/// use maple::RangeMap;
/// let mut file = RangeMap::<u64, &'static &str>::new();
/// file.store(0..4096, &"header")?;
/// file.store(4096.., &"data")?;
/// file.erase_range(8192..12288)?; // divides the data
/// assert_eq!(file.lookup(5000), Some((4096..=8191, &"data")));
/// assert!(file.holes(..).eq([8192..=12287]));
/// for (range, part) in &file {
///     println!("{range:?}: {part}");
/// }
/// # Ok::<(), maple::Error>(())
/// ```
pub struct RangeMap<K, E: Entry, A: NodeAlloc = Nodes> {
    tree: MapleTree<E, Single, A>,
    /// Where the next cyclic allocation begins.
    next: Index,
    _key: PhantomData<fn(K) -> K>,
}

impl<K, E: Entry> RangeMap<K, E> {
    /// An empty map. Allocates nothing.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        RangeMap { tree: MapleTree::new(), next: 0, _key: PhantomData }
    }
}

impl<K: Key, E: Entry, A: NodeAlloc> RangeMap<K, E, A> {
    /// As [`new`](RangeMap::new), with nodes from `A`.
    pub fn new_in() -> Self {
        Self::from_tree(MapleTree::new_in())
    }

    pub(crate) fn from_tree(tree: MapleTree<E, Single, A>) -> Self {
        RangeMap { tree, next: 0, _key: PhantomData }
    }

    /// The guard of an only owner, which protects from nothing.
    const GUARD: &'static <Single as Reclaim>::Guard = &grace::SingleGuard::NEW;

    reads!(self => self.tree, Self::GUARD);
    writes!((&mut self), self => self.tree.get_mut());

    /// Removes the entry that holds `key`, and returns it with its range; `None` if the key is
    /// free.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]: an erase may change the form of a leaf.
    pub fn erase(&mut self, key: K) -> Result<Option<(RangeInclusive<K>, E)>, Error> {
        let erased = self.tree.get_mut().erase(key.to_index())?;
        Ok(erased.map(|(range, entry)| (keys(&range), owned(entry))))
    }

    /// Removes the lowest entry.
    ///
    /// # Panics
    /// If there is no memory, which only a change of a leaf's form needs.
    pub fn pop_first(&mut self) -> Option<(RangeInclusive<K>, E)> {
        let (range, _) = self.tree.first(Self::GUARD)?;
        self.pop(*range.start())
    }

    /// Removes the highest entry.
    ///
    /// # Panics
    /// As for [`pop_first`](RangeMap::pop_first).
    pub fn pop_last(&mut self) -> Option<(RangeInclusive<K>, E)> {
        let (range, _) = self.tree.last(Self::GUARD)?;
        self.pop(*range.start())
    }

    /// By an index, which is that of an entry even where the tree has entries outside the keys.
    fn pop(&mut self, index: Index) -> Option<(RangeInclusive<K>, E)> {
        let erased = self.tree.get_mut().erase(index).expect(NO_MEMORY);
        erased.map(|(range, entry)| (keys(&range), owned(entry)))
    }

    /// The entry at the lowest place that overlaps `range`. If there is none, stores what `make`
    /// returns over the range first.
    ///
    /// # Errors
    /// As for [`insert`](RangeMap::insert).
    #[allow(clippy::type_complexity)]
    pub fn get_or_insert_with(
        &mut self,
        range: impl RangeBounds<K>,
        make: impl FnOnce() -> E,
    ) -> Result<(RangeInclusive<K>, E::Ref<'_>), Refused<E>> {
        let range = indices(&range);
        let (found, _) = self.tree.get_mut().get_or_insert_with(range, make)?;
        let Some((range, entry)) = self.tree.lookup(Self::GUARD, *found.start()) else {
            unreachable!("found just now")
        };
        Ok((keys(&range), entry))
    }

    /// Stores `entry` at the next free key of `range` after the one of the last call, and begins
    /// anew at the end of the range. Returns the key.
    ///
    /// # Errors
    /// With the entry: [`Error::NoSpace`], [`Error::OutOfMemory`], [`Error::EmptyRange`].
    pub fn alloc_next(&mut self, range: impl RangeBounds<K>, entry: E) -> Result<K, Refused<E>> {
        let mut writer = self.tree.get_mut();
        let (index, _) = writer.alloc_cyclic(indices(&range), &mut self.next, entry)?;
        Ok(K::from_index(index))
    }

    /// The place of `key`: the entry that holds it, or the free range around it.
    pub fn slot(&mut self, key: K) -> Slot<'_, K, E, A> {
        Slot::of(self, key)
    }

    /// The value of the entry that holds `key`, to change in place.
    pub fn get_mut(&mut self, key: K) -> Option<&mut E::Value>
    where
        E: EntryMut,
    {
        self.tree.value_mut(key.to_index()).map(|(_, value)| value)
    }

    /// The values of all entries, to change in place.
    ///
    /// ```
    /// use maple::RangeMap;
    /// let mut map = RangeMap::<u32, Box<u64>>::new();
    /// map.store(0..10, Box::new(1))?;
    /// map.store(10..20, Box::new(2))?;
    /// for (range, value) in map.iter_mut() {
    ///     *value += u64::from(*range.start());
    /// }
    /// assert!(map.values().eq([&1, &12]));
    /// # Ok::<(), maple::Error>(())
    /// ```
    pub fn iter_mut(&mut self) -> EntriesMut<'_, K, E>
    where
        E: EntryMut,
    {
        self.range_mut(..)
    }

    /// The values of the entries that overlap `range`, to change in place, each with its whole
    /// range.
    pub fn range_mut(&mut self, range: impl RangeBounds<K>) -> EntriesMut<'_, K, E>
    where
        E: EntryMut,
    {
        // SAFETY: the map is borrowed mutably.
        unsafe { EntriesMut::new(self.tree.iter(Self::GUARD, indices(&range))) }
    }

    /// A map with the same entries. Constant time if entries are shared ([`Entry::SHARES`]):
    /// the maps then share nodes until one of them is written. Otherwise each entry is duplicated.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], or [`Error::Whole`] for entries without duplicates.
    pub fn duplicate(&self) -> Result<Self, Error> {
        Ok(RangeMap { tree: self.tree.duplicate_alone()?, next: self.next, _key: PhantomData })
    }

    /// The ranges in which this map and `after` differ, with both entries: see
    /// [`MapleTree::diff`]. The time is that of the changes between a map and its duplicate, not of
    /// their size.
    ///
    /// ```
    /// use maple::RangeMap;
    /// let mut map = RangeMap::<u32, char>::new();
    /// map.store(0..100, 'a')?;
    /// let before = map.duplicate()?;
    /// map.store(10..20, 'b')?;
    /// assert!(before.diff(&map).eq([(10..=19, Some('a'), Some('b'))]));
    /// # Ok::<(), maple::Error>(())
    /// ```
    pub fn diff<'m, B: NodeAlloc>(&'m self, after: &'m RangeMap<K, E, B>) -> Changes<'m, K, E> {
        Changes::new(self.tree.diff(&after.tree))
    }

    /// A map from entries in order of their ranges, which do not overlap. Time: about that of
    /// appending to an array.
    ///
    /// # Errors
    /// [`Error::Occupied`] with the first entry that overlaps an earlier one,
    /// [`Error::EmptyRange`], [`Error::OutOfMemory`].
    pub fn from_sorted<Q: RangeBounds<K>>(
        entries: impl IntoIterator<Item = (Q, E)>,
    ) -> Result<Self, Refused<E>> {
        let mut map = Self::new_in();
        let mut writer = map.tree.get_mut();
        for (range, entry) in entries {
            writer.insert_range(indices(&range), entry)?;
        }
        drop(writer);
        Ok(map)
    }

    /// The tree inside, for what a map does not have.
    pub fn tree(&self) -> &MapleTree<E, Single, A> {
        &self.tree
    }

    /// As [`tree`](RangeMap::tree), to write to it. Entries belong at indices of keys: elsewhere,
    /// the map's functions return them at wrong keys.
    pub fn tree_mut(&mut self) -> &mut MapleTree<E, Single, A> {
        &mut self.tree
    }

    /// Turns the map into one that can be shared. Constant time.
    pub fn into_shared<R: Concurrent>(self) -> SharedMap<K, E, R, A> {
        SharedMap::from_tree(self.tree.into_shared())
    }
}

const NO_MEMORY: &str = "no memory to erase an entry";

/// The entry that an only owner erased.
fn owned<E: Entry>(erased: crate::Erased<E, Single>) -> E {
    match erased.into_inner() {
        Ok(entry) => entry,
        Err(_) => unreachable!("an only owner has no readers"),
    }
}
