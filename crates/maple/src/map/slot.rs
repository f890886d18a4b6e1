//! The place of a key in a map, taken or free, and the ways to change it.

use super::key::{Key, indices, keys};
use super::{RangeMap, owned};
use crate::Index;
use crate::alloc::NodeAlloc;
use crate::entry::{Entry, EntryMut};
use crate::error::{Error, Refused};
use core::fmt;
use core::ops::{RangeBounds, RangeInclusive};

/// The place of a key; made by [`RangeMap::slot`].
///
/// ```
/// use maple::{RangeMap, Slot};
/// let mut ids = RangeMap::<u32, char>::new();
/// ids.store(10..20, 'a')?;
/// match ids.slot(25) {
///     Slot::Free(free) => {
///         assert_eq!(free.range(), 20..=u32::MAX);
///         free.store(25..30, 'b')?;
///     }
///     Slot::Taken(_) => unreachable!(),
/// }
/// if let Slot::Taken(taken) = ids.slot(12) {
///     assert_eq!((taken.range(), taken.get()), (10..=19, 'a'));
///     taken.replace('c')?;
/// }
/// assert_eq!(ids.get(19), Some('c'));
/// # Ok::<(), maple::Error>(())
/// ```
pub enum Slot<'m, K: Key, E: Entry, A: NodeAlloc> {
    /// An entry holds the key.
    Taken(Taken<'m, K, E, A>),
    /// The key is free.
    Free(Free<'m, K, E, A>),
}

/// The entry that holds a key.
pub struct Taken<'m, K: Key, E: Entry, A: NodeAlloc> {
    map: &'m mut RangeMap<K, E, A>,
    range: RangeInclusive<Index>,
}

/// The free range around a key.
pub struct Free<'m, K: Key, E: Entry, A: NodeAlloc> {
    map: &'m mut RangeMap<K, E, A>,
    range: RangeInclusive<Index>,
}

impl<'m, K: Key, E: Entry, A: NodeAlloc> Slot<'m, K, E, A> {
    pub(super) fn of(map: &'m mut RangeMap<K, E, A>, key: K) -> Self {
        let guard = RangeMap::<K, E, A>::GUARD;
        let mut cursor = map.tree.cursor(guard, key.to_index());
        let taken = cursor.walk().is_some();
        let (first, last) = cursor.range().into_inner();
        if taken {
            return Slot::Taken(Taken { map, range: first..=last });
        }
        let range = first.max(K::MIN.to_index())..=last.min(K::MAX.to_index());
        Slot::Free(Free { map, range })
    }
}

impl<'m, K: Key, E: Entry, A: NodeAlloc> Taken<'m, K, E, A> {
    /// The entry's range.
    pub fn range(&self) -> RangeInclusive<K> {
        keys(&self.range)
    }

    /// The entry.
    pub fn get(&self) -> E::Ref<'_> {
        let guard = RangeMap::<K, E, A>::GUARD;
        match self.map.tree.load(guard, *self.range.start()) {
            Some(entry) => entry,
            None => unreachable!("the map is ours, and the entry in it"),
        }
    }

    /// The value of the entry, to change in place.
    pub fn into_mut(self) -> &'m mut E::Value
    where
        E: EntryMut,
    {
        match self.map.tree.value_mut(*self.range.start()) {
            Some((_, value)) => value,
            None => unreachable!("the map is ours, and the entry in it"),
        }
    }

    /// Stores another entry over the same range.
    ///
    /// # Errors
    /// As for [`RangeMap::store`].
    pub fn replace(self, entry: E) -> Result<(), Refused<E>> {
        self.map.tree.get_mut().store_range(self.range, entry)
    }

    /// Removes the entry.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn remove(self) -> Result<E, Error> {
        match self.map.tree.get_mut().erase(*self.range.start())? {
            Some((_, entry)) => Ok(owned(entry)),
            None => unreachable!("the map is ours, and the entry in it"),
        }
    }
}

impl<K: Key, E: Entry, A: NodeAlloc> Free<'_, K, E, A> {
    /// The whole free range.
    pub fn range(&self) -> RangeInclusive<K> {
        keys(&self.range)
    }

    /// Stores an entry over a part of the free range.
    ///
    /// # Errors
    /// As for [`RangeMap::insert`]; so the range may not reach beyond the free one.
    pub fn store(self, range: impl RangeBounds<K>, entry: E) -> Result<(), Refused<E>> {
        self.map.tree.get_mut().insert_range(indices(&range), entry)
    }
}

/// The range and the entry, or the free range.
impl<K: Key + fmt::Debug, E: Entry, A: NodeAlloc> fmt::Debug for Slot<'_, K, E, A>
where
    for<'g> E::Ref<'g>: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Slot::Taken(taken) => taken.fmt(f),
            Slot::Free(free) => free.fmt(f),
        }
    }
}

impl<K: Key + fmt::Debug, E: Entry, A: NodeAlloc> fmt::Debug for Taken<'_, K, E, A>
where
    for<'g> E::Ref<'g>: fmt::Debug,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Taken").field(&self.range()).field(&self.get()).finish()
    }
}

impl<K: Key + fmt::Debug, E: Entry, A: NodeAlloc> fmt::Debug for Free<'_, K, E, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Free").field(&self.range()).finish()
    }
}
