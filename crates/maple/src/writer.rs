//! The writer of a tree, and its operations.

mod read;
mod transaction;

use crate::Index;
use crate::alloc::NodeAlloc;
use crate::descent::Descent;
use crate::entry::{Entry, Raw};
use crate::erased::Erased;
use crate::error::{Error, Refused};
use crate::gap::{End, Want, search};
use crate::layout::{INNER_BLOCK, INNER_MIN, INNER_SLOTS, LEAF_BLOCK, MAX_HEIGHT, MAX_PER_LEVEL};
use crate::lock::WriteToken;
use crate::node::Link;
use crate::sync::MutexGuard;
use crate::tree::Core;
use crate::write::{Disposal, Finger, Need, Supplies, Target};
use core::{fmt, marker::PhantomData, ops::RangeInclusive, ptr};
use grace::Reclaim;

/// How other writers are excluded.
pub(crate) enum Hold<'t> {
    /// The tree's lock. It is released when the writer is dropped.
    Lock(#[allow(dead_code)] MutexGuard<'t, ()>),
    /// The owner's token.
    Token(PhantomData<&'t mut WriteToken>),
    /// The tree is borrowed mutably.
    Exclusive,
}

/// The exclusive right to write to a tree. [`MapleTree::lock`](crate::MapleTree::lock),
/// [`MapleTree::writer`](crate::MapleTree::writer) and
/// [`MapleTree::get_mut`](crate::MapleTree::get_mut) return it.
///
/// It reads without a guard, because only the writer itself changes the tree. Every write is all or
/// nothing (I7): if it returns an error, the tree is as it was.
///
/// A writer from `lock` or `writer` may run concurrently with readers: each write is one pointer
/// store to them (I1), and removed entries are dropped after a grace period. A writer from
/// `get_mut` has no readers: it changes leaves in place and drops removed entries at once.
///
/// ```
/// use maple::{Index, MapleTree};
/// let mut tree = MapleTree::<u32>::new();
/// let mut writer = tree.get_mut();
/// writer.store_range(0..=99, 1)?;
/// writer.store_range(40..=59, 2)?; // splits the first in two
/// let (range, removed) = writer.erase(50)?.unwrap();
/// assert_eq!((range, removed.get()), (40..=59, 2));
/// assert_eq!(writer.load(50), None);
/// assert_eq!(writer.iter(0..=Index::MAX).count(), 2);
/// # Ok::<(), maple::Error>(())
/// ```
///
/// # Misuse
/// An entry's code that panics leaves the tree valid: `clone` runs before any change, and the entry
/// to be stored is dropped; `drop` runs before the change or after it is complete, and entries to
/// be dropped after it may leak.
pub struct Writer<'t, E: Entry, R: Reclaim, A: NodeAlloc> {
    // Dropped before `hold`: spare nodes go back under the lock.
    supplies: Supplies<E, R, A>,
    finger: Finger,
    core: &'t Core<E, R, A>,
    #[allow(dead_code)]
    hold: Hold<'t>,
}

impl<'t, E: Entry, R: Reclaim, A: NodeAlloc> Writer<'t, E, R, A> {
    /// Inlined, because a writer is large: it is made in its place and not copied there.
    ///
    /// `hold` must be on this tree. If it is not `Exclusive`, `R` is `Concurrent`.
    #[inline(always)]
    pub(crate) fn new(core: &'t Core<E, R, A>, hold: Hold<'t>) -> Self {
        let disposal = match hold {
            Hold::Exclusive => Disposal::Exclusive,
            Hold::Lock(_) | Hold::Token(_) => Disposal::Deferred,
        };
        Writer { supplies: Supplies::new(disposal), finger: Finger::new(), core, hold }
    }

    pub(crate) fn root(&self) -> Link {
        self.core.root.load()
    }

