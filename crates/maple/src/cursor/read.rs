//! The reader's cursor: under a guard, beside a writer.

use super::{Position, State};
use crate::Entry;
use crate::error::Error;
use crate::gap::{End, Want};
use crate::iter::hit;
use crate::node::{AtomicLink, Link};
use core::marker::PhantomData;
use core::ops::RangeInclusive;

/// A reader's place in a tree; made by [`MapleTree::cursor`](crate::MapleTree::cursor).
///
/// It never waits, allocates, or writes shared memory (I2), and goes on from where it is while a
/// writer changes the tree: it meets each index once and sees what the tree held there at some
/// moment under the guard (I1). A hole may look divided where the tree changed in between.
///
/// Cost of a move to a neighbour: a bound and a word from the leaf; at a leaf's end, the way to the
/// next.
///
/// ```
/// use maple::MapleTree;
/// let mut tree = MapleTree::<u32>::new();
/// tree.get_mut().store_range(10..=19, 7).unwrap();
/// tree.get_mut().store_range(30..=39, 8).unwrap();
/// let guard = tree.pin();
/// let mut cursor = tree.cursor(&guard, 15);
/// assert_eq!(cursor.walk(), Some(7));
/// assert_eq!(cursor.range(), 10..=19);
/// assert_eq!(cursor.next_range(usize::MAX), Some((20..=29, None)));
/// assert_eq!(cursor.next(usize::MAX), Some((30..=39, 8)));
///
/// // Let the guard go, and go on later.
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

/// A place in a tree without a guard; made by [`ReadCursor::pause`], for
/// [`MapleTree::resume`](crate::MapleTree::resume).
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
    min: usize,
    max: usize,
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

    /// The index to go on from: the first of the range the cursor stood on.
    pub fn index(&self) -> usize {
        self.min
    }
}

impl<'g, E: Entry> ReadCursor<'g, E> {
    /// # Safety
    /// A guard lives for `'g` (or the tree cannot change for `'g`).
    pub(crate) unsafe fn new(root: &'g AtomicLink, at: Position) -> Self {
        ReadCursor { root, at, _life: PhantomData }
    }

    fn root(&self) -> Link {
        self.root.load()
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

    /// To `Start` at the present index: the next move finds its way from the root.
    pub fn reset(&mut self) {
        self.at.set(self.at.range().0);
    }

    /// The place, to go on from under another guard.
    pub fn pause(self) -> Paused {
        Paused::of(self.at)
    }

    /// Looks at the range that holds the cursor's index: its entry, or `None` for a hole. To
    /// `Active`.
    pub fn walk(&mut self) -> Option<E::Ref<'g>> {
        // SAFETY: the promise of `new`.
        unsafe { hit::<E>(self.at.walk(self.root())) }.map(|(_, entry)| entry)
    }

    /// The next entry that begins at or before `limit`; from `Start`, after the range at the index.
    pub fn next(&mut self, limit: usize) -> Option<(RangeInclusive<usize>, E::Ref<'g>)> {
        // SAFETY: the promise of `new`.
        unsafe { hit::<E>(self.at.next(self.root(), limit)?) }
    }

    /// The previous entry that ends at or after `limit`; from `Start`, before the range at the
    /// index.
    pub fn prev(&mut self, limit: usize) -> Option<(RangeInclusive<usize>, E::Ref<'g>)> {
        // SAFETY: the promise of `new`.
        unsafe { hit::<E>(self.at.prev(self.root(), limit)?) }
    }

    /// The next entry that begins at or before `limit`; from `Start`, the one at the index counts.
    pub fn find(&mut self, limit: usize) -> Option<(RangeInclusive<usize>, E::Ref<'g>)> {
        // SAFETY: the promise of `new`.
        unsafe { hit::<E>(self.at.find(self.root(), limit)?) }
    }

    /// The previous entry that ends at or after `limit`; from `Start`, the one at the index counts.
    pub fn find_rev(&mut self, limit: usize) -> Option<(RangeInclusive<usize>, E::Ref<'g>)> {
        // SAFETY: the promise of `new`.
        unsafe { hit::<E>(self.at.find_rev(self.root(), limit)?) }
    }

    /// The next range, entry or hole, that begins at or before `limit`; from `Start`, the one at
    /// the index.
    pub fn next_range(
        &mut self,
        limit: usize,
    ) -> Option<(RangeInclusive<usize>, Option<E::Ref<'g>>)> {
        // SAFETY: the promise of `new`.
        let span = unsafe { self.at.next_range(self.root(), limit)? };
        // SAFETY: as above.
        Some((span.min..=span.max, unsafe { hit::<E>(span) }.map(|(_, entry)| entry)))
    }

    /// The previous range, entry or hole, that ends at or after `limit`; from `Start`, the one at
    /// the index.
    pub fn prev_range(
        &mut self,
        limit: usize,
    ) -> Option<(RangeInclusive<usize>, Option<E::Ref<'g>>)> {
        // SAFETY: the promise of `new`.
        let span = unsafe { self.at.prev_range(self.root(), limit)? };
        // SAFETY: as above.
        Some((span.min..=span.max, unsafe { hit::<E>(span) }.map(|(_, entry)| entry)))
    }

    /// The lowest multiple of `align` inside `bounds` that begins `size` free indices, which lie
    /// inside `bounds` too. To `Active` on the hole, or to `Nowhere`. Where alignment is hard to
    /// meet, it may be a higher one: see [`Writer::empty_area`](crate::Writer::empty_area).
    ///
    /// Beside a writer, the run was free at some moment under the guard, and one that is being
    /// freed at this moment may be missed.
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
        // SAFETY: the promise of `new`.
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
        // SAFETY: the promise of `new`.
        unsafe { self.at.empty_area(self.root(), want, End::Highest) }
    }
}
