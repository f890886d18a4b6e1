//! The reads of both kinds of maps.

/// The functions that read: `$tree` and `$guard` are expressions for the tree and a guard of it.
macro_rules! reads {
    ($self:ident => $tree:expr, $guard:expr) => {
        /// The number of entries. Time: the number of nodes, a fourteenth of it.
        pub fn len(&$self) -> usize {
            $tree.len($guard)
        }

        /// Whether there is no entry. Constant time.
        pub fn is_empty(&$self) -> bool {
            $tree.is_empty()
        }

        /// Whether an entry holds `key`.
        #[inline]
        pub fn contains(&$self, key: K) -> bool {
            $tree.contains($guard, key.to_index())
        }

        /// The entry that holds `key`.
        #[inline]
        pub fn get(&$self, key: K) -> Option<E::Ref<'_>> {
            $tree.load($guard, key.to_index())
        }

        /// The entry that holds `key`, with its whole range.
        #[inline]
        pub fn lookup(&$self, key: K) -> Option<(RangeInclusive<K>, E::Ref<'_>)> {
            $tree.lookup($guard, key.to_index()).map(|(range, entry)| (keys(&range), entry))
        }

        /// The entry with the lowest range.
        pub fn first(&$self) -> Option<(RangeInclusive<K>, E::Ref<'_>)> {
            let found = $tree.first($guard);
            found.map(|(range, entry)| (keys(&range), entry))
        }

        /// The entry with the highest range.
        pub fn last(&$self) -> Option<(RangeInclusive<K>, E::Ref<'_>)> {
            let found = $tree.last($guard);
            found.map(|(range, entry)| (keys(&range), entry))
        }

        /// All entries, in order.
        pub fn iter(&$self) -> Entries<'_, K, E> {
            $self.range(..)
        }

        /// The entries that overlap `range`, each with its whole range, in order.
        pub fn range(&$self, range: impl RangeBounds<K>) -> Entries<'_, K, E> {
            Entries::new($tree.iter($guard, indices(&range)))
        }

        /// The ranges of all entries, in order and from both ends.
        pub fn keys(&$self) -> impl DoubleEndedIterator<Item = RangeInclusive<K>> + '_ {
            $self.iter().map(|(range, _)| range)
        }

        /// All entries without their ranges, in order and from both ends.
        pub fn values(&$self) -> impl DoubleEndedIterator<Item = E::Ref<'_>> + '_ {
            $self.iter().map(|(_, entry)| entry)
        }

        /// The free ranges inside `range`, in order.
        pub fn holes(&$self, range: impl RangeBounds<K>) -> Holes<'_, K, E> {
            Holes::new($tree.holes($guard, indices(&range)))
        }

        /// The first key of the lowest `size` free keys inside `range` that begin at a multiple of
        /// `align`, counted in indices: see [`MapleTree::empty_area`].
        ///
        /// # Errors
        /// [`Error::NoSpace`], or the arguments are bad.
        pub fn find_free(
            &$self,
            range: impl RangeBounds<K>,
            size: $crate::Index,
            align: $crate::Index,
        ) -> Result<K, Error> {
            $tree.empty_area($guard, indices(&range), size, align).map(K::from_index)
        }

        /// As `find_free`, but the highest place.
        ///
        /// # Errors
        /// As for `find_free`.
        pub fn find_free_last(
            &$self,
            range: impl RangeBounds<K>,
            size: $crate::Index,
            align: $crate::Index,
        ) -> Result<K, Error> {
            $tree.empty_area_rev($guard, indices(&range), size, align).map(K::from_index)
        }

        /// As `find_free`, but in the shortest free range that has such a place (best fit); of
        /// several, in the lowest. Time: the number of ranges inside `range`, free or not.
        ///
        /// # Errors
        /// As for `find_free`.
        pub fn find_free_best(
            &$self,
            range: impl RangeBounds<K>,
            size: $crate::Index,
            align: $crate::Index,
        ) -> Result<K, Error> {
            // It checks the arguments, and finds a place if there is one.
            let bounds = indices(&range);
            $tree.empty_area($guard, bounds.clone(), size, align)?;
            let fits = |hole: RangeInclusive<$crate::Index>| {
                let first = hole.start().checked_next_multiple_of(align)?;
                let last = first.checked_add(size - 1)?;
                (last <= *hole.end()).then_some((hole.end() - hole.start(), first))
            };
            let best = $tree.holes($guard, bounds).filter_map(fits).min();
            best.map(|(_, first)| K::from_index(first)).ok_or(Error::NoSpace)
        }

        /// The numbers of nodes, entries, holes and bytes. Time: the number of nodes.
        pub fn stats(&$self) -> Stats {
            $tree.stats($guard)
        }
    };
}

pub(super) use reads;
