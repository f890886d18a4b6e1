//! The writer's cursor: moves, stores and erases.

use super::{Position, State};
use crate::Index;
use crate::descent::Span;
use crate::entry::Entry;
use crate::erased::Erased;
use crate::error::{Error, Refused};
use crate::gap::{End, Want};
use crate::iter::{hit, item};
use crate::node::Link;
use crate::writer::Writer;
use crate::{NodeAlloc, Paused};
use core::ops::RangeInclusive;
use grace::Reclaim;

/// A writer's position in a tree; made by [`Writer::cursor`].
///
/// Only its own writes change the tree, so what it shows is exact. To release the lock and continue
/// later, call [`pause`](WriteCursor::pause), drop the writer, and call [`Writer::resume`] on
/// another.
///
/// ```
/// use maple::{Index, MapleTree};
/// let mut tree = MapleTree::<u32>::new();
/// let mut writer = tree.get_mut();
/// let mut cursor = writer.cursor(0);
/// let start = cursor.empty_area(0x1000..=0xffff, 0x100, 0x100)?;
/// cursor.preallocate(start..=start + 0xff)?;
/// cursor.store(start..=start + 0xff, 1)?; // cannot fail now
/// assert_eq!(cursor.range(), 0x1000..=0x10ff);
/// assert_eq!(cursor.prev_range(0), Some((0..=0xfff, None)));
/// assert_eq!(cursor.next(Index::MAX), Some((0x1000..=0x10ff, 1)));
/// cursor.erase()?;
/// assert_eq!(cursor.range(), 0..=Index::MAX);
/// # Ok::<(), maple::Error>(())
/// ```
pub struct WriteCursor<'w, 't, E: Entry, R: Reclaim, A: NodeAlloc> {
    writer: &'w mut Writer<'t, E, R, A>,
    at: Position,
}

impl<'w, 't, E: Entry, R: Reclaim, A: NodeAlloc> WriteCursor<'w, 't, E, R, A> {
    pub(crate) fn new(writer: &'w mut Writer<'t, E, R, A>, at: Position) -> Self {
        WriteCursor { writer, at }
    }

    fn root(&self) -> Link {
        self.writer.root()
    }

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

    /// The position, to continue from with another writer. Preallocated memory stays with this
    /// writer.
    pub fn pause(self) -> Paused {
        Paused::of(self.at)
    }

