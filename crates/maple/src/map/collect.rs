//! The traits of collections.
//!
//! Some of them cannot return errors. They panic where the functions named at each would return
//! one, as the collections of the standard library do when memory runs out.

use super::RangeMap;
use super::iter::{Entries, IntoIter};
use super::key::Key;
use crate::alloc::NodeAlloc;
use crate::entry::{Entry, EntryMut};
use core::fmt;
use core::ops::{Index, RangeBounds};

impl<K: Key, E: Entry, A: NodeAlloc> Default for RangeMap<K, E, A> {
    fn default() -> Self {
        Self::new_in()
    }
}

impl<K: Key + fmt::Debug, E: Entry, A: NodeAlloc> fmt::Debug for RangeMap<K, E, A>
where
    for<'g> E::Ref<'g>: fmt::Debug,
{
    /// Shows the entries.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl<K: Key, E: Entry, A: NodeAlloc> Clone for RangeMap<K, E, A> {
    /// [`RangeMap::duplicate`].
    ///
    /// # Panics
    /// If that fails: without memory, or with [`Owned`](crate::Owned) entries.
    fn clone(&self) -> Self {
        self.duplicate().expect("a map that can be cloned")
    }
}

impl<K: Key + PartialEq, E: Entry, A: NodeAlloc> PartialEq for RangeMap<K, E, A>
where
    for<'g> E::Ref<'g>: PartialEq,
{
    /// Whether both have the same ranges with equal entries.
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<K: Key + Eq, E: Entry, A: NodeAlloc> Eq for RangeMap<K, E, A> where for<'g> E::Ref<'g>: Eq {}

impl<K: Key, E: EntryMut, A: NodeAlloc> Index<K> for RangeMap<K, E, A>
where
    E: for<'g> Entry<Ref<'g> = &'g <E as EntryMut>::Value>,
    E::Value: 'static,
{
    type Output = E::Value;

    /// # Panics
    /// If the key is free.
    fn index(&self, key: K) -> &E::Value {
        self.get(key).expect("the key is free")
    }
}

impl<K: Key, E: Entry, A: NodeAlloc, Q: RangeBounds<K>> Extend<(Q, E)> for RangeMap<K, E, A> {
    /// [`RangeMap::store`] of each: later ones overwrite earlier ones.
    ///
    /// # Panics
    /// If a store fails.
    fn extend<I: IntoIterator<Item = (Q, E)>>(&mut self, entries: I) {
        let mut writer = self.tree.get_mut();
        for (range, entry) in entries {
            writer.store_range(super::indices(&range), entry).expect("a range that can be stored");
        }
    }
}

impl<K: Key, E: Entry, A: NodeAlloc, Q: RangeBounds<K>> FromIterator<(Q, E)> for RangeMap<K, E, A> {
    /// As [`Extend`]. See [`RangeMap::from_sorted`] for entries that must not overlap, and for
    /// errors.
    ///
    /// # Panics
    /// If a store fails.
    fn from_iter<I: IntoIterator<Item = (Q, E)>>(entries: I) -> Self {
        let mut map = Self::new_in();
        map.extend(entries);
        map
    }
}

impl<K: Key, E: Entry, A: NodeAlloc> IntoIterator for RangeMap<K, E, A> {
    type Item = (core::ops::RangeInclusive<K>, E);
    type IntoIter = IntoIter<K, E, A>;

    fn into_iter(self) -> IntoIter<K, E, A> {
        IntoIter(self)
    }
}

impl<'m, K: Key, E: Entry, A: NodeAlloc> IntoIterator for &'m RangeMap<K, E, A> {
    type Item = <Entries<'m, K, E> as Iterator>::Item;
    type IntoIter = Entries<'m, K, E>;

    fn into_iter(self) -> Entries<'m, K, E> {
        self.iter()
    }
}
