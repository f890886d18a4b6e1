//! The writer's cursor: moves, stores and erases with the writer's right.

use super::{Position, State};
use crate::entry::Entry;
use crate::erased::Erased;
use crate::error::{Error, Refused};
use crate::gap::{End, Want};
use crate::iter::hit;
use crate::node::Link;
use crate::writer::Writer;
use crate::{NodeAlloc, Paused};
use core::ops::RangeInclusive;
use grace::Reclaim;

/// A writer's place in a tree; made by [`Writer::cursor`].
///
/// Between its own writes nothing changes, so what it shows is exact. To let the lock go and go on
/// later, [`pause`](WriteCursor::pause), drop the writer, and [`Writer::resume`] from another.
///
/// ```
/// use maple::MapleTree;
/// let mut tree = MapleTree::<u32>::new();
/// let mut writer = tree.get_mut();
/// let mut cursor = writer.cursor(0);
/// let start = cursor.empty_area(0x1000..=0xffff, 0x100, 0x100)?;
/// cursor.preallocate(start..=start + 0xff)?;
/// cursor.store(start..=start + 0xff, 1)?; // cannot fail now
/// assert_eq!(cursor.range(), 0x1000..=0x10ff);
/// assert_eq!(cursor.prev_range(0), Some((0..=0xfff, None)));
/// assert_eq!(cursor.next(usize::MAX), Some((0x1000..=0x10ff, 1)));
/// cursor.erase()?;
/// assert_eq!(cursor.range(), 0..=usize::MAX);
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

    /// Where the cursor stands.
    pub fn state(&self) -> State {
        self.at.state()
    }

    /// The range the cursor stands on; in `Start`, `Overflow` and `Underflow`, one index.
    pub fn range(&self) -> RangeInclusive<usize> {
        let (min, max) = self.at.range();
        min..=max
    }

    /// To `Start` at `index`.
    pub fn set(&mut self, index: usize) {
        self.at.set(index);
    }

    /// To `Start` at the present index.
    pub fn reset(&mut self) {
        self.at.set(self.at.range().0);
    }

    /// The place, to go on from with another writer. What was preallocated stays with this writer.
    pub fn pause(self) -> Paused {
        Paused::of(self.at)
    }

    /// Looks at the range that holds the cursor's index: its entry, or `None` for a hole. To
    /// `Active`.
    pub fn walk(&mut self) -> Option<E::Ref<'_>> {
        // SAFETY: the writer's right; the reference borrows the cursor, so no write comes between.
        unsafe { hit::<E>(self.at.walk(self.root())) }.map(|(_, entry)| entry)
    }

    /// The next entry that begins at or before `limit`; from `Start`, after the range at the index.
    pub fn next(&mut self, limit: usize) -> Option<(RangeInclusive<usize>, E::Ref<'_>)> {
        // SAFETY: as for `walk`.
        unsafe { hit::<E>(self.at.next(self.root(), limit)?) }
    }

    /// The previous entry that ends at or after `limit`; from `Start`, before the range at the
    /// index.
    pub fn prev(&mut self, limit: usize) -> Option<(RangeInclusive<usize>, E::Ref<'_>)> {
        // SAFETY: as for `walk`.
        unsafe { hit::<E>(self.at.prev(self.root(), limit)?) }
    }

    /// The next entry that begins at or before `limit`; from `Start`, the one at the index counts.
    pub fn find(&mut self, limit: usize) -> Option<(RangeInclusive<usize>, E::Ref<'_>)> {
        // SAFETY: as for `walk`.
        unsafe { hit::<E>(self.at.find(self.root(), limit)?) }
    }

    /// The previous entry that ends at or after `limit`; from `Start`, the one at the index counts.
    pub fn find_rev(&mut self, limit: usize) -> Option<(RangeInclusive<usize>, E::Ref<'_>)> {
        // SAFETY: as for `walk`.
        unsafe { hit::<E>(self.at.find_rev(self.root(), limit)?) }
    }

    /// The next range, entry or hole, that begins at or before `limit`; from `Start`, the one at
    /// the index.
    pub fn next_range(
        &mut self,
        limit: usize,
    ) -> Option<(RangeInclusive<usize>, Option<E::Ref<'_>>)> {
        // SAFETY: as for `walk`.
        let span = unsafe { self.at.next_range(self.root(), limit)? };
        // SAFETY: as for `walk`.
        Some((span.min..=span.max, unsafe { hit::<E>(span) }.map(|(_, entry)| entry)))
    }

    /// The previous range, entry or hole, that ends at or after `limit`; from `Start`, the one at
    /// the index.
    pub fn prev_range(
        &mut self,
        limit: usize,
    ) -> Option<(RangeInclusive<usize>, Option<E::Ref<'_>>)> {
        // SAFETY: as for `walk`.
        let span = unsafe { self.at.prev_range(self.root(), limit)? };
        // SAFETY: as for `walk`.
        Some((span.min..=span.max, unsafe { hit::<E>(span) }.map(|(_, entry)| entry)))
    }

    /// The lowest multiple of `align` inside `bounds` that begins `size` free indices, which lie
    /// inside `bounds` too. To `Active` on the hole, or to `Nowhere`. Where alignment is hard to
    /// meet, it may be a higher one: see [`Writer::empty_area`](crate::Writer::empty_area).
    ///
    /// # Errors
    /// [`Error::NoSpace`]; or the arguments are bad, and the cursor stays.
    pub fn empty_area(
        &mut self,
        bounds: RangeInclusive<usize>,
        size: usize,
        align: usize,
    ) -> Result<usize, Error> {
        let want = Want::new(bounds, size, align)?;
        // SAFETY: the writer's right.
        unsafe { self.at.empty_area(self.root(), want, End::Lowest) }
    }

    /// As [`empty_area`](Self::empty_area), but the highest.
    ///
    /// # Errors
    /// As for [`empty_area`](Self::empty_area).
    pub fn empty_area_rev(
        &mut self,
        bounds: RangeInclusive<usize>,
        size: usize,
        align: usize,
    ) -> Result<usize, Error> {
        let want = Want::new(bounds, size, align)?;
        // SAFETY: the writer's right.
        unsafe { self.at.empty_area(self.root(), want, End::Highest) }
    }

    /// As [`Writer::preallocate`]: the next write of this writer, if it is over `range`, cannot run
    /// out of memory.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::EmptyRange`].
    pub fn preallocate(&mut self, range: RangeInclusive<usize>) -> Result<(), Error> {
        self.writer.preallocate(range)
    }

    /// Stores `entry` over `range`, as [`Writer::store_range`] does. To `Active` on `range`.
    ///
    /// # Errors
    /// As for [`Writer::store_range`]; the cursor stays on its range, `Paused` if it was `Active`.
    pub fn store(&mut self, range: RangeInclusive<usize>, entry: E) -> Result<(), Refused<E>> {
        let index = *range.start();
        self.keeping_place(|writer| writer.store_range(range, entry))?;
        self.arrive(index);
        Ok(())
    }

    /// Erases the entry that the cursor stands on, or that holds its index; `None` if that is a
    /// hole. To `Active` on the hole that results, which takes in the holes beside it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; the cursor stays on its range, `Paused` if it was `Active`.
    #[allow(clippy::type_complexity)]
    pub fn erase(&mut self) -> Result<Option<(RangeInclusive<usize>, Erased<E, R>)>, Error> {
        let index = self.at.range().0;
        let erased = self.keeping_place(|writer| writer.erase(index))?;
        self.arrive(index);
        Ok(erased)
    }

    /// A write may free nodes on the way here; whether it does or fails, the way is found anew.
    fn keeping_place<T, F>(
        &mut self,
        write: impl FnOnce(&mut Writer<'t, E, R, A>) -> Result<T, F>,
    ) -> Result<T, F> {
        self.at.pause();
        write(self.writer)
    }

    fn arrive(&mut self, index: usize) {
        self.at.set(index);
        // SAFETY: the writer's right.
        unsafe { self.at.walk(self.root()) };
    }
}
