//! A tree that is usually used by one CPU: [`SoleTree`].
//!
//! It is shared like a [`MapleTree`] with a lock. But as long as one CPU alone uses it, its writer
//! changes nodes in place, as an exclusive owner does. [`grace::sole`] finds out, and has the
//! argument. Its condition is met as follows. Each read is one access: it walks the nodes and
//! returns a reference to an entry, and keeps no position in the tree. So [`SoleTree`] has no
//! cursor for readers, and [`iter`](SoleTree::iter) finds each entry anew.
//! Entries that leave the tree are always dropped after a grace period, so a reference stays valid
//! as long as its guard exists.
//!
//! If the engine has no places ([`Reclaim::PLACES`]), the tree is always shared, at no cost.

use crate::Index;
use crate::alloc::NodeAlloc;
use crate::entry::Entry;
use crate::error::{Error, Refused};
use crate::lock::TreeLock;
use crate::node::Link;
use crate::sync::MutexGuard;
use crate::tree::{Core, MapleTree};
use crate::writer::{Hold, Writer};
use core::iter;
use core::ops::{Deref, RangeInclusive};
use grace::sole::{Sole, Tries};
use grace::{Concurrent, Reclaim};

/// A shared tree whose writer changes nodes in place while one CPU alone uses it.
///
/// ```
/// use grace::Epoch;
/// use maple::{Nodes, SoleTree};
/// use std::sync::Arc;
///
/// let tree = SoleTree::<Arc<String>, Epoch, Nodes>::new_in();
/// tree.lock().store_range(0x1000..=0x1fff, Arc::new("text".into()))?;
/// let guard = tree.pin();
/// let (range, entry) = tree.find(&guard, 0..=0xffff).unwrap();
/// assert_eq!((range, entry.as_str()), (0x1000..=0x1fff, "text"));
/// tree.lock().erase_range(0x1000..=0x17ff)?;
/// assert_eq!(entry.as_str(), "text");
/// # Ok::<(), maple::Error>(())
/// ```
///
/// A reader reads one line before the tree: that of the root. The lock and the counters of the
/// writer are elsewhere.
///
/// # Misuse
/// A read that an interrupt, or the code of an entry, makes within a write in place panics before
/// it reads.
#[repr(C, align(128))]
pub struct SoleTree<E: Entry, R: Reclaim, A: NodeAlloc> {
    core: Core<E, R, A>,
    sole: Sole<R>,
    lock: TreeLock,
    tries: Tries,
}

impl<E: Entry, R: Reclaim, A: NodeAlloc> SoleTree<E, R, A> {
    /// An empty tree. Allocates nothing.
    pub fn new_in() -> Self {
        Self::of(Core::new(Link::NULL))
    }

    fn of(core: Core<E, R, A>) -> Self {
        SoleTree { core, sole: Sole::new(), lock: TreeLock::new(), tries: Tries::new() }
    }

    /// A guard for reads. Cost: that of the engine.
    pub fn pin(&self) -> R::Guard {
        R::pin()
    }

    /// As [`MapleTree::load`]. Cost: one more load from the root's line, and two branches.
    ///
    /// # Panics
    /// This and the other reads: in an interrupt that has come upon a write of the only user; see
    /// [`keep_shared`](SoleTree::keep_shared).
    #[inline]
    pub fn load<'g>(&'g self, guard: &'g R::Guard, index: Index) -> Option<E::Ref<'g>> {
        self.sole.read(guard);
        // SAFETY: the guard and the tree's borrow last for `'g`. Nothing writes in place.
        unsafe { self.core.load(index) }
    }

    /// As [`MapleTree::lookup`]. Cost: as for [`load`](SoleTree::load).
    #[inline]
    pub fn lookup<'g>(
        &'g self,
        guard: &'g R::Guard,
        index: Index,
    ) -> Option<(RangeInclusive<Index>, E::Ref<'g>)> {
        self.sole.read(guard);
        // SAFETY: as in `load`.
        unsafe { self.core.lookup(index) }
    }

    /// As [`MapleTree::find`]. Cost: as for [`load`](SoleTree::load).
    #[inline]
    pub fn find<'g>(
        &'g self,
        guard: &'g R::Guard,
        bounds: RangeInclusive<Index>,
    ) -> Option<(RangeInclusive<Index>, E::Ref<'g>)> {
        self.sole.read(guard);
        // SAFETY: as in `load`.
        unsafe { self.core.find(bounds) }
    }

    /// The entries that overlap `bounds`, in order. Each appears as it was at some moment under the
    /// guard; if one has grown downwards meanwhile, its range begins behind the one before. Cost: a
    /// [`find`](SoleTree::find) for each.
    pub fn iter<'g>(
        &'g self,
        guard: &'g R::Guard,
        bounds: RangeInclusive<Index>,
    ) -> impl Iterator<Item = (RangeInclusive<Index>, E::Ref<'g>)> {
        let (start, end) = bounds.into_inner();
        let (mut next, mut from) = (Some(start), 0);
        iter::from_fn(move || {
            let (range, entry) = self.find(guard, next?..=end)?;
            let range = from.max(*range.start())..=*range.end();
            next = range.end().checked_add(1);
            from = next.unwrap_or(from);
            Some((range, entry))
        })
    }

    /// Takes the tree's lock, and returns its writer. May wait; not for interrupts.
    #[inline(always)]
    pub fn lock(&self) -> SoleWriter<'_, E, R, A>
    where
        R: Concurrent,
    {
        SoleLock { tree: self, lock: self.lock.lock() }.writer()
    }

    /// Takes the tree's lock, unless another thread holds it. The writer comes later, in its place:
    /// a writer is large, and should not be moved.
    #[inline(always)]
    pub fn try_lock(&self) -> Option<SoleLock<'_, E, R, A>>
    where
        R: Concurrent,
    {
        Some(SoleLock { tree: self, lock: self.lock.try_lock()? })
    }

    /// The writer of an exclusive owner. It takes no lock and defers nothing.
    #[inline(always)]
    pub fn get_mut(&mut self) -> SoleWriter<'_, E, R, A> {
        SoleWriter { writer: Writer::new(&self.core, Hold::Exclusive), state: None }
    }

    /// Keeps the tree shared from now on. For a host that reads it in interrupts, which may come
    /// while the only user writes. Takes the lock.
    pub fn keep_shared(&self)
    where
        R: Concurrent,
    {
        let _lock = self.lock.lock();
        self.sole.keep_shared(&self.tries);
    }

    /// Whether one CPU alone uses the tree now. For tests and statistics.
    pub fn is_alone(&self) -> bool {
        self.sole.is_alone()
    }
}