    /// Reads the range that holds the cursor's index. Returns its entry, or `None` for a hole. The
    /// new state is `Active`.
    pub fn walk(&mut self) -> Option<E::Ref<'_>> {
        // SAFETY: we are the writer; the reference borrows the cursor, so no write comes between.
        unsafe { hit::<E>(self.at.walk(self.root())) }.map(|(_, entry)| entry)
    }

    /// The next entry that begins at or before `limit`. From `Start`, it is after the range at the
    /// index.
    #[inline]
    pub fn next(&mut self, limit: Index) -> Option<(RangeInclusive<Index>, E::Ref<'_>)> {
        let Span { min, max, word } = match self.at.step(limit) {
            Some(span) => span,
            // SAFETY: as for `walk`.
            None => unsafe { self.at.next(self.root(), limit)? },
        };
        // SAFETY: as above; it is an entry.
        Some(unsafe { item::<E>(Span { min, max, word }) })
    }

    /// The previous entry that ends at or after `limit`. From `Start`, it is before the range at
    /// the index.
    #[inline]
    pub fn prev(&mut self, limit: Index) -> Option<(RangeInclusive<Index>, E::Ref<'_>)> {
        let Span { min, max, word } = match self.at.step_back(limit) {
            Some(span) => span,
            // SAFETY: as for `walk`.
            None => unsafe { self.at.prev(self.root(), limit)? },
        };
        // SAFETY: as above; it is an entry.
        Some(unsafe { item::<E>(Span { min, max, word }) })
    }

    /// The next entry that begins at or before `limit`. From `Start`, it may be the one at the
    /// index.
    #[inline]
    pub fn find(&mut self, limit: Index) -> Option<(RangeInclusive<Index>, E::Ref<'_>)> {
        let Span { min, max, word } = match self.at.step(limit) {
            Some(span) => span,
            // SAFETY: as for `walk`.
            None => unsafe { self.at.find(self.root(), limit)? },
        };
        // SAFETY: as above; it is an entry.
        Some(unsafe { item::<E>(Span { min, max, word }) })
    }

    /// The previous entry that ends at or after `limit`. From `Start`, it may be the one at the
    /// index.
    #[inline]
    pub fn find_rev(&mut self, limit: Index) -> Option<(RangeInclusive<Index>, E::Ref<'_>)> {
        let Span { min, max, word } = match self.at.step_back(limit) {
            Some(span) => span,
            // SAFETY: as for `walk`.
            None => unsafe { self.at.find_rev(self.root(), limit)? },
        };
        // SAFETY: as above; it is an entry.
        Some(unsafe { item::<E>(Span { min, max, word }) })
    }

    /// The next range, entry or hole, that begins at or before `limit`. From `Start`, it is the one
    /// at the index.
    pub fn next_range(
        &mut self,
        limit: Index,
    ) -> Option<(RangeInclusive<Index>, Option<E::Ref<'_>>)> {
        // SAFETY: as for `walk`.
        let span = unsafe { self.at.next_range(self.root(), limit)? };
        // SAFETY: as for `walk`.
        Some((span.min..=span.max, unsafe { hit::<E>(span) }.map(|(_, entry)| entry)))
    }

    /// The previous range, entry or hole, that ends at or after `limit`. From `Start`, it is the
    /// one at the index.
    pub fn prev_range(
        &mut self,
        limit: Index,
    ) -> Option<(RangeInclusive<Index>, Option<E::Ref<'_>>)> {
        // SAFETY: as for `walk`.
        let span = unsafe { self.at.prev_range(self.root(), limit)? };
        // SAFETY: as for `walk`.
        Some((span.min..=span.max, unsafe { hit::<E>(span) }.map(|(_, entry)| entry)))
    }

    /// The first index of the lowest `size` free indices inside `bounds` that begin at a multiple
    /// of `align`. If alignment is hard to meet, the result may be a higher place: see
    /// [`Writer::empty_area`](crate::Writer::empty_area). The new state is `Active` on the hole, or
    /// `Nowhere`.
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
        // SAFETY: we are the writer.
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
        // SAFETY: we are the writer.
        unsafe { self.at.empty_area(self.root(), want, End::Highest) }
    }

    /// As [`Writer::preallocate`]: if the next write of this writer is over `range`, it cannot run
    /// out of memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::EmptyRange`].
    pub fn preallocate(&mut self, range: RangeInclusive<Index>) -> Result<(), Error> {
        self.writer.preallocate(range)
    }

    /// Stores `entry` over `range`, as [`Writer::store_range`] does. The new state is `Active` on
    /// `range`.
    ///
    /// # Errors
    /// As for [`Writer::store_range`]. The cursor stays on its range; `Active` becomes `Paused`.
    pub fn store(&mut self, range: RangeInclusive<Index>, entry: E) -> Result<(), Refused<E>> {
        let index = *range.start();
        self.keeping_place(|writer| writer.store_range(range, entry))?;
        self.arrive(index);
        Ok(())
    }

    /// Erases the entry that holds the cursor's index; returns `None` if there is a hole. The new
    /// state is `Active` on the resulting hole, which includes the holes beside it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]. The cursor stays on its range; `Active` becomes `Paused`.
    #[allow(clippy::type_complexity)]
    pub fn erase(&mut self) -> Result<Option<(RangeInclusive<Index>, Erased<E, R>)>, Error> {
        let index = self.at.range().0;
        let erased = self.keeping_place(|writer| writer.erase(index))?;
        self.arrive(index);
        Ok(erased)
    }

    /// Performs a write. The write may free nodes of the path, so the next move starts at the root,
    /// whether the write succeeds or fails.
    fn keeping_place<T, F>(
        &mut self,
        write: impl FnOnce(&mut Writer<'t, E, R, A>) -> Result<T, F>,
    ) -> Result<T, F> {
        self.at.pause();
        write(self.writer)
    }

    fn arrive(&mut self, index: Index) {
        self.at.set(index);
        // SAFETY: we are the writer.
        unsafe { self.at.walk(self.root()) };
    }
}
