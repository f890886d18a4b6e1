//! The reader's cursor, which runs under a guard, beside a writer.

use super::{Position, State};
use crate::Entry;
use crate::Index;
use crate::descent::Span;
use crate::error::Error;
use crate::gap::{End, Want};
use crate::iter::{hit, item};
use crate::node::{AtomicLink, Link};
use core::fmt;
use core::marker::PhantomData;
use core::ops::RangeInclusive;

/// A reader's position in a tree; made by [`MapleTree::cursor`](crate::MapleTree::cursor).
///
/// It never waits, allocates, or writes shared memory (I2). It continues from its position while a
/// writer changes the tree: it meets each index once and sees what the tree held there at some
/// moment under the guard (I1). A hole may appear divided where the tree changed in between.
///
/// Cost of a move to a neighbour: two bounds and a word from the leaf. At the end of a leaf, the
/// step to the next leaf is added. A move from `Start` takes a descent as that of
/// [`find`](crate::MapleTree::find); or, if the index lies in the leaf where the cursor was before,
/// a load and a comparison per level and a search in that leaf.
///
/// ```
/// use maple::{Index, MapleTree};
/// let mut tree = MapleTree::<u32>::new();
/// tree.get_mut().store_range(10..=19, 7).unwrap();
/// tree.get_mut().store_range(30..=39, 8).unwrap();
/// let guard = tree.pin();
/// let mut cursor = tree.cursor(&guard, 15);
/// assert_eq!(cursor.walk(), Some(7));
/// assert_eq!(cursor.range(), 10..=19);
/// assert_eq!(cursor.next_range(Index::MAX), Some((20..=29, None)));
/// assert_eq!(cursor.next(Index::MAX), Some((30..=39, 8)));
///
/// // Drop the guard, and continue later.
/// let place = cursor.pause();
/// drop(guard);
/// let guard = tree.pin();
/// let mut cursor = tree.resume(&guard, place);
/// assert_eq!(cursor.prev(0), Some((10..=19, 7)));
/// ```
pub struct ReadCursor<'g, E: Entry> {
    root: &'g AtomicLink,
    at: Position,
    _life: PhantomData<&'g E>,
}

/// A position in a tree without a guard. [`ReadCursor::pause`] makes it, and
/// [`MapleTree::resume`](crate::MapleTree::resume) continues from it.
///
/// ```
/// use maple::{MapleTree, cursor::Paused};
/// let tree = MapleTree::<u32>::new();
/// let guard = tree.pin();
/// let place: Paused = tree.cursor(&guard, 4).pause();
/// assert_eq!(place.index(), 4);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Paused {
    state: State,
    min: Index,
    max: Index,
}

impl Paused {
    pub(crate) fn of(mut at: Position) -> Self {
        at.pause();
        let (min, max) = at.range();
        Paused { state: at.state(), min, max }
    }

    pub(crate) fn position(self) -> Position {
        Position::at(self.state, self.min, self.max)
    }

    /// The index to continue from: the first one of the range that the cursor was on.
    pub fn index(&self) -> Index {
        self.min
    }
}

impl<'g, E: Entry> ReadCursor<'g, E> {
    /// # Safety
    /// A guard lives for `'g`, or the tree cannot change for `'g`.
    pub(crate) unsafe fn new(root: &'g AtomicLink, at: Position) -> Self {
        ReadCursor { root, at, _life: PhantomData }
    }

    fn root(&self) -> Link {
        self.root.load()
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

    /// Sets the state to `Start` at the current index. The next move starts at the root.
    pub fn reset(&mut self) {
        self.at.set(self.at.range().0);
    }

    /// The position, to continue from under another guard.
    pub fn pause(self) -> Paused {
        Paused::of(self.at)
    }

    /// Reads the range that holds the cursor's index. Returns its entry, or `None` for a hole. The
    /// new state is `Active`.
    pub fn walk(&mut self) -> Option<E::Ref<'g>> {
        // SAFETY: the promise of `new`.
        unsafe { hit::<E>(self.at.walk(self.root())) }.map(|(_, entry)| entry)
    }

