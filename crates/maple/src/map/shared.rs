//! The map that is read concurrently with a writer.

use super::key::{Key, indices, keys};
use super::reads::reads;
use super::writes::writes;
use super::{Entries, Holes, RangeMap, Version};
use crate::alloc::{NodeAlloc, Nodes};
use crate::entry::Entry;
use crate::erased::Erased;
use crate::error::{Error, Refused};
use crate::stats::Stats;
use crate::tree::MapleTree;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{RangeBounds, RangeInclusive};
use grace::Concurrent;

#[cfg(feature = "std")]
type Engine = grace::Epoch;

/// A map from ranges of keys to entries that many threads read while one writes.
///
/// A reader takes a [`View`], which never waits. A write takes the map's lock, and readers see it
/// whole or not at all. Functions that [`RangeMap`] has, too, have the same names.
///
/// A function that the caller gives to a write, such as that of `update` or `retain`, runs under
/// the map's lock. It may read through a view. A write to the same map from it deadlocks or panics.
///
/// ```
/// use maple::SharedMap;
/// use std::net::Ipv4Addr;
/// use std::sync::Arc;
///
/// let networks = SharedMap::<Ipv4Addr, Arc<str>>::new();
/// let net = |a: [u8; 4], b: [u8; 4]| Ipv4Addr::from(a)..=Ipv4Addr::from(b);
/// networks.store(net([10, 0, 0, 0], [10, 255, 255, 255]), "private".into())?;
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         let view = networks.view();
///         assert_eq!(view.get([10, 1, 2, 3].into()).as_deref(), Some("private"));
///     });
///     scope.spawn(|| networks.store(net([10, 9, 0, 0], [10, 9, 255, 255]), "lab".into()));
/// });
/// assert_eq!(networks.view().len(), 3);
/// # Ok::<(), maple::Error>(())
/// ```
#[cfg(feature = "std")]
pub struct SharedMap<K, E: Entry, R: Concurrent = Engine, A: NodeAlloc = Nodes> {
    tree: MapleTree<E, R, A>,
    _key: PhantomData<fn(K) -> K>,
}

/// A map from ranges of keys to entries that many CPUs read while one writes; see the feature `std`
/// for an example with threads.
#[cfg(not(feature = "std"))]
pub struct SharedMap<K, E: Entry, R: Concurrent, A: NodeAlloc = Nodes> {
    tree: MapleTree<E, R, A>,
    _key: PhantomData<fn(K) -> K>,
}

impl<K: Key, E: Entry, R: Concurrent> SharedMap<K, E, R> {
    /// An empty map. Allocates nothing.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        SharedMap { tree: MapleTree::new(), _key: PhantomData }
    }
}

impl<K: Key, E: Entry, R: Concurrent, A: NodeAlloc> SharedMap<K, E, R, A> {
    /// As [`new`](SharedMap::new), with nodes from `A`.
    pub fn new_in() -> Self {
        Self::from_tree(MapleTree::new_in())
    }

    pub(super) fn from_tree(tree: MapleTree<E, R, A>) -> Self {
        SharedMap { tree, _key: PhantomData }
    }

    writes!((&self), self => self.tree.lock());

