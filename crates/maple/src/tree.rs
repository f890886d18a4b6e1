//! The tree itself: making it, reading it, and getting the right to write.

use crate::alloc::{NodeAlloc, Nodes};
use crate::cursor::{Paused, Position, ReadCursor};
use crate::descent::Descent;
use crate::entry::Entry;
use crate::error::Error;
use crate::gap::{self, End, Want};
use crate::iter::{Iter, hit};
use crate::lock::{OwnerLock, TreeLock, WriteToken};
use crate::node::{self, AtomicLink, Link};
use crate::stats::Stats;
use crate::write::{Bin, Disposal};
use crate::writer::{Hold, Writer};
use core::marker::PhantomData;
use core::ops::RangeInclusive;
use core::ptr::NonNull;
// Not the shim's: it orders nothing.
use core::sync::atomic::{AtomicBool, Ordering};
use grace::{Concurrent, Reclaim, Single};

/// The root, and what goes with it whoever writes.
pub(crate) struct Core<E: Entry, R: Reclaim, A: NodeAlloc> {
    pub(crate) root: AtomicLink,
    /// Whether a cyclic allocation took the largest index of all, so that the next begins anew.
    /// Writers only, and so seldom written that it may lie beside the root.
    pub(crate) wrapped: AtomicBool,
    _kinds: PhantomData<(*mut E, R, A)>,
}

// SAFETY: the tree owns its entries, which are `Send`; nodes may be freed from any thread.
unsafe impl<E: Entry, R: Reclaim, A: NodeAlloc> Send for Core<E, R, A> {}
// SAFETY: a shared tree hands out shared looks at its entries, which are `Sync`, and lets writers
// move entries out and in from any thread: they are `Send`, and it takes the writer's lock. Its
// nodes are read beside a writer as the module `path` explains.
unsafe impl<E: Entry, R: Reclaim, A: NodeAlloc> Sync for Core<E, R, A> {}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Core<E, R, A> {
    #[cfg(not(loom))]
    pub(crate) const fn new(root: Link) -> Self {
        Core { root: AtomicLink::new(root), wrapped: AtomicBool::new(false), _kinds: PhantomData }
    }

    #[cfg(loom)]
    pub(crate) fn new(root: Link) -> Self {
        Core { root: AtomicLink::new(root), wrapped: AtomicBool::new(false), _kinds: PhantomData }
    }

    /// The entry at an index: the fast path of everything.
    ///
    /// # Safety
    /// For `'g`, nodes of this tree and its entries stay allocated: the caller has a guard or the
    /// writer's right.
    #[inline]
    pub(crate) unsafe fn load<'g>(&self, index: usize) -> Option<E::Ref<'g>> {
        let root = self.root.load();
        if root.is_null() {
            return None;
        }
        // SAFETY: the caller's promise; the word is an entry of the tree.
        unsafe { NonNull::new(crate::node::load(root, index)).map(|raw| E::borrow(raw)) }
    }