    /// Runs `f`, whose writes change nodes in place and free them at once. Entries are dropped
    /// after a grace period as before, so references to them stay valid.
    ///
    /// # Safety
    /// While `f` runs, nothing else reads the tree, and afterwards nothing uses an iterator or a
    /// cursor that was made before.
    #[inline(always)]
    pub(crate) unsafe fn without_readers<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        /// Puts the disposal back, also if `f` panics.
        struct Restore<'w, 't, E: Entry, R: Reclaim, A: NodeAlloc> {
            writer: &'w mut Writer<'t, E, R, A>,
            before: Disposal,
        }
        impl<E: Entry, R: Reclaim, A: NodeAlloc> Drop for Restore<'_, '_, E, R, A> {
            #[inline(always)]
            fn drop(&mut self) {
                self.writer.supplies.bin.dispose_by(self.before);
            }
        }
        let alone = match self.hold {
            Hold::Exclusive => Disposal::Exclusive,
            Hold::Lock(_) | Hold::Token(_) => Disposal::Alone,
        };
        let before = self.supplies.bin.dispose_by(alone);
        let restore = Restore { writer: self, before };
        f(&mut *restore.writer)
    }

    /// Lets the engine free what it can, if much has left the tree.
    #[inline(always)]
    pub(crate) fn free_much(&mut self) {
        self.supplies.bin.free_much();
    }

    /// The write target, the position of the last write, and the ends of the range.
    #[allow(clippy::type_complexity)]
    fn target(
        &mut self,
        range: &RangeInclusive<Index>,
    ) -> Result<(Target<'_, E, R, A>, &mut Finger, (Index, Index)), Error> {
        if range.is_empty() {
            return Err(Error::EmptyRange);
        }
        // SAFETY: we are the writer. Disposal is exclusive only if the tree is borrowed mutably,
        // and alone only in `without_readers`; otherwise the engine is concurrent.
        let target = unsafe { Target::new(&self.core.root, &mut self.supplies) };
        Ok((target, &mut self.finger, (*range.start(), *range.end())))
    }

    /// Stores `entry` over the whole range. Entries inside the range are removed. An entry that
    /// extends beyond one end of the range keeps the rest. An entry that extends beyond both ends
    /// is duplicated ([`Entry::try_dup`]).
    ///
    /// # Errors
    /// With the entry: [`Error::EmptyRange`], [`Error::OutOfMemory`], or [`Error::Whole`] if an
    /// entry without duplicates, such as an [`Owned`](crate::Owned), would be divided.
    pub fn store_range(
        &mut self,
        range: RangeInclusive<Index>,
        entry: E,
    ) -> Result<(), Refused<E>> {
        let raw = into_raw(entry)?;
        self.target(&range)
            .and_then(|(target, finger, ends)| target.replace(finger, ends, raw.as_ptr()))
            // SAFETY: a refused entry is not in the tree, so the word is ours.
            .map_err(|error| Refused { error, entry: unsafe { E::from_raw(raw) } })
    }

    /// Stores `entry` over the range if the range is free.
    ///
    /// # Errors
    /// [`Error::Occupied`] with the range of the lowest entry in the way, [`Error::EmptyRange`] or
    /// [`Error::OutOfMemory`]; each with the entry.
    pub fn insert_range(
        &mut self,
        range: RangeInclusive<Index>,
        entry: E,
    ) -> Result<(), Refused<E>> {
        let raw = into_raw(entry)?;
        self.target(&range)
            .and_then(|(target, finger, ends)| target.insert(finger, ends, raw.as_ptr()))
            // SAFETY: a refused entry is not in the tree, so the word is ours.
            .map_err(|error| Refused { error, entry: unsafe { E::from_raw(raw) } })
    }

    /// Removes the entry that holds `index`, and returns it with its range; `None` for a hole.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]: concurrently with readers, an erase makes a new leaf.
    #[allow(clippy::type_complexity)]
    pub fn erase(
        &mut self,
        index: Index,
    ) -> Result<Option<(RangeInclusive<Index>, Erased<E, R>)>, Error> {
        let shared = !self.supplies.bin.is_exclusive();
        let (target, finger, _) = self.target(&(index..=index))?;
        Ok(target
            .erase(finger, index)?
            .map(|(min, max, raw)| (min..=max, Erased::new(raw, shared))))
    }

    /// Moves the last index of the entry that holds `index` to `end`, as `brk` does with the heap.
    /// Returns the entry's new range; `None` for a hole. Nothing is duplicated or dropped.
    ///
    /// ```
    /// use maple::{Error, MapleTree};
    /// let mut tree = MapleTree::<u32>::new();
    /// let mut writer = tree.get_mut();
    /// writer.store_range(10..=19, 1)?;
    /// writer.store_range(40..=49, 2)?;
    /// assert_eq!(writer.set_end(10, 29)?, Some(10..=29));
    /// assert_eq!(writer.set_end(10, 11)?, Some(10..=11));
    /// assert_eq!(writer.set_end(10, 45), Err(Error::Occupied { start: 40, end: 49 }));
    /// # Ok::<(), maple::Error>(())
    /// ```
    ///
    /// Cost, if a hole remains behind the entry in its leaf: a store in which one bound changes.
    ///
    /// # Errors
    /// [`Error::Occupied`] with the range of the lowest entry in the way, [`Error::EmptyRange`] if
    /// the entry begins after `end`, or [`Error::OutOfMemory`].
    pub fn set_end(
        &mut self,
        index: Index,
        end: Index,
    ) -> Result<Option<RangeInclusive<Index>>, Error> {
        let (target, finger, _) = self.target(&(index..=index))?;
        Ok(target.set_end(finger, index, end)?.map(|(start, end)| start..=end))
    }

    /// Makes the whole range a hole. Entries that extend beyond the range keep the rest.
    ///
    /// # Errors
    /// [`Error::EmptyRange`], [`Error::OutOfMemory`], or [`Error::Whole`] if an entry without
    /// duplicates would be divided.
    pub fn erase_range(&mut self, range: RangeInclusive<Index>) -> Result<(), Error> {
        let (target, finger, ends) = self.target(&range)?;
        target.replace(finger, ends, ptr::null_mut())
    }

    /// Removes all entries. Cannot fail. Time: the number of nodes and entries.
    pub fn clear(&mut self) {
        let root = self.root();
        self.supplies.drop_spare();
        self.finger.forget();
        self.core.root.publish(Link::NULL);
        // SAFETY: the tree is unreachable by now. Disposal is exclusive only if it is borrowed
        // mutably.
        unsafe { self.supplies.bin.subtree(root) }
    }

    /// Allocates memory so that the next write of this writer cannot run out of it, if that write
    /// is over `range` or is an [`erase`](Writer::erase) at its first index. A write elsewhere may
    /// use up or drop the preallocated memory. An entry that the write will split is duplicated as
    /// it is now. After a [`duplicate`](Writer::duplicate) nodes are shared again, so the caller
    /// must preallocate again. Unused memory is returned when the writer is dropped.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] or [`Error::EmptyRange`].
    pub fn preallocate(&mut self, range: RangeInclusive<Index>) -> Result<(), Error> {
        let (target, finger, (first, last)) = self.target(&range)?;
        finger.forget();
        target.prepare(first, last)
    }

    /// Allocates enough nodes for the next `writes` writes of this writer, wherever they are: for
    /// several changes that must all happen or not at all. Entries are not duplicated ahead. So if
    /// a write may split an entry, its duplication must not be able to fail
    /// ([`Arc`](std_alloc::sync::Arc), references, integers). Cost: six nodes per level and write,
    /// or ten if duplicates share nodes. Unused nodes are returned when the writer is dropped.
    ///
    /// ```
    /// use maple::MapleTree;
    /// let mut tree = MapleTree::<u32>::new();
    /// let mut writer = tree.get_mut();
    /// writer.store_range(0..=9, 1)?;
    /// writer.preallocate_writes(2)?; // to move an entry: from here on nothing can fail
    /// writer.store_range(50..=59, 1)?;
    /// writer.erase_range(0..=9)?;
    /// # Ok::<(), maple::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; the tree has not changed. The nodes are allocated one by one: if
    /// [`bytes_for_writes`](Writer::bytes_for_writes) is more than there is, that takes long.
    pub fn preallocate_writes(&mut self, writes: usize) -> Result<(), Error> {
        let need = self.need_for_writes(writes).ok_or(Error::OutOfMemory)?;
        self.supplies.nodes.fill(need)
    }

    /// The bytes that [`preallocate_writes`](Writer::preallocate_writes) allocates at most; `None`
    /// if they cannot be counted.
    pub fn bytes_for_writes(&self, writes: usize) -> Option<usize> {
        let Need { leaves, inners } = self.need_for_writes(writes)?;
        let leaves = leaves.checked_mul(LEAF_BLOCK.size())?;
        leaves.checked_add(inners.checked_mul(INNER_BLOCK.size())?)
    }

    /// Each write replaces at most `MAX_PER_LEVEL` nodes per level and may add a new root, up to
    /// the largest height. It may also copy nodes that it shares with a duplicate, on the paths to
    /// both ends and to siblings.
    fn need_for_writes(&self, writes: usize) -> Option<Need> {
        let own = MAX_PER_LEVEL + if E::SHARES { 4 } else { 0 };
        let mut need = Need { leaves: writes.checked_mul(own)?, inners: 0 };
        for (height, writes) in self.heights_of_writes(writes) {
            let inners = writes.checked_mul(own * height.saturating_sub(1) + 1)?;
            need.inners = need.inners.checked_add(inners)?;
        }
        Some(need)
    }

    /// The largest heights that the tree can have when each of the next `writes` writes begins: a
    /// height, and how many of the writes.
    #[doc(hidden)]
    pub fn heights_of_writes(&self, writes: usize) -> impl Iterator<Item = (usize, usize)> {
        let now = self.height();
        // Each write adds few leaves, and each level multiplies them.
        let full = INNER_SLOTS.saturating_pow(now.saturating_sub(1) as u32);
        let leaves = full.saturating_add(writes.saturating_mul(MAX_PER_LEVEL));
        let has_room = |height: &usize| {
            *height < MAX_HEIGHT && INNER_MIN.saturating_pow(*height as u32 - 1) <= leaves / 2
        };
        let most = (now.max(1)..).find(|height| !has_room(height)).unwrap_or(MAX_HEIGHT);
        let growing = writes.min(most.saturating_sub(now));
        let each = (now..now + growing).map(|height| (height, 1));
        each.chain(core::iter::once((most, writes - growing)))
    }

    /// Finds the place that [`empty_area`](Writer::empty_area) returns, stores `entry` over these
    /// `size` indices, and returns the first of them.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::OutOfMemory`], or the arguments are bad; each with the entry.
    pub fn alloc_range(
        &mut self,
        bounds: RangeInclusive<Index>,
        size: Index,
        align: Index,
        entry: E,
    ) -> Result<Index, Refused<E>> {
        match self.empty_area(bounds, size, align) {
            Ok(start) => self.store_range(start..=start + (size - 1), entry).map(|()| start),
            Err(error) => Err(Refused { error, entry }),
        }
    }

    /// As [`alloc_range`](Writer::alloc_range), but at the highest place.
    ///
    /// # Errors
    /// As for [`alloc_range`](Writer::alloc_range).
    pub fn alloc_rrange(
        &mut self,
        bounds: RangeInclusive<Index>,
        size: Index,
        align: Index,
        entry: E,
    ) -> Result<Index, Refused<E>> {
        match self.empty_area_rev(bounds, size, align) {
            Ok(start) => self.store_range(start..=start + (size - 1), entry).map(|()| start),
            Err(error) => Err(Refused { error, entry }),
        }
    }

    /// As [`alloc_range`](Writer::alloc_range), for an entry that contains its own place: `make`
    /// gets the first index. Readers never see the entry without it.
    ///
    /// # Errors
    /// As for [`alloc_range`](Writer::alloc_range), but without the entry. Without memory, the
    /// entry that `make` returned is dropped.
    pub fn alloc_range_with(
        &mut self,
        bounds: RangeInclusive<Index>,
        size: Index,
        align: Index,
        make: impl FnOnce(Index) -> E,
    ) -> Result<Index, Error> {
        let start = self.empty_area(bounds, size, align)?;
        Ok(self.store_range(start..=start + (size - 1), make(start)).map(|()| start)?)
    }

    /// As [`alloc_range_with`](Writer::alloc_range_with), but at the highest place.
    ///
    /// # Errors
    /// As for [`alloc_range_with`](Writer::alloc_range_with).
    pub fn alloc_rrange_with(
        &mut self,
        bounds: RangeInclusive<Index>,
        size: Index,
        align: Index,
        make: impl FnOnce(Index) -> E,
    ) -> Result<Index, Error> {
        let start = self.empty_area_rev(bounds, size, align)?;
        Ok(self.store_range(start..=start + (size - 1), make(start)).map(|()| start)?)
    }

    /// Stores `entry` at the lowest free index inside `bounds` at or after `*next`. If there is
    /// none, at the lowest free index inside `bounds`. `*next` becomes the following index, or the
    /// beginning of `bounds` after the largest index of all. Returns the index, and whether the
    /// search wrapped around. As in Linux, it also counts as wrapped if the call before took the
    /// largest index of all; the tree remembers that.
    ///
    /// ```
    /// use maple::MapleTree;
    /// let mut tree = MapleTree::<u32>::new();
    /// let mut writer = tree.get_mut();
    /// let mut next = 9;
    /// assert_eq!(writer.alloc_cyclic(1..=9, &mut next, 7)?, (9, false));
    /// assert_eq!(writer.alloc_cyclic(1..=9, &mut next, 8)?, (1, true));
    /// assert_eq!(next, 2);
    /// # Ok::<(), maple::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::OutOfMemory`] or [`Error::EmptyRange`]; each with the entry.
    /// `*next` does not change.
    pub fn alloc_cyclic(
        &mut self,
        bounds: RangeInclusive<Index>,
        next: &mut Index,
        entry: E,
    ) -> Result<(Index, bool), Refused<E>> {
        if bounds.is_empty() {
            return Err(Refused { error: Error::EmptyRange, entry });
        }
        let (start, end) = (*bounds.start(), *bounds.end());
        let from = (*next).max(start);
        // Kept until a call from the beginning succeeds.
        let anew = self.core.wrapped() && from == start;
        let (place, wrapped) = match self.empty_area(from..=end, 1, 1) {
            Ok(index) => (Ok(index), anew),
            // `*next` is behind the bounds, or no index from there on is free.
            Err(_) => (self.empty_area(start..=end, 1, 1), true),
        };
        let index = match place {
            Ok(index) => index,
            Err(error) => return Err(Refused { error, entry }),
        };
        self.store_range(index..=index, entry)?;
        if index == Index::MAX {
            self.core.set_wrapped(true);
        } else if anew {
            self.core.set_wrapped(false);
        }
        *next = index.checked_add(1).unwrap_or(start);
        Ok((index, wrapped))
    }

    /// The first index of the lowest `size` free indices inside `bounds` that begin at a multiple
    /// of `align`. Cost: height times width. If several holes in a row are long enough but fail by
    /// alignment, the result may be a higher place, in a hole so long that it cannot fail. If there
    /// is no such hole, the search tries every hole that is long enough.
    ///
    /// # Errors
    /// [`Error::NoSpace`], or the arguments are bad.
    pub fn empty_area(
        &self,
        bounds: RangeInclusive<Index>,
        size: Index,
        align: Index,
    ) -> Result<Index, Error> {
        self.search(bounds, size, align, End::Lowest)
    }

    /// As [`empty_area`](Writer::empty_area), but the highest place.
    ///
    /// # Errors
    /// As for [`empty_area`](Writer::empty_area).
    pub fn empty_area_rev(
        &self,
        bounds: RangeInclusive<Index>,
        size: Index,
        align: Index,
    ) -> Result<Index, Error> {
        self.search(bounds, size, align, End::Highest)
    }

    fn search(
        &self,
        bounds: RangeInclusive<Index>,
        size: Index,
        align: Index,
        end: End,
    ) -> Result<Index, Error> {
        let want = Want::new(bounds, size, align)?;
        // SAFETY: we are the writer.
        unsafe { search(self.root(), &mut Descent::new(), &want, end) }.ok_or(Error::NoSpace)
    }
}

/// The word of an entry.
#[inline(always)]
fn into_raw<E: Entry>(entry: E) -> Result<Raw, Refused<E>> {
    entry.try_into_raw().map_err(|entry| Refused { error: Error::OutOfMemory, entry })
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> fmt::Debug for Writer<'_, E, R, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("height", &self.height()).finish_non_exhaustive()
    }
}
