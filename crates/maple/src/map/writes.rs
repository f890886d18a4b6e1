//! The writes of both kinds of maps.

/// The functions that write: `$writer` is an expression for a writer.
macro_rules! writes {
    (($($access:tt)*), $self:ident => $writer:expr) => {
        /// Stores `entry` over `range`. Entries that it overlaps are removed or cut off; an entry
        /// that extends beyond both ends is divided, for which it is duplicated.
        ///
        /// # Errors
        /// With the entry: [`Error::EmptyRange`], [`Error::OutOfMemory`], or [`Error::Whole`] if an
        /// [`Owned`](crate::Owned) would be divided. The map is as it was.
        pub fn store($($access)*, range: impl RangeBounds<K>, entry: E) -> Result<(), Refused<E>> {
            $writer.store_range(indices(&range), entry)
        }

        /// Stores `entry` over `range` if it is free.
        ///
        /// # Errors
        /// With the entry: [`Error::Occupied`] with the indices of the lowest entry in the way,
        /// [`Error::EmptyRange`], [`Error::OutOfMemory`].
        pub fn insert($($access)*, range: impl RangeBounds<K>, entry: E) -> Result<(), Refused<E>> {
            $writer.insert_range(indices(&range), entry)
        }

        /// Stores `entry` over `range` and over the entries that touch it and for which `same`
        /// returns true: see [`Writer::store_merged`](crate::Writer::store_merged). Returns the
        /// stored range.
        ///
        /// # Errors
        /// As for `store`.
        pub fn store_merged(
            $($access)*,
            range: impl RangeBounds<K>,
            entry: E,
            mut same: impl FnMut(E::Ref<'_>) -> bool,
        ) -> Result<RangeInclusive<K>, Refused<E>> {
            let (first, last) = indices(&range).into_inner();
            // An index outside the keys is no entry's: all stores are inside `MIN` and `MAX`.
            let stored = $writer.store_merged(first..=last, entry, |entry| same(entry));
            stored.map(|range| keys(&range))
        }

        /// Replaces the entry that holds `key` by what `f` makes of it. Returns its range; `None`
        /// if the key is free.
        ///
        /// # Errors
        /// [`Error::OutOfMemory`], with the new entry. The old one is still in place.
        pub fn update(
            $($access)*,
            key: K,
            f: impl FnOnce(E::Ref<'_>) -> E,
        ) -> Result<Option<RangeInclusive<K>>, Refused<E>> {
            Ok($writer.update(key.to_index(), |entry| f(entry))?.map(|range| keys(&range)))
        }

        /// Moves the last key of the entry that holds `key` to `end`: see
        /// [`Writer::set_end`](crate::Writer::set_end). Returns the new range.
        ///
        /// # Errors
        /// [`Error::Occupied`], [`Error::EmptyRange`] if the entry begins after `end`, or
        /// [`Error::OutOfMemory`].
        pub fn set_end($($access)*, key: K, end: K) -> Result<Option<RangeInclusive<K>>, Error> {
            let range = $writer.set_end(key.to_index(), end.to_index())?;
            Ok(range.map(|range| keys(&range)))
        }

        /// Makes all of `range` free. Entries that extend beyond it keep the rest.
        ///
        /// # Errors
        /// [`Error::EmptyRange`], [`Error::OutOfMemory`], [`Error::Whole`].
        pub fn erase_range($($access)*, range: impl RangeBounds<K>) -> Result<(), Error> {
            $writer.erase_range(indices(&range))
        }

        /// Erases the entries for which `keep` returns false. Returns how many.
        ///
        /// # Errors
        /// [`Error::OutOfMemory`]; the entries up to that one have been treated.
        pub fn retain(
            $($access)*,
            mut keep: impl FnMut(RangeInclusive<K>, E::Ref<'_>) -> bool,
        ) -> Result<usize, Error> {
            $writer.retain(indices::<K>(&..), |range, entry| keep(keys(&range), entry))
        }

        /// Finds a free place as `find_free` does, stores `entry` over these `size` keys, and
        /// returns the first of them.
        ///
        /// # Errors
        /// With the entry: [`Error::NoSpace`], [`Error::OutOfMemory`], or the arguments are bad.
        pub fn alloc(
            $($access)*,
            range: impl RangeBounds<K>,
            size: $crate::Index,
            align: $crate::Index,
            entry: E,
        ) -> Result<K, Refused<E>> {
            $writer.alloc_range(indices(&range), size, align, entry).map(K::from_index)
        }

        /// As `alloc`, but at the highest place.
        ///
        /// # Errors
        /// As for `alloc`.
        pub fn alloc_last(
            $($access)*,
            range: impl RangeBounds<K>,
            size: $crate::Index,
            align: $crate::Index,
            entry: E,
        ) -> Result<K, Refused<E>> {
            $writer.alloc_rrange(indices(&range), size, align, entry).map(K::from_index)
        }

        /// As `alloc`, for an entry that contains its own place: `make` gets the first key. Readers
        /// never see the entry without it.
        ///
        /// # Errors
        /// As for `alloc`, but without the entry.
        ///
        /// # Misuse
        /// `make` runs under the lock, between the search and the store. If it panics, the map is
        /// as it was. It may read the map, and must not write it: a second writer waits for the
        /// lock.
        pub fn alloc_with(
            $($access)*,
            range: impl RangeBounds<K>,
            size: $crate::Index,
            align: $crate::Index,
            make: impl FnOnce(K) -> E,
        ) -> Result<K, Error> {
            let make = |index| make(K::from_index(index));
            let place = $writer.alloc_range_with(indices(&range), size, align, make);
            place.map(K::from_index)
        }

        /// As `alloc_with`, but at the highest place.
        ///
        /// # Errors
        /// As for `alloc_with`.
        pub fn alloc_last_with(
            $($access)*,
            range: impl RangeBounds<K>,
            size: $crate::Index,
            align: $crate::Index,
            make: impl FnOnce(K) -> E,
        ) -> Result<K, Error> {
            let make = |index| make(K::from_index(index));
            let place = $writer.alloc_rrange_with(indices(&range), size, align, make);
            place.map(K::from_index)
        }

        /// Removes all entries. Cannot fail.
        pub fn clear($($access)*) {
            $writer.clear();
        }
    };
}

pub(super) use writes;
