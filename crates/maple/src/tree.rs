//! The tree: constructors, reads, and the ways to become its writer.

mod exclusive;
mod root;

pub(crate) use root::Core;

use crate::Index;
use crate::alloc::{NodeAlloc, Nodes};
use crate::cursor::{Paused, Position, ReadCursor};
use crate::descent::{self, Descent, Span};
use crate::entry::{Entry, EntryMut};
use crate::error::Error;
use crate::gap::{self, End, Want};
use crate::iter::{Holes, Iter};
use crate::lock::{OwnerLock, TreeLock, WriteToken};
use crate::node::Link;
use crate::stats::Stats;
use crate::writer::{Hold, Writer};
use core::marker::PhantomData;
use core::ops::RangeInclusive;
use core::ptr::NonNull;
// The atomic of `core`, not that of `sync`: it orders nothing.
use grace::{Concurrent, Reclaim, Single};

/// A map from ranges of indices (`0..=Index::MAX`, inclusive) to entries of one word.
///
/// - `E`: the type of the entries ([`Entry`]): `Arc<T>`, `Box<T>`, `&'static T`, numbers.
/// - `R`: the reclamation engine, which keeps readers safe ([`Reclaim`]). [`grace::Single`], the
///   default, is for a tree with one owner: written through `&mut`, read through `&`, like any
///   collection. `grace::Epoch` and other [`Concurrent`] engines let readers run concurrently with
///   a writer.
/// - `A`: the allocator of nodes ([`NodeAlloc`]).
/// - `L`: the writers' lock of a shared tree: [`TreeLock`] or [`OwnerLock`].
///
/// The [crate's documentation](crate) explains how it works. Reads under a guard from
/// [`pin`](MapleTree::pin) never wait, allocate, or write shared memory (I2), and see a write whole
/// or not at all (I1). The cost of the guard itself depends on the engine. Writing is all or
/// nothing (I7) and needs a [`Writer`].
///
/// ```
/// use grace::Epoch;
/// use maple::{Index, MapleTree};
/// use std::sync::Arc;
///
/// let tree = MapleTree::<Arc<String>, Epoch>::new();
/// tree.store_range(0x1000..=0x1fff, Arc::new("text".into()))?;
/// tree.store_range(0x1800..=0x1bff, Arc::new("data".into()))?;
///
/// let guard = tree.pin();
/// assert_eq!(**tree.load(&guard, 0x1900).unwrap(), *"data");
/// let (range, entry) = tree.lookup(&guard, 0x1fff).unwrap();
/// assert_eq!((range, entry.as_str()), (0x1c00..=0x1fff, "text"));
/// assert_eq!(tree.iter(&guard, 0..=Index::MAX).count(), 3);
/// # Ok::<(), maple::Error>(())
/// ```
///
/// The root's cache line holds nothing that is written as often as the tree. Otherwise every write
/// would make readers miss: if the tree's own lock were in the line, or that of the next tree.
/// Trees are aligned to two lines, because CPUs prefetch lines in pairs.
#[repr(C, align(128))]
pub struct MapleTree<E: Entry, R: Reclaim = Single, A: NodeAlloc = Nodes, L = TreeLock> {
    pub(crate) core: Core<E, R, A>,
    pub(crate) lock: L,
}

// Taking the lock does not write the root's line.
const _: () = assert!(core::mem::offset_of!(MapleTree<bool>, lock) >= 64);

