//! The calls that only a tree without shared writers has: to become one with them, and to be
//! duplicated from a shared reference.

use super::MapleTree;
use crate::alloc::NodeAlloc;
use crate::diff::Diff;
use crate::entry::Entry;
use crate::error::Error;
use crate::lock::{OwnerLock, WriteToken};
use crate::node::Link;
use crate::share::duplicate;
use grace::{Concurrent, Single};

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

    /// As [`into_shared`](MapleTree::into_shared), but the new tree is written with a token; see
    /// [`OwnerLock`].
    pub fn into_shared_with_token<R: Concurrent>(
        self,
    ) -> (MapleTree<E, R, A, OwnerLock>, WriteToken) {
        let wrapped = self.core.wrapped();
        let (tree, token) = MapleTree::from_root_with_token(self.into_root());
        tree.core.set_wrapped(wrapped);
        (tree, token)
    }

    /// A duplicate, from a shared reference: without a writer, nothing changes the tree.
    pub(crate) fn duplicate_alone(&self) -> Result<MapleTree<E, Single, A>, Error> {
        // SAFETY: nothing writes while the tree is borrowed, since its engine has no shared
        // writers. The duplicate only counts on the nodes.
        let root = unsafe { duplicate::<E, Single, A>(self.core.root.load()) }?;
        let tree = MapleTree::from_root(root);
        tree.core.set_wrapped(self.core.wrapped());
        Ok(tree)
    }

    /// The ranges in which this tree and `after` differ, in order, each with the entry of this one
    /// and that of the other. Where a range goes on with the same two entries, it is one range.
    ///
    /// Nodes that the trees share are not looked at
    /// ([`Writer::duplicate`](crate::Writer::duplicate) and
    /// [`Writer::snapshot`](crate::Writer::snapshot)). So the time is that of the changes between
    /// the two, not of their size. Allocates nothing.
    ///
    /// Two entries are the same if they have the same word: the same pointer, or the same small
    /// number. Others may be equal: compare the two. Trees with [`Entry::SHARES`] false share
    /// nothing, and differ everywhere.
    ///
    /// ```
    /// use maple::MapleTree;
    /// let mut tree = MapleTree::<u32>::new();
    /// tree.get_mut().store_range(0..=99, 1)?;
    /// let before = tree.get_mut().snapshot()?;
    /// tree.get_mut().store_range(10..=19, 2)?;
    /// tree.get_mut().erase_range(90..=99)?;
    /// let changes: Vec<_> = before.diff(&tree).collect();
    /// assert_eq!(changes, [(10..=19, Some(1), Some(2)), (90..=99, Some(1), None)]);
    /// # Ok::<(), maple::Error>(())
    /// ```
    pub fn diff<'g, B: NodeAlloc, M>(
        &'g self,
        after: &'g MapleTree<E, Single, B, M>,
    ) -> Diff<'g, E> {
        // SAFETY: nothing writes while the trees are borrowed, since their engine has no shared
        // writers.
        unsafe { Diff::new(self.core.root.load(), after.core.root.load()) }
    }

    /// The same words as entries of another type.
    ///
    /// # Safety
    /// They are entries of that type.
    pub(crate) unsafe fn into_tree_of<F: Entry>(self) -> MapleTree<F, Single, A> {
        let wrapped = self.core.wrapped();
        let tree = MapleTree::from_root(self.into_root());
        tree.core.set_wrapped(wrapped);
        tree
    }

    fn into_root(self) -> Link {
        let root = self.core.root.load();
        // No other thread can see the tree. The empty one left behind is dropped.
        self.core.root.publish(Link::NULL);
        root
    }
}
