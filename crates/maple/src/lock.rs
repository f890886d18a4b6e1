//! Who may write: the lock a tree carries, or one that its owner holds.
//!
//! | tree | shared writer | alone |
//! |---|---|---|
//! | [`TreeLock`] | [`MapleTree::lock`] takes the tree's own lock | [`MapleTree::get_mut`] |
//! | [`OwnerLock`] | [`MapleTree::writer`] takes the [`WriteToken`] as witness | [`MapleTree::get_mut`] |
//!
//! The token is the right to write, made once with the tree: it cannot be copied or made up, and
//! `writer` borrows it mutably. An owner keeps it inside its own lock, so who holds that lock can
//! write and nobody else can.
//!
//! [`MapleTree::lock`]: crate::MapleTree::lock
//! [`MapleTree::writer`]: crate::MapleTree::writer
//! [`MapleTree::get_mut`]: crate::MapleTree::get_mut

use crate::sync::{Mutex, MutexGuard};
// Not the shim's: a loom atomic cannot live in a static, and this one orders nothing.
use core::sync::atomic::{AtomicUsize, Ordering};

/// The lock that a tree carries: the operating system's mutex with the feature `std`, a spin lock
/// without.
///
/// ```
/// use grace::Epoch;
/// use maple::{MapleTree, Nodes, TreeLock};
/// let tree = MapleTree::<u32, Epoch, Nodes, TreeLock>::new();
/// tree.lock().store_range(1..=2, 3)?;
/// # Ok::<(), maple::Error>(())
/// ```
///
/// On a cache line of its own: readers look at the one before it, and who takes the lock writes
/// this one.
#[repr(align(64))]
pub struct TreeLock(Mutex);

impl TreeLock {
    #[cfg(not(loom))]
    pub(crate) const fn new() -> Self {
        TreeLock(Mutex::new())
    }

    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        TreeLock(Mutex::new())
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.0.lock()
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, ()>> {
        self.0.try_lock()
    }
}

/// No lock in the tree: its owner holds the right to write, as a [`WriteToken`].
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
    /// The two halves, with an identity of their own. Cost: one atomic increment, shared by all
    /// trees, once in a tree's life.
    pub(crate) fn pair() -> (OwnerLock, WriteToken) {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        // Relaxed: only that the numbers differ matters. On a 32-bit machine the counter could
        // wrap; then no further token is made.
        let id = NEXT.try_update(Ordering::Relaxed, Ordering::Relaxed, |id| id.checked_add(1));
        let Ok(id) = id else { panic!("no identities left for trees") };
        (OwnerLock { id }, WriteToken { id })
    }

    pub(crate) fn fits(&self, token: &WriteToken) -> bool {
        self.id == token.id
    }
}
