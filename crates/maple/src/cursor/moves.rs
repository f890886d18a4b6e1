//! The moves that both cursors have, as methods of each.
//!
//! A method reads nodes from `self.root()`, and returns references for `$life`. Each is sound: a
//! reader's guard lives for `$life`, and a reference from a writer's cursor borrows the cursor, so
//! no write comes between.

/// Defines the moves of a cursor with a field `at` and a function `root`, over entries `E`.
macro_rules! moves {
    ($life:lifetime) => {
        /// The state of the cursor.
        pub fn state(&self) -> State {
            self.at.state()
        }

        /// The range that the cursor is on. In `Start`, `Overflow` and `Underflow` it is one index.
        pub fn range(&self) -> RangeInclusive<Index> {
            let (min, max) = self.at.range();
            min..=max
        }

        /// Moves to `index`. The new state is `Start`.
        pub fn set(&mut self, index: Index) {
            self.at.set(index);
        }

        /// Sets the state to `Start` at the current index.
        pub fn reset(&mut self) {
            self.at.set(self.at.range().0);
        }

        /// Reads the range that holds the cursor's index. Returns its entry, or `None` for a hole.
        /// The new state is `Active`.
        pub fn walk(&mut self) -> Option<E::Ref<$life>> {
            // SAFETY: as the module says.
            unsafe { hit::<E>(self.at.walk(self.root())) }.map(|(_, entry)| entry)
        }

        /// The next entry that begins at or before `limit`. From `Start`, it is after the range at
        /// the index.
        #[inline]
        pub fn next(&mut self, limit: Index) -> Option<(RangeInclusive<Index>, E::Ref<$life>)> {
            let Span { min, max, word } = match self.at.step(limit) {
                Some(span) => span,
                // SAFETY: as the module says.
                None => unsafe { self.at.next(self.root(), limit)? },
            };
            // SAFETY: as above; it is an entry.
            Some(unsafe { item::<E>(Span { min, max, word }) })
        }

        /// The previous entry that ends at or after `limit`. From `Start`, it is before the range
        /// at the index.
        #[inline]
        pub fn prev(&mut self, limit: Index) -> Option<(RangeInclusive<Index>, E::Ref<$life>)> {
            let Span { min, max, word } = match self.at.step_back(limit) {
                Some(span) => span,
                // SAFETY: as the module says.
                None => unsafe { self.at.prev(self.root(), limit)? },
            };
            // SAFETY: as above; it is an entry.
            Some(unsafe { item::<E>(Span { min, max, word }) })
        }

        /// The next entry that begins at or before `limit`. From `Start`, it may be the one at the
        /// index.
        #[inline]
        pub fn find(&mut self, limit: Index) -> Option<(RangeInclusive<Index>, E::Ref<$life>)> {
            let Span { min, max, word } = match self.at.step(limit) {
                Some(span) => span,
                // SAFETY: as the module says.
                None => unsafe { self.at.find(self.root(), limit)? },
            };
            // SAFETY: as above; it is an entry.
            Some(unsafe { item::<E>(Span { min, max, word }) })
        }

        /// The previous entry that ends at or after `limit`. From `Start`, it may be the one at the
        /// index.
        #[inline]
        pub fn find_rev(&mut self, limit: Index) -> Option<(RangeInclusive<Index>, E::Ref<$life>)> {
            let Span { min, max, word } = match self.at.step_back(limit) {
                Some(span) => span,
                // SAFETY: as the module says.
                None => unsafe { self.at.find_rev(self.root(), limit)? },
            };
            // SAFETY: as above; it is an entry.
            Some(unsafe { item::<E>(Span { min, max, word }) })
        }

        /// The next range, entry or hole, that begins at or before `limit`. From `Start`, it is the
        /// one at the index.
        pub fn next_range(
            &mut self,
            limit: Index,
        ) -> Option<(RangeInclusive<Index>, Option<E::Ref<$life>>)> {
            // SAFETY: as the module says.
            let span = unsafe { self.at.next_range(self.root(), limit)? };
            // SAFETY: as above.
            Some((span.min..=span.max, unsafe { hit::<E>(span) }.map(|(_, entry)| entry)))
        }

        /// The previous range, entry or hole, that ends at or after `limit`. From `Start`, it is
        /// the one at the index.
        pub fn prev_range(
            &mut self,
            limit: Index,
        ) -> Option<(RangeInclusive<Index>, Option<E::Ref<$life>>)> {
            // SAFETY: as the module says.
            let span = unsafe { self.at.prev_range(self.root(), limit)? };
            // SAFETY: as above.
            Some((span.min..=span.max, unsafe { hit::<E>(span) }.map(|(_, entry)| entry)))
        }

        /// The first index of the lowest `size` free indices inside `bounds` that begin at a
        /// multiple of `align`. If alignment is hard to meet, the result may be a higher place: see
        /// [`Writer::empty_area`](crate::Writer::empty_area). The new state is `Active` on the
        /// hole, or `Nowhere`.
        ///
        /// For a [`ReadCursor`](crate::ReadCursor) with a concurrent writer, the range was free at
        /// some moment under the guard. A range that the writer frees at the same time may be
        /// missed.
        ///
        /// # Errors
        /// [`Error::NoSpace`]. Or the arguments are bad; then the cursor does not move.
        pub fn empty_area(
            &mut self,
            bounds: RangeInclusive<Index>,
            size: Index,
            align: Index,
        ) -> Result<Index, Error> {
            let want = Want::new(bounds, size, align)?;
            // SAFETY: as the module says.
            unsafe { self.at.empty_area(self.root(), want, End::Lowest) }
        }

        /// As [`empty_area`](Self::empty_area), but the highest place.
        ///
        /// # Errors
        /// As for [`empty_area`](Self::empty_area).
        pub fn empty_area_rev(
            &mut self,
            bounds: RangeInclusive<Index>,
            size: Index,
            align: Index,
        ) -> Result<Index, Error> {
            let want = Want::new(bounds, size, align)?;
            // SAFETY: as the module says.
            unsafe { self.at.empty_area(self.root(), want, End::Highest) }
        }
    };
}
pub(super) use moves;