    /// A view, to read. Cost: that of the engine's guard. References from a view borrow it, and
    /// nothing that it could see is freed before it is dropped: do not keep one for long.
    pub fn view(&self) -> View<'_, K, E, R, A> {
        View { guard: R::pin(), tree: &self.tree, _key: PhantomData }
    }

    /// Removes the entry that holds `key`, and returns it with its range; `None` if the key is
    /// free. Readers may hold a reference to it: see [`Erased`].
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    #[allow(clippy::type_complexity)]
    pub fn erase(&self, key: K) -> Result<Option<(RangeInclusive<K>, Erased<E, R>)>, Error> {
        let erased = self.tree.erase(key.to_index())?;
        Ok(erased.map(|(range, entry)| (keys(&range), entry)))
    }

    /// Stores `entry` at the next free key of `range` after the one of the last call, and begins
    /// anew at the end of the range. Returns the key.
    ///
    /// # Errors
    /// With the entry: [`Error::NoSpace`], [`Error::OutOfMemory`], [`Error::EmptyRange`].
    pub fn alloc_next(&self, range: impl RangeBounds<K>, entry: E) -> Result<K, Refused<E>> {
        self.tree.alloc_next(indices(&range), entry).map(K::from_index)
    }

    /// Several writes that readers see as one, or not at all after an error: see
    /// [`Writer::transaction`](crate::Writer::transaction).
    ///
    /// ```
    /// use maple::{Error, SharedMap};
    /// let map = SharedMap::<u16, char>::new();
    /// map.store(0..10, 'a')?;
    /// // Readers find 'a' at the old place or at the new one, never at both.
    /// map.transaction(|version| {
    ///     version.erase(5)?;
    ///     version.store(50..60, 'a').map_err(Error::from)
    /// })?;
    /// assert!(map.view().keys().eq([50..=59]));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// As there.
    pub fn transaction<T, X: From<Error>>(
        &self,
        f: impl FnOnce(&mut Version<'_, '_, K, E, R, A>) -> Result<T, X>,
    ) -> Result<T, X> {
        self.tree.lock().transaction(|writer| f(&mut Version::new(writer)))
    }

    /// A map with the same entries; see [`RangeMap::duplicate`](crate::RangeMap::duplicate).
    ///
    /// # Errors
    /// As there.
    pub fn duplicate(&self) -> Result<Self, Error> {
        Ok(Self::from_tree(self.tree.duplicate()?))
    }

    /// The map as it is now. Its owner reads it without a view, and may write it. See
    /// [`Writer::snapshot`](crate::Writer::snapshot); [`RangeMap::diff`] finds what has changed
    /// between two.
    ///
    /// ```
    /// use maple::SharedMap;
    /// let map = SharedMap::<u32, char>::new();
    /// map.store(0..100, 'a')?;
    /// let before = map.snapshot()?;
    /// map.erase_range(50..60)?;
    /// assert!(before.diff(&map.snapshot()?).eq([(50..=59, Some('a'), None)]));
    /// # Ok::<(), maple::Error>(())
    /// ```
    ///
    /// # Errors
    /// As there.
    pub fn snapshot(&self) -> Result<RangeMap<K, E, A>, Error> {
        Ok(RangeMap::from_tree(self.tree.lock().snapshot()?))
    }

    /// The tree inside, for what a map does not have.
    pub fn tree(&self) -> &MapleTree<E, R, A> {
        &self.tree
    }
}

/// A reader of a [`SharedMap`]: a guard, and the reads under it.
///
/// Each call sees every write whole or not at all. Two calls may see different states of the map.
pub struct View<'m, K, E: Entry, R: Concurrent, A: NodeAlloc> {
    guard: R::Guard,
    tree: &'m MapleTree<E, R, A>,
    _key: PhantomData<fn(K) -> K>,
}

impl<K: Key, E: Entry, R: Concurrent, A: NodeAlloc> View<'_, K, E, R, A> {
    reads!(self => self.tree, &self.guard);
}

impl<K: Key, E: Entry, R: Concurrent, A: NodeAlloc> Default for SharedMap<K, E, R, A> {
    fn default() -> Self {
        Self::new_in()
    }
}

impl<K: Key + fmt::Debug, E: Entry, R: Concurrent, A: NodeAlloc> fmt::Debug
    for SharedMap<K, E, R, A>
where
    for<'g> E::Ref<'g>: fmt::Debug,
{
    /// Shows the entries.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.view().fmt(f)
    }
}

impl<K: Key + fmt::Debug, E: Entry, R: Concurrent, A: NodeAlloc> fmt::Debug for View<'_, K, E, R, A>
where
    for<'g> E::Ref<'g>: fmt::Debug,
{
    /// Shows the entries.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
