//! The right to write: a lock in the tree, or a token that the owner keeps in a lock of its own.
//!
//! | tree | shared writer | exclusive owner |
//! |---|---|---|
//! | [`TreeLock`] | [`MapleTree::lock`] takes the tree's own lock | [`MapleTree::get_mut`] |
//! | [`OwnerLock`] | [`MapleTree::writer`] borrows the [`WriteToken`] mutably | [`MapleTree::get_mut`] |
//!
//! A token is made once, together with its tree, and cannot be copied or forged. An owner keeps it
//! inside its own lock. So only the holder of that lock can write.
//!
//! [`MapleTree::lock`]: crate::MapleTree::lock
//! [`MapleTree::writer`]: crate::MapleTree::writer
//! [`MapleTree::get_mut`]: crate::MapleTree::get_mut

use crate::Index;
use crate::index::AtomicIndex;
use crate::sync::{Mutex, MutexGuard};
// The atomic of `core`, not that of `sync`: a loom atomic cannot be in a static, and this one
// orders nothing.
use core::sync::atomic::{AtomicUsize, Ordering};

/// The lock in a tree: the operating system's mutex with the feature `std`, a spin lock without it.
///
/// ```
/// use grace::Epoch;
/// use maple::{MapleTree, Nodes, TreeLock};
/// let tree = MapleTree::<u32, Epoch, Nodes, TreeLock>::new();
/// tree.lock().store_range(1..=2, 3)?;
/// # Ok::<(), maple::Error>(())
/// ```
///
/// It has a cache line of its own. Readers read the line before it, and taking the lock writes this
/// one.
#[repr(align(64))]
pub struct TreeLock {
    mutex: Mutex,
    /// Where the next cyclic allocation begins. Only the holder of the lock accesses it.
    next: AtomicIndex,
}

impl TreeLock {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        TreeLock { mutex: Mutex::new(), next: AtomicIndex::new(0) }
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        TreeLock { mutex: Mutex::new(), next: AtomicIndex::new(0) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.mutex.lock()
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, ()>> {
        self.mutex.try_lock()
    }

    pub(crate) fn next(&self) -> Index {
        // Relaxed: the lock orders it.
        self.next.load(Ordering::Relaxed)
    }

    pub(crate) fn set_next(&self, next: Index) {
        // Relaxed: the lock orders it.
        self.next.store(next, Ordering::Relaxed);
    }
}

/// No lock in the tree. The owner holds the right to write, as a [`WriteToken`].
///
/// ```
/// use grace::Epoch;
/// use maple::{Error, MapleTree};
/// let (tree, mut token) = MapleTree::<u32, Epoch>::with_token();
/// let (_other, mut wrong) = MapleTree::<u32, Epoch>::with_token();
/// tree.writer(&mut token)?.store_range(1..=2, 3)?;
/// assert_eq!(tree.writer(&mut wrong).err(), Some(Error::WrongToken));
/// # Ok::<(), maple::Error>(())
/// ```
pub struct OwnerLock {
    id: usize,
}

/// The right to write to one tree with [`OwnerLock`].
///
/// ```
/// use grace::Epoch;
/// use maple::{MapleTree, WriteToken};
/// use std::sync::Mutex;
/// struct Space {
///     tree: MapleTree<u32, Epoch, maple::Nodes, maple::OwnerLock>,
///     state: Mutex<WriteToken>, // with whatever else the lock protects
/// }
/// let (tree, token) = MapleTree::with_token();
/// let space = Space { tree, state: Mutex::new(token) };
/// let mut held = space.state.lock().unwrap();
/// space.tree.writer(&mut held)?.store_range(0..=9, 1)?;
/// # Ok::<(), maple::Error>(())
/// ```
#[derive(Debug)]
pub struct WriteToken {
    id: usize,
}

impl OwnerLock {
    /// A lock and its token, with a new number. Cost: one atomic increment of a counter that all
    /// trees share, once per tree.
    pub(crate) fn pair() -> (OwnerLock, WriteToken) {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        // Relaxed: the numbers only have to differ. On a 32-bit machine the counter could wrap, so
        // it stops at its largest value and no further token is made.
        let id = NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |id| id.checked_add(1));
        let Ok(id) = id else {
            panic!("usize::MAX trees with a token were made; there is no number for another one")
        };
        (OwnerLock { id }, WriteToken { id })
    }

    pub(crate) fn fits(&self, token: &WriteToken) -> bool {
        self.id == token.id
    }
}
