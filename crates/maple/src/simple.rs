//! The simple interface: one write per call, under the tree's own lock.
//!
//! Each function takes [`MapleTree::lock`](crate::MapleTree::lock) and calls the function of the
//! same name of [`Writer`](crate::Writer); see there. Not for interrupts.

use crate::Index;
use crate::alloc::NodeAlloc;
use crate::entry::Entry;
use crate::erased::Erased;
use crate::error::{Error, Refused};
use crate::tree::MapleTree;
use crate::validate::Violation;
use core::ops::RangeInclusive;
use grace::Concurrent;

impl<E: Entry, R: Concurrent, A: NodeAlloc> MapleTree<E, R, A> {
    /// [`Writer::store_range`](crate::Writer::store_range) under the tree's lock.
    ///
    /// # Errors
    /// As there.
    pub fn store_range(&self, range: RangeInclusive<Index>, entry: E) -> Result<(), Refused<E>> {
        self.lock().store_range(range, entry)
    }

    /// [`Writer::insert_range`](crate::Writer::insert_range) under the tree's lock.
    ///
    /// # Errors
    /// As there.
    pub fn insert_range(&self, range: RangeInclusive<Index>, entry: E) -> Result<(), Refused<E>> {
        self.lock().insert_range(range, entry)
    }

    /// [`Writer::erase`](crate::Writer::erase) under the tree's lock.
    ///
    /// # Errors
    /// As there.
    #[allow(clippy::type_complexity)]
    pub fn erase(
        &self,
        index: Index,
    ) -> Result<Option<(RangeInclusive<Index>, Erased<E, R>)>, Error> {
        self.lock().erase(index)
    }

    /// [`Writer::set_end`](crate::Writer::set_end) under the tree's lock.
    ///
    /// # Errors
    /// As there.
    pub fn set_end(
        &self,
        index: Index,
        end: Index,
    ) -> Result<Option<RangeInclusive<Index>>, Error> {
        self.lock().set_end(index, end)
    }

    /// [`Writer::erase_range`](crate::Writer::erase_range) under the tree's lock.
    ///
    /// # Errors
    /// As there.
    pub fn erase_range(&self, range: RangeInclusive<Index>) -> Result<(), Error> {
        self.lock().erase_range(range)
    }

    /// [`Writer::alloc_range`](crate::Writer::alloc_range) under the tree's lock.
    ///
    /// # Errors
    /// As there.
    pub fn alloc_range(
        &self,
        bounds: RangeInclusive<Index>,
        size: Index,
        align: Index,
        entry: E,
    ) -> Result<Index, Refused<E>> {
        self.lock().alloc_range(bounds, size, align, entry)
    }

    /// [`Writer::alloc_rrange`](crate::Writer::alloc_rrange) under the tree's lock.
    ///
    /// # Errors
    /// As there.
    pub fn alloc_rrange(
        &self,
        bounds: RangeInclusive<Index>,
        size: Index,
        align: Index,
        entry: E,
    ) -> Result<Index, Refused<E>> {
        self.lock().alloc_rrange(bounds, size, align, entry)
    }

    /// [`Writer::alloc_cyclic`](crate::Writer::alloc_cyclic) under the tree's lock.
    ///
    /// # Errors
    /// As there.
    pub fn alloc_cyclic(
        &self,
        bounds: RangeInclusive<Index>,
        next: &mut Index,
        entry: E,
    ) -> Result<(Index, bool), Refused<E>> {
        self.lock().alloc_cyclic(bounds, next, entry)
    }

    /// As [`alloc_cyclic`](MapleTree::alloc_cyclic), but the tree keeps the place of the next call
    /// itself. Returns the index.
    ///
    /// ```
    /// use maple::{Epoch, MapleTree};
    /// let ids = MapleTree::<u32, Epoch>::new();
    /// assert_eq!(ids.alloc_next(1..=9, 5)?, 1);
    /// ids.erase(1)?;
    /// assert_eq!(ids.alloc_next(1..=9, 5)?, 2); // 1 is not used again soon
    /// # Ok::<(), maple::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`alloc_cyclic`](MapleTree::alloc_cyclic).
    pub fn alloc_next(&self, bounds: RangeInclusive<Index>, entry: E) -> Result<Index, Refused<E>> {
        let mut writer = self.lock();
        let mut next = self.lock.next();
        let (index, _) = writer.alloc_cyclic(bounds, &mut next, entry)?;
        self.lock.set_next(next);
        Ok(index)
    }

    /// [`Writer::clear`](crate::Writer::clear) under the tree's lock.
    ///
    /// # Misuse
    /// With readers, large subtrees come due in parts: one guard frees at most some thousand
    /// entries.
    pub fn clear(&self) {
        self.lock().clear();
    }

    /// [`Writer::duplicate`](crate::Writer::duplicate) under the tree's lock.
    ///
    /// # Errors
    /// As there.
    pub fn duplicate(&self) -> Result<Self, Error> {
        self.lock().duplicate()
    }

    /// [`Writer::validate`](crate::Writer::validate) under the tree's lock.
    ///
    /// # Errors
    /// As there.
    pub fn validate(&self) -> Result<(), Violation> {
        self.lock().validate()
    }
}