impl<E: Entry, R: Reclaim> MapleTree<E, R> {
    /// An empty tree that carries its own lock. Allocates nothing.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        MapleTree { core: Core::new(Link::NULL), lock: TreeLock::new() }
    }

    /// An empty tree that carries its own lock. Allocates nothing.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self::new_in()
    }

    /// An empty tree that can be written only with the token; see [`OwnerLock`]. Allocates nothing.
    ///
    /// # Panics
    /// After `usize::MAX` trees.
    pub fn with_token() -> (MapleTree<E, R, Nodes, OwnerLock>, WriteToken) {
        MapleTree::with_token_in()
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> MapleTree<E, R, A> {
    /// As [`new`](MapleTree::new), with nodes from `A`.
    pub fn new_in() -> Self {
        Self::from_root(Link::NULL)
    }

    pub(crate) fn from_root(root: Link) -> Self {
        MapleTree { core: Core::new(root), lock: TreeLock::new() }
    }

    /// Takes the tree's lock, and returns the writer of a shared tree. May wait; not for
    /// interrupts.
    ///
    /// # Misuse
    /// A forgotten writer keeps the lock, and leaks the nodes that it has collected; `get_mut`
    /// still works. A second `lock` of the same thread waits for itself, `try_lock` returns `None`.
    #[inline(always)]
    pub fn lock(&self) -> Writer<'_, E, R, A>
    where
        R: Concurrent,
    {
        Writer::new(&self.core, Hold::Lock(self.lock.lock()))
    }

    /// As [`lock`](MapleTree::lock), but returns `None` instead of waiting.
    pub fn try_lock(&self) -> Option<Writer<'_, E, R, A>>
    where
        R: Concurrent,
    {
        Some(Writer::new(&self.core, Hold::Lock(self.lock.try_lock()?)))
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> MapleTree<E, R, A, OwnerLock> {
    /// As [`with_token`](MapleTree::with_token), with nodes from `A`.
    ///
    /// # Panics
    /// After `usize::MAX` trees.
    pub fn with_token_in() -> (Self, WriteToken) {
        Self::from_root_with_token(Link::NULL)
    }

    pub(crate) fn from_root_with_token(root: Link) -> (Self, WriteToken) {
        let (lock, token) = OwnerLock::pair();
        (MapleTree { core: Core::new(root), lock }, token)
    }

    /// The writer of a shared tree, for the holder of its token. Never waits: the mutable borrow of
    /// the token excludes other writers.
    ///
    /// # Errors
    /// [`Error::WrongToken`] if the token was made with another tree.
    pub fn writer<'t>(&'t self, token: &'t mut WriteToken) -> Result<Writer<'t, E, R, A>, Error>
    where
        R: Concurrent,
    {
        if self.lock.fits(token) {
            Ok(Writer::new(&self.core, Hold::Token(PhantomData)))
        } else {
            Err(Error::WrongToken)
        }
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc, L> MapleTree<E, R, A, L> {
    /// A guard for reads. Cost: that of the engine ([`Reclaim::pin`]). `grace::Epoch` may run
    /// deferred drops here, so do not call this while holding a lock that an entry's `Drop` takes.
    pub fn pin(&self) -> R::Guard {
        R::pin()
    }

    /// The writer of an exclusive owner. It takes no lock and defers nothing: it changes leaves in
    /// place and drops removed entries at once.
    #[inline(always)]
    pub fn get_mut(&mut self) -> Writer<'_, E, R, A> {
        Writer::new(&self.core, Hold::Exclusive)
    }

    /// The entry at `index`.
    ///
    /// Cost per level: one node, two to three cache lines, one branch. No allocation, and no atomic
    /// operations but loads.
    #[inline]
    pub fn load<'g>(&'g self, _guard: &'g R::Guard, index: Index) -> Option<E::Ref<'g>> {
        // SAFETY: the guard and the tree's borrow last for `'g`.
        unsafe { self.core.load(index) }
    }

    /// The entry at `index`, with its whole range. Cost: that of [`load`](MapleTree::load), two
    /// selections per level, and the bounds in the leaf.
    #[inline]
    pub fn lookup<'g>(
        &'g self,
        _guard: &'g R::Guard,
        index: Index,
    ) -> Option<(RangeInclusive<Index>, E::Ref<'g>)> {
        // SAFETY: the guard and the tree's borrow last for `'g`.
        unsafe { self.core.lookup(index) }
    }

    /// The lowest entry that overlaps `bounds`; `None` also if the bounds are empty.
    ///
    /// Cost: one descent, as [`lookup`](MapleTree::lookup). If no entry follows in the leaf of the
    /// first index, a second descent.
    #[inline]
    pub fn find<'g>(
        &'g self,
        _guard: &'g R::Guard,
        bounds: RangeInclusive<Index>,
    ) -> Option<(RangeInclusive<Index>, E::Ref<'g>)> {
        // SAFETY: the guard and the tree's borrow last for `'g`.
        unsafe { self.core.find(bounds) }
    }

    /// The highest entry that overlaps `bounds`; `None` also if the bounds are empty. Cost: as
    /// [`find`](MapleTree::find).
    #[inline]
    pub fn find_rev<'g>(
        &'g self,
        _guard: &'g R::Guard,
        bounds: RangeInclusive<Index>,
    ) -> Option<(RangeInclusive<Index>, E::Ref<'g>)> {
        // SAFETY: the guard and the tree's borrow last for `'g`.
        unsafe { self.core.find_rev(bounds) }
    }

    /// The entries that overlap `bounds`. The iterator is double-ended.
    #[inline]
    pub fn iter<'g>(&'g self, _guard: &'g R::Guard, bounds: RangeInclusive<Index>) -> Iter<'g, E> {
        // SAFETY: the guard and the tree's borrow last for `'g`.
        unsafe { Iter::new(self.core.root.load(), bounds) }
    }

    /// The entry with the lowest range.
    pub fn first<'g>(&'g self, guard: &'g R::Guard) -> Option<(RangeInclusive<Index>, E::Ref<'g>)> {
        self.find(guard, 0..=Index::MAX)
    }

    /// The entry with the highest range.
    pub fn last<'g>(&'g self, guard: &'g R::Guard) -> Option<(RangeInclusive<Index>, E::Ref<'g>)> {
        self.find_rev(guard, 0..=Index::MAX)
    }

    /// Whether an entry holds `index`.
    pub fn contains(&self, guard: &R::Guard, index: Index) -> bool {
        self.load(guard, index).is_some()
    }

    /// The free ranges inside `bounds`, in order; those at the ends are cut off there.
    ///
    /// ```
    /// use maple::{Epoch, MapleTree};
    /// let tree = MapleTree::<u32, Epoch>::new();
    /// tree.store_range(10..=19, 1)?;
    /// let guard = tree.pin();
    /// assert!(tree.holes(&guard, 5..=99).eq([5..=9, 20..=99]));
    /// # Ok::<(), maple::Error>(())
    /// ```
    pub fn holes<'g>(&'g self, guard: &'g R::Guard, bounds: RangeInclusive<Index>) -> Holes<'g, E> {
        Holes::new(self.cursor(guard, *bounds.start()), bounds)
    }

    /// A cursor at `index`.
    pub fn cursor<'g>(&'g self, _guard: &'g R::Guard, index: Index) -> ReadCursor<'g, E> {
        // SAFETY: the guard and the tree's borrow last for `'g`.
        unsafe { ReadCursor::new(&self.core.root, Position::new(index)) }
    }

    /// A cursor that continues from the position where another was paused.
    pub fn resume<'g>(&'g self, _guard: &'g R::Guard, place: Paused) -> ReadCursor<'g, E> {
        // SAFETY: the guard and the tree's borrow last for `'g`.
        unsafe { ReadCursor::new(&self.core.root, place.position()) }
    }

    /// The first index of the lowest `size` free indices inside `bounds` that begin at a multiple
    /// of `align`: see [`ReadCursor::empty_area`].
    ///
    /// # Errors
    /// [`Error::NoSpace`], or the arguments are bad.
    pub fn empty_area(
        &self,
        guard: &R::Guard,
        bounds: RangeInclusive<Index>,
        size: Index,
        align: Index,
    ) -> Result<Index, Error> {
        self.area(guard, bounds, size, align, End::Lowest)
    }

    /// As [`empty_area`](MapleTree::empty_area), but the highest place.
    ///
    /// # Errors
    /// As for [`empty_area`](MapleTree::empty_area).
    pub fn empty_area_rev(
        &self,
        guard: &R::Guard,
        bounds: RangeInclusive<Index>,
        size: Index,
        align: Index,
    ) -> Result<Index, Error> {
        self.area(guard, bounds, size, align, End::Highest)
    }

    #[inline(always)]
    fn area(
        &self,
        _guard: &R::Guard,
        bounds: RangeInclusive<Index>,
        size: Index,
        align: Index,
        end: End,
    ) -> Result<Index, Error> {
        let want = Want::new(bounds, size, align)?;
        // SAFETY: the guard and the tree's borrow last for the call.
        unsafe { gap::search(self.core.root.load(), &mut Descent::new(), &want, end) }
            .ok_or(Error::NoSpace)
    }

    /// The length of the longest free range of the tree. In an empty tree that is one more than
    /// `Index::MAX`, and the result is `Index::MAX`; so it is if only the index at one end is
    /// taken.
    ///
    /// Cost: one node, the root, whatever the number of entries. Never waits, allocates, or writes
    /// (I2).
    ///
    /// The result is exact if there is no writer. With a concurrent writer it is a hint. It may
    /// include a hole that is being filled, or leave out one that is being made. But it is never
    /// less than the longest range that stays free during the call. A caller that needs a free
    /// range must
    /// [search for one](MapleTree::empty_area); the search reads the hole itself.
    ///
    /// ```
    /// use maple::{Index, MapleTree};
    /// let mut tree = MapleTree::<u32>::new();
    /// assert_eq!(tree.largest_gap(&tree.pin()), Index::MAX);
    /// let mut writer = tree.get_mut();
    /// writer.store_range(0x1000..=Index::MAX, 1)?;
    /// assert_eq!(writer.largest_gap(), 0x1000);
    /// writer.erase_range(0x8000..=0x9fff)?;
    /// assert_eq!(writer.largest_gap(), 0x2000);
    /// # Ok::<(), maple::Error>(())
    /// ```
    pub fn largest_gap(&self, _guard: &R::Guard) -> Index {
        // SAFETY: the guard and the tree's borrow last for the call.
        unsafe { gap::largest(self.core.root.load()) }
    }

    /// Whether there is no entry. Constant time.
    pub fn is_empty(&self) -> bool {
        self.core.root.load().is_null()
    }

    /// The number of entries. Time: the number of nodes.
    pub fn len(&self, guard: &R::Guard) -> usize {
        self.stats(guard).entries
    }

    /// The number of levels from the root to the leaves; 0 when empty. Constant time.
    pub fn height(&self) -> usize {
        self.core.height()
    }

    /// The numbers of nodes, entries, holes and bytes. Time: the number of nodes.
    pub fn stats(&self, _guard: &R::Guard) -> Stats {
        // SAFETY: the guard and the tree's borrow last for the call.
        unsafe { Stats::of(self.core.root.load()) }
    }
}