/// The lock of a [`SoleTree`], held until this or its writer is dropped.
#[must_use = "the lock is released when it is dropped"]
pub struct SoleLock<'t, E: Entry, R: Reclaim, A: NodeAlloc> {
    tree: &'t SoleTree<E, R, A>,
    lock: MutexGuard<'t, ()>,
}

impl<'t, E: Entry, R: Reclaim, A: NodeAlloc> SoleLock<'t, E, R, A> {
    /// The writer.
    #[inline(always)]
    pub fn writer(self) -> SoleWriter<'t, E, R, A> {
        let state = Some((&self.tree.sole, &self.tree.tries));
        SoleWriter { writer: Writer::new(&self.tree.core, Hold::Lock(self.lock)), state }
    }
}

/// The right to write to a [`SoleTree`]. It reads as a [`Writer`] does.
pub struct SoleWriter<'t, E: Entry, R: Reclaim, A: NodeAlloc> {
    writer: Writer<'t, E, R, A>,
    /// `None` for an exclusive owner.
    state: Option<(&'t Sole<R>, &'t Tries)>,
}

impl<'t, E: Entry, R: Reclaim, A: NodeAlloc> SoleWriter<'t, E, R, A> {
    /// Carries out a write: in place if this CPU alone uses the tree.
    #[inline(always)]
    fn write<T>(&mut self, f: impl FnOnce(&mut Writer<'t, E, R, A>) -> T) -> T {
        if R::PLACES
            && let Some((sole, tries)) = self.state
        {
            let guard = R::pin();
            if let Some(alone) = sole.write(&guard, tries) {
                // SAFETY: all reads but those of this writer call `Sole::read` first, so no other
                // runs before `alone` is dropped. They keep no position in the tree. Those of this
                // writer borrow it.
                let done = unsafe { self.writer.without_readers(f) };
                drop(alone);
                // Frees may read this tree, and others whose writers wait for this CPU.
                self.writer.free_much();
                return done;
            }
        }
        f(&mut self.writer)
    }

    /// As [`Writer::store_range`].
    ///
    /// # Errors
    /// As for [`Writer::store_range`].
    #[inline]
    pub fn store_range(
        &mut self,
        range: RangeInclusive<Index>,
        entry: E,
    ) -> Result<(), Refused<E>> {
        self.write(|writer| writer.store_range(range, entry))
    }

    /// As [`Writer::erase_range`].
    ///
    /// # Errors
    /// As for [`Writer::erase_range`].
    #[inline]
    pub fn erase_range(&mut self, range: RangeInclusive<Index>) -> Result<(), Error> {
        self.write(|writer| writer.erase_range(range))
    }

    /// As [`Writer::set_end`].
    ///
    /// # Errors
    /// As for [`Writer::set_end`].
    #[inline]
    pub fn set_end(
        &mut self,
        index: Index,
        end: Index,
    ) -> Result<Option<RangeInclusive<Index>>, Error> {
        self.write(|writer| writer.set_end(index, end))
    }

    /// As [`Writer::preallocate_writes`].
    ///
    /// # Errors
    /// As for [`Writer::preallocate_writes`].
    pub fn preallocate_writes(&mut self, writes: usize) -> Result<(), Error> {
        self.writer.preallocate_writes(writes)
    }

    /// As [`Writer::duplicate`]. The duplicate has no user yet.
    ///
    /// # Errors
    /// As for [`Writer::duplicate`].
    pub fn duplicate(&self) -> Result<SoleTree<E, R, A>, Error> {
        let MapleTree { core, .. } = self.writer.duplicate()?;
        Ok(SoleTree::of(core))
    }
}

impl<'t, E: Entry, R: Reclaim, A: NodeAlloc> Deref for SoleWriter<'t, E, R, A> {
    type Target = Writer<'t, E, R, A>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        &self.writer
    }
}