    /// # Safety
    /// As for [`Core::load`].
    #[inline]
    pub(crate) unsafe fn lookup<'g>(
        &self,
        index: usize,
    ) -> Option<(RangeInclusive<usize>, E::Ref<'g>)> {
        let root = self.root.load();
        if root.is_null() {
            return None;
        }
        // SAFETY: the caller's promise.
        unsafe { hit::<E>(node::lookup(root, index)) }
    }

    /// # Safety
    /// As for [`Core::load`].
    #[inline]
    pub(crate) unsafe fn find<'g>(
        &self,
        bounds: RangeInclusive<usize>,
    ) -> Option<(RangeInclusive<usize>, E::Ref<'g>)> {
        let root = self.root.load();
        if bounds.is_empty() || root.is_null() {
            return None;
        }
        // SAFETY: the caller's promise.
        let found = unsafe { node::at_or_after(root, *bounds.start(), *bounds.end()) };
        if found.min > *bounds.end() {
            return None;
        }
        // SAFETY: the caller's promise; the span is from the tree.
        unsafe { hit::<E>(found) }
    }

    /// # Safety
    /// As for [`Core::load`].
    #[inline]
    pub(crate) unsafe fn find_rev<'g>(
        &self,
        bounds: RangeInclusive<usize>,
    ) -> Option<(RangeInclusive<usize>, E::Ref<'g>)> {
        let root = self.root.load();
        if bounds.is_empty() || root.is_null() {
            return None;
        }
        // SAFETY: the caller's promise.
        let found = unsafe { node::at_or_before(root, *bounds.end(), *bounds.start()) };
        if found.max < *bounds.start() {
            return None;
        }
        // SAFETY: the caller's promise; the span is from the tree.
        unsafe { hit::<E>(found) }
    }

    pub(crate) fn wrapped(&self) -> bool {
        // Relaxed: only the writer looks, and it writes it itself or had the lock after who did.
        self.wrapped.load(Ordering::Relaxed)
    }

    pub(crate) fn set_wrapped(&self, wrapped: bool) {
        // Relaxed: as above.
        self.wrapped.store(wrapped, Ordering::Relaxed);
    }

    pub(crate) fn height(&self) -> usize {
        let root = self.root.load();
        if root.is_null() { 0 } else { root.level() + 1 }
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> Drop for Core<E, R, A> {
    fn drop(&mut self) {
        // SAFETY: the tree is ours alone, and every look into it borrows it.
        unsafe { Bin::<E, R, A>::new(Disposal::Exclusive).subtree(self.root.load()) }
    }
}

/// A map from ranges of indices (`0..=usize::MAX`, inclusive) to entries of one word.
///
/// - `E`: what it holds ([`Entry`]): `Arc<T>`, `Box<T>`, `&'static T`, small integers.
/// - `R`: how readers are kept safe ([`Reclaim`]). [`grace::Single`], the default, is for a tree
///   with one owner: written through `&mut`, read through `&`, like any collection. `grace::Epoch`
///   and other [`Concurrent`] engines let readers run beside a writer.
/// - `A`: where nodes come from ([`NodeAlloc`]).
/// - `L`: who may write to a shared tree: [`TreeLock`] or [`OwnerLock`].
///
/// The [crate's documentation](crate) explains how it works. Reading under a guard from
/// [`pin`](MapleTree::pin) never waits, allocates, or writes shared memory (I2), and sees a write
/// whole or not at all (I1); what taking the guard costs is the engine's to say. Writing is all or
/// nothing (I7) and needs a [`Writer`].
///
/// ```
/// use grace::Epoch;
/// use maple::MapleTree;
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
/// assert_eq!(tree.iter(&guard, 0..=usize::MAX).count(), 3);
/// # Ok::<(), maple::Error>(())
/// ```
///
/// The root has a cache line without anything that is written as often as the tree is: a lock next
/// to it, or the neighbour's lock, would have every reader wait for the line after every write.
/// Trees are two lines apart, since processors fetch two at a time.
#[repr(C, align(128))]
pub struct MapleTree<E: Entry, R: Reclaim = Single, A: NodeAlloc = Nodes, L = TreeLock> {
    pub(crate) core: Core<E, R, A>,
    pub(crate) lock: L,
}

// Who takes the lock does not write the root's line.
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

    /// An empty tree that is written to with the token alone; see [`OwnerLock`]. Allocates nothing.
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

    /// The right to write to a tree that is shared: waits for the tree's lock. Not for interrupts.
    pub fn lock(&self) -> Writer<'_, E, R, A>
    where
        R: Concurrent,
    {
        Writer::new(&self.core, Hold::Lock(self.lock.lock()))
    }

    /// As [`lock`](MapleTree::lock), but `None` instead of waiting.
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

    /// The right to write, shown by the tree's token. Never waits: who holds the token mutably is
    /// the one writer.
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

impl<E: Entry, A: NodeAlloc, L> MapleTree<E, Single, A, L> {
    /// Turns a tree with one owner into one that can be shared. Constant time: nothing is copied.
    ///
    /// ```
    /// use grace::Epoch;
    /// use maple::MapleTree;
    /// let mut tree = MapleTree::<u32>::new();
    /// tree.get_mut().store_range(3..=5, 1)?; // in place, nothing is deferred
    /// let tree = tree.into_shared::<Epoch>();
    /// assert_eq!(tree.load(&tree.pin(), 4), Some(1));
    /// # Ok::<(), maple::Error>(())
    /// ```
    pub fn into_shared<R: Concurrent>(self) -> MapleTree<E, R, A> {
        let wrapped = self.core.wrapped();
        let tree = MapleTree::from_root(self.into_root());
        tree.core.set_wrapped(wrapped);
        tree
    }

    /// As [`into_shared`](MapleTree::into_shared), for an owner that holds the right to write
    /// itself.
    pub fn into_shared_with_token<R: Concurrent>(
        self,
    ) -> (MapleTree<E, R, A, OwnerLock>, WriteToken) {
        let wrapped = self.core.wrapped();
        let (tree, token) = MapleTree::from_root_with_token(self.into_root());
        tree.core.set_wrapped(wrapped);
        (tree, token)
    }

    fn into_root(self) -> Link {
        let root = self.core.root.load();
        // Nobody else can see the tree; the empty one left behind is dropped.
        self.core.root.publish(Link::NULL);
        root
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc, L> MapleTree<E, R, A, L> {
    /// A guard to read under. Cost: the engine's ([`Reclaim::pin`]). `grace::Epoch` may run
    /// deferred drops here, so not while holding a lock that an entry's `Drop` takes.
    pub fn pin(&self) -> R::Guard {
        R::pin()
    }

    /// The right to write of an exclusive owner: no lock, no reclamation; leaves are changed in
    /// place and what is removed is dropped at once.
    pub fn get_mut(&mut self) -> Writer<'_, E, R, A> {
        Writer::new(&self.core, Hold::Exclusive)
    }

    /// The entry at `index`.
    ///
    /// Cost: one node a level, two to three cache lines each; no atomic but the loads, no
    /// allocation; one branch a level.
    #[inline]
    pub fn load<'g>(&'g self, _guard: &'g R::Guard, index: usize) -> Option<E::Ref<'g>> {
        // SAFETY: the guard and the tree's borrow last for `'g`.
        unsafe { self.core.load(index) }
    }

    /// The entry at `index`, with its whole range. Cost: that of [`load`](MapleTree::load), two
    /// selections a level, and the bounds in the leaf.
    #[inline]
    pub fn lookup<'g>(
        &'g self,
        _guard: &'g R::Guard,
        index: usize,
    ) -> Option<(RangeInclusive<usize>, E::Ref<'g>)> {
        // SAFETY: the guard and the tree's borrow last for `'g`.
        unsafe { self.core.lookup(index) }
    }

    /// The lowest entry that overlaps `bounds`; `None` also if the bounds are empty.
    ///
    /// Cost: one descent, as [`lookup`](MapleTree::lookup); a second one if no entry follows in the
    /// leaf of the first index.
    #[inline]
    pub fn find<'g>(
        &'g self,
        _guard: &'g R::Guard,
        bounds: RangeInclusive<usize>,
    ) -> Option<(RangeInclusive<usize>, E::Ref<'g>)> {
        // SAFETY: the guard and the tree's borrow last for `'g`.
        unsafe { self.core.find(bounds) }
    }

    /// The highest entry that overlaps `bounds`; `None` also if the bounds are empty. Cost: as
    /// [`find`](MapleTree::find).
    #[inline]
    pub fn find_rev<'g>(
        &'g self,
        _guard: &'g R::Guard,
        bounds: RangeInclusive<usize>,
    ) -> Option<(RangeInclusive<usize>, E::Ref<'g>)> {
        // SAFETY: the guard and the tree's borrow last for `'g`.
        unsafe { self.core.find_rev(bounds) }
    }

    /// The entries that overlap `bounds`, from both ends.
    #[inline]
    pub fn iter<'g>(&'g self, _guard: &'g R::Guard, bounds: RangeInclusive<usize>) -> Iter<'g, E> {
        // SAFETY: the guard and the tree's borrow last for `'g`.
        unsafe { Iter::new(self.core.root.load(), bounds) }
    }

    /// A cursor at `index`.
    pub fn cursor<'g>(&'g self, _guard: &'g R::Guard, index: usize) -> ReadCursor<'g, E> {
        // SAFETY: the guard and the tree's borrow last for `'g`.
        unsafe { ReadCursor::new(&self.core.root, Position::new(index)) }
    }

    /// A cursor that goes on from where another was paused.
    pub fn resume<'g>(&'g self, _guard: &'g R::Guard, place: Paused) -> ReadCursor<'g, E> {
        // SAFETY: the guard and the tree's borrow last for `'g`.
        unsafe { ReadCursor::new(&self.core.root, place.position()) }
    }

    /// The start of the lowest run of `size` free indices inside `bounds`, a multiple of `align`:
    /// see [`ReadCursor::empty_area`].
    ///
    /// # Errors
    /// [`Error::NoSpace`], or the arguments are bad.
    pub fn empty_area(
        &self,
        guard: &R::Guard,
        bounds: RangeInclusive<usize>,
        size: usize,
        align: usize,
    ) -> Result<usize, Error> {
        self.area(guard, bounds, size, align, End::Lowest)
    }

    /// As [`empty_area`](MapleTree::empty_area), but the highest.
    ///
    /// # Errors
    /// As for [`empty_area`](MapleTree::empty_area).
    pub fn empty_area_rev(
        &self,
        guard: &R::Guard,
        bounds: RangeInclusive<usize>,
        size: usize,
        align: usize,
    ) -> Result<usize, Error> {
        self.area(guard, bounds, size, align, End::Highest)
    }

    #[inline(always)]
    fn area(
        &self,
        _guard: &R::Guard,
        bounds: RangeInclusive<usize>,
        size: usize,
        align: usize,
        end: End,
    ) -> Result<usize, Error> {
        let want = Want::new(bounds, size, align)?;
        // SAFETY: the guard and the tree's borrow last for the call.
        unsafe { gap::search(self.core.root.load(), &mut Descent::new(), &want, end) }
            .ok_or(Error::NoSpace)
    }

    /// The length of the longest run of free indices, wherever it is. An empty tree has one index
    /// more than `usize` can say, and returns `usize::MAX`, as does one with a single index taken
    /// at either end.
    ///
    /// Cost: one node, the root, however many entries there are. Neither waits, allocates nor
    /// writes (I2).
    ///
    /// Exact when nobody writes. Beside a writer it is a hint: it may count a hole that is being
    /// filled, or leave one out that is being made, but it is never less than the longest run that
    /// is free throughout the call. So whoever wants a run must [ask for
    /// one](MapleTree::empty_area), which looks at the hole itself.
    ///
    /// ```
    /// use maple::MapleTree;
    /// let mut tree = MapleTree::<u32>::new();
    /// assert_eq!(tree.largest_gap(&tree.pin()), usize::MAX);
    /// let mut writer = tree.get_mut();
    /// writer.store_range(0x1000..=usize::MAX, 1)?;
    /// assert_eq!(writer.largest_gap(), 0x1000);
    /// writer.erase_range(0x8000..=0x9fff)?;
    /// assert_eq!(writer.largest_gap(), 0x2000);
    /// # Ok::<(), maple::Error>(())
    /// ```
    pub fn largest_gap(&self, _guard: &R::Guard) -> usize {
        // SAFETY: the guard and the tree's borrow last for the call.
        unsafe { gap::largest(self.core.root.load()) }
    }

    /// Whether there is no entry. Constant time.
    pub fn is_empty(&self) -> bool {
        self.core.root.load().is_null()
    }

    /// Levels from the root to the leaves; 0 when empty. Constant time.
    pub fn height(&self) -> usize {
        self.core.height()
    }

    /// Counts of nodes, entries, holes and bytes. Time: the number of nodes.
    pub fn stats(&self, _guard: &R::Guard) -> Stats {
        // SAFETY: the guard and the tree's borrow last for the call.
        unsafe { Stats::of(self.core.root.load()) }
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