    /// The next entry that begins at or before `limit`. From `Start`, it is after the range at the
    /// index.
    #[inline]
    pub fn next(&mut self, limit: Index) -> Option<(RangeInclusive<Index>, E::Ref<'g>)> {
        let Span { min, max, word } = match self.at.step(limit) {
            Some(span) => span,
            // SAFETY: the promise of `new`.
            None => unsafe { self.at.next(self.root(), limit)? },
        };
        // SAFETY: as above; it is an entry.
        Some(unsafe { item::<E>(Span { min, max, word }) })
    }

    /// The previous entry that ends at or after `limit`. From `Start`, it is before the range at
    /// the index.
    #[inline]
    pub fn prev(&mut self, limit: Index) -> Option<(RangeInclusive<Index>, E::Ref<'g>)> {
        let Span { min, max, word } = match self.at.step_back(limit) {
            Some(span) => span,
            // SAFETY: the promise of `new`.
            None => unsafe { self.at.prev(self.root(), limit)? },
        };
        // SAFETY: as above; it is an entry.
        Some(unsafe { item::<E>(Span { min, max, word }) })
    }

    /// The next entry that begins at or before `limit`. From `Start`, it may be the one at the
    /// index.
    #[inline]
    pub fn find(&mut self, limit: Index) -> Option<(RangeInclusive<Index>, E::Ref<'g>)> {
        let Span { min, max, word } = match self.at.step(limit) {
            Some(span) => span,
            // SAFETY: the promise of `new`.
            None => unsafe { self.at.find(self.root(), limit)? },
        };
        // SAFETY: as above; it is an entry.
        Some(unsafe { item::<E>(Span { min, max, word }) })
    }

    /// The previous entry that ends at or after `limit`. From `Start`, it may be the one at the
    /// index.
    #[inline]
    pub fn find_rev(&mut self, limit: Index) -> Option<(RangeInclusive<Index>, E::Ref<'g>)> {
        let Span { min, max, word } = match self.at.step_back(limit) {
            Some(span) => span,
            // SAFETY: the promise of `new`.
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
    ) -> Option<(RangeInclusive<Index>, Option<E::Ref<'g>>)> {
        // SAFETY: the promise of `new`.
        let span = unsafe { self.at.next_range(self.root(), limit)? };
        // SAFETY: as above.
        Some((span.min..=span.max, unsafe { hit::<E>(span) }.map(|(_, entry)| entry)))
    }

    /// The previous range, entry or hole, that ends at or after `limit`. From `Start`, it is the
    /// one at the index.
    pub fn prev_range(
        &mut self,
        limit: Index,
    ) -> Option<(RangeInclusive<Index>, Option<E::Ref<'g>>)> {
        // SAFETY: the promise of `new`.
        let span = unsafe { self.at.prev_range(self.root(), limit)? };
        // SAFETY: as above.
        Some((span.min..=span.max, unsafe { hit::<E>(span) }.map(|(_, entry)| entry)))
    }

    /// The first index of the lowest `size` free indices inside `bounds` that begin at a multiple
    /// of `align`. If alignment is hard to meet, the result may be a higher place: see
    /// [`Writer::empty_area`](crate::Writer::empty_area). The new state is `Active` on the hole, or
    /// `Nowhere`.
    ///
    /// Beside a writer, the range was free at some moment under the guard. A range that the writer
    /// frees at the same time may be missed.
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
        // SAFETY: the promise of `new`.
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
        // SAFETY: the promise of `new`.
        unsafe { self.at.empty_area(self.root(), want, End::Highest) }
    }
}

impl<E: Entry> Clone for ReadCursor<'_, E> {
    fn clone(&self) -> Self {
        ReadCursor { root: self.root, at: self.at.clone(), _life: PhantomData }
    }
}

impl<E: Entry> fmt::Debug for ReadCursor<'_, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let range = self.range();
        f.debug_struct("ReadCursor").field("state", &self.state()).field("range", &range).finish()
    }
}
