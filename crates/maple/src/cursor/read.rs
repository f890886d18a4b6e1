//! The reader's cursor, which runs under a guard, concurrently with a writer.

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

    /// The position, to continue from under another guard.
    pub fn pause(self) -> Paused {
        Paused::of(self.at)
    }

    super::moves::moves!('g);
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