impl<E: EntryMut, R: Reclaim, A: NodeAlloc, L> MapleTree<E, R, A, L> {
    /// The value of the entry at `index`, to change in place, with its range.
    ///
    /// ```
    /// use maple::{MapleTree, Owned};
    /// let mut tree = MapleTree::<Owned<Vec<u8>>>::new();
    /// tree.get_mut().store_range(0..=9, Owned::new(Vec::new())?)?;
    /// tree.value_mut(5).unwrap().1.push(7);
    /// assert_eq!(tree.get_mut().load(0).unwrap(), &[7]);
    /// # Ok::<(), maple::Error>(())
    /// ```
    pub fn value_mut(&mut self, index: Index) -> Option<(RangeInclusive<Index>, &mut E::Value)> {
        let root = self.core.root.load();
        if root.is_null() {
            return None;
        }
        // SAFETY: the tree is borrowed mutably.
        let Span { min, max, word } = unsafe { descent::lookup(root, index) };
        // SAFETY: the word of an entry points to a value that is this entry's alone, and no
        // reference to it outlives a borrow of the tree.
        Some((min..=max, unsafe { NonNull::new(word)?.cast::<E::Value>().as_mut() }))
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Default for MapleTree<E, R, A> {
    fn default() -> Self {
        Self::new_in()
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc, L> core::fmt::Debug for MapleTree<E, R, A, L> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("MapleTree").field("height", &self.height()).finish_non_exhaustive()
    }
}
