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
/// Only its own writes change the tree, so its view is exact. To release the lock and continue
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

    /// The position, to continue from with another writer. Preallocated memory stays with this
    /// writer.
    pub fn pause(self) -> Paused {
        Paused::of(self.at)
    }

    super::moves::moves!('_);

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
    /// state is `Active` on the resulting hole, which includes the holes next to it.
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
