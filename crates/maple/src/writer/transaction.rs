//! Writes that first look: merging stores, updates, and several writes that readers see as one.

use super::{Hold, Writer};
use crate::Index;
use crate::alloc::NodeAlloc;
use crate::entry::Entry;
use crate::error::{Error, Refused};
use crate::node::Link;
use crate::tree::Core;
use core::ops::RangeInclusive;
use grace::Reclaim;

impl<E: Entry, R: Reclaim, A: NodeAlloc> Writer<'_, E, R, A> {
    /// Stores `entry` as [`store_range`](Writer::store_range) does, over a range that also takes in
    /// the entries that touch it and for which `same` returns true. So equal neighbours stay one
    /// range. Returns the stored range.
    ///
    /// ```
    /// use maple::{Index, MapleTree};
    /// let mut tree = MapleTree::<u32>::new();
    /// let mut writer = tree.get_mut();
    /// writer.store_range(0..=9, 1)?;
    /// writer.store_range(20..=29, 1)?;
    /// assert_eq!(writer.store_merged(10..=19, 1, |old| old == 1)?, 0..=29);
    /// assert_eq!(writer.store_merged(30..=39, 2, |old| old == 2)?, 30..=39);
    /// assert_eq!(writer.iter(0..=Index::MAX).count(), 2);
    /// # Ok::<(), maple::Error>(())
    /// ```
    ///
    /// Cost: two lookups more than a store. Readers see one write.
    ///
    /// # Errors
    /// As for [`store_range`](Writer::store_range).
    pub fn store_merged(
        &mut self,
        range: RangeInclusive<Index>,
        entry: E,
        mut same: impl FnMut(E::Ref<'_>) -> bool,
    ) -> Result<RangeInclusive<Index>, Refused<E>> {
        if range.is_empty() {
            return Err(Refused { error: Error::EmptyRange, entry });
        }
        let (mut start, mut end) = range.into_inner();
        if let Some((before, old)) = start.checked_sub(1).and_then(|index| self.lookup(index))
            && same(old)
        {
            start = *before.start();
        }
        if let Some((after, old)) = end.checked_add(1).and_then(|index| self.lookup(index))
            && same(old)
        {
            end = *after.end();
        }
        self.store_range(start..=end, entry)?;
        Ok(start..=end)
    }

    /// Replaces the entry at `index`, over its whole range, by what `f` makes of it. Returns the
    /// range; `None` for a hole. Cost: a lookup and a store. Readers see one write.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], with the new entry. The old one is still in place.
    pub fn update(
        &mut self,
        index: Index,
        f: impl FnOnce(E::Ref<'_>) -> E,
    ) -> Result<Option<RangeInclusive<Index>>, Refused<E>> {
        let Some((range, old)) = self.lookup(index) else { return Ok(None) };
        let new = f(old);
        self.store_range(range.clone(), new)?;
        Ok(Some(range))
    }

    /// The lowest entry that overlaps `range`. If there is none, stores what `make` returns over
    /// the range first.
    ///
    /// # Errors
    /// As for [`insert_range`](Writer::insert_range).
    #[allow(clippy::type_complexity)]
    pub fn get_or_insert_with(
        &mut self,
        range: RangeInclusive<Index>,
        make: impl FnOnce() -> E,
    ) -> Result<(RangeInclusive<Index>, E::Ref<'_>), Refused<E>> {
        if self.find(range.clone()).is_none() {
            self.insert_range(range.clone(), make())?;
        }
        let Some(found) = self.find(range) else { unreachable!("there is an entry by now") };
        Ok(found)
    }

    /// Erases the entries that overlap `bounds` and for which `keep` returns false. Returns how
    /// many. Each is a write of its own.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; the entries up to that one have been treated.
    pub fn retain(
        &mut self,
        bounds: RangeInclusive<Index>,
        mut keep: impl FnMut(RangeInclusive<Index>, E::Ref<'_>) -> bool,
    ) -> Result<usize, Error> {
        let mut erased = 0;
        if bounds.is_empty() {
            return Ok(erased);
        }
        let (mut from, to) = bounds.into_inner();
        loop {
            let found = self.find(from..=to).map(|(range, entry)| {
                let (start, end) = (*range.start(), *range.end());
                (start, end, keep(range, entry))
            });
            let Some((start, end, kept)) = found else { break };
            if !kept {
                self.erase(start)?;
                erased += 1;
            }
            match end.checked_add(1) {
                Some(next) => from = next,
                None => break,
            }
        }
        Ok(erased)
    }

    /// Several writes that readers see as one, and that all happen or none.
    ///
    /// `f` writes to a version of its own: a [`duplicate`](Writer::duplicate) that no reader can
    /// see. If `f` returns `Ok`, one pointer store publishes it in place of the tree. If `f`
    /// returns an error or panics, the version is dropped, and the tree is as it was.
    ///
    /// ```
    /// use maple::{Epoch, Error, MapleTree};
    /// let tree = MapleTree::<u32, Epoch>::new();
    /// tree.store_range(0..=9, 1)?;
    /// // Move an entry: readers find it at the old place or at the new one, never at both.
    /// tree.lock().transaction(|writer| {
    ///     writer.erase(0)?;
    ///     writer.insert_range(50..=59, 1).map_err(Error::from)
    /// })?;
    /// let failed = tree.lock().transaction(|writer| {
    ///     writer.erase(50)?;
    ///     Err::<(), _>(Error::NoSpace)
    /// });
    /// assert_eq!(failed, Err(Error::NoSpace));
    /// assert_eq!(tree.load(&tree.pin(), 55), Some(1));
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// Cost: the first write to a node copies it, with those above it, as after a duplicate; and
    /// the writes after the transaction copy nodes again until a grace period has ended. If
    /// [`Entry::SHARES`] is false, the whole tree is copied.
    ///
    /// # Errors
    /// Those of `f`; [`Error::OutOfMemory`]; [`Error::Whole`] if the entries have no duplicates.
    ///
    /// # Misuse
    /// The closure cannot reach the tree's own writer, which is borrowed. A writer of the version
    /// cannot be exchanged for another one, by its lifetime.
    pub fn transaction<T, X: From<Error>>(
        &mut self,
        f: impl FnOnce(&mut Writer<'_, E, R, A>) -> Result<T, X>,
    ) -> Result<T, X> {
        let version = Core::new(self.duplicate_root()?);
        version.set_wrapped(self.core.wrapped());
        // No reader sees the version. Its nodes that are also the tree's are shared, and so they
        // are copied before a change.
        let mut writer = Writer::new(&version, Hold::Exclusive);
        let value = f(&mut writer)?;
        drop(writer);
        self.supplies.drop_spare();
        self.finger.forget();
        self.core.set_wrapped(version.wrapped());
        let old = self.root();
        self.core.root.publish(version.root.load());
        // The version is empty when it is dropped.
        version.root.publish(Link::NULL);
        // SAFETY: the old root is unreachable by now, and its reference was the tree's. Disposal is
        // exclusive only if the tree is borrowed mutably.
        unsafe { self.supplies.bin.subtree(old) }
        Ok(value)
    }
}
