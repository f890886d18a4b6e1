//! The iterator over the free ranges.

use crate::Index;
use crate::{Entry, ReadCursor};
use core::iter::FusedIterator;
use core::ops::RangeInclusive;

/// An iterator over the free ranges inside some bounds, in order;
/// [`MapleTree::holes`](crate::MapleTree::holes) makes it.
///
/// With a concurrent writer it is no snapshot: each range was free at some moment under the guard.
/// Cost of a step: two steps of a cursor.
#[derive(Debug)]
pub struct Holes<'g, E: Entry> {
    cursor: ReadCursor<'g, E>,
    bounds: RangeInclusive<Index>,
    /// A range that was read behind the previous hole, and does not touch it.
    read: Option<(Index, Index)>,
}

impl<'g, E: Entry> Holes<'g, E> {
    /// The cursor is at the start of the bounds.
    pub(crate) fn new(cursor: ReadCursor<'g, E>, bounds: RangeInclusive<Index>) -> Self {
        Holes { cursor, bounds, read: None }
    }

    /// The next hole, as the tree has it.
    fn read(&mut self) -> Option<(Index, Index)> {
        while let Some((range, entry)) = self.cursor.next_range(*self.bounds.end()) {
            if entry.is_none() {
                return Some(range.into_inner());
            }
        }
        None
    }
}

impl<E: Entry> Iterator for Holes<'_, E> {
    type Item = RangeInclusive<Index>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.bounds.is_empty() {
            return None;
        }
        let (min, mut max) = self.read.take().or_else(|| self.read())?;
        // Where the tree changed in between, a hole appears divided.
        while max < *self.bounds.end() {
            match self.read() {
                Some((next, end)) if next == max + 1 => max = end,
                read => {
                    self.read = read;
                    break;
                }
            }
        }
        Some(min.max(*self.bounds.start())..=max.min(*self.bounds.end()))
    }
}

impl<E: Entry> FusedIterator for Holes<'_, E> {}

impl<E: Entry> Clone for Holes<'_, E> {
    fn clone(&self) -> Self {
        Holes { cursor: self.cursor.clone(), bounds: self.bounds.clone(), read: self.read }
    }
}
