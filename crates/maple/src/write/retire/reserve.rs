//! Nodes allocated before a write.
//!
//! The spare blocks form lists through their own first words, so holding them costs no memory.

use crate::alloc::NodeAlloc;
use crate::error::Error;
use crate::layout::{INNER_BLOCK, LEAF_BLOCK};
use crate::node::{Inner, Leaf};
use crate::write::plan::Need;
use core::alloc::Layout;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};

/// Spare blocks for nodes. They are deallocated when it is dropped.
pub(crate) struct Reserve<A: NodeAlloc> {
    leaves: List,
    inners: List,
    _alloc: PhantomData<A>,
}

/// Spare blocks of one layout.
struct List {
    /// The first block; its first word points to the next.
    head: *mut Spare,
    len: usize,
}

struct Spare {
    next: *mut Spare,
}

impl<A: NodeAlloc> Reserve<A> {
    pub(crate) const fn new() -> Self {
        Reserve { leaves: List::EMPTY, inners: List::EMPTY, _alloc: PhantomData }
    }

    /// Whether nothing is preallocated.
    pub(crate) fn is_empty(&self) -> bool {
        self.leaves.len + self.inners.len == 0
    }

    /// Allocates until there are at least `need` blocks. After a failure it keeps what it has.
    #[inline]
    pub(crate) fn fill(&mut self, need: Need) -> Result<(), Error> {
        while self.leaves.len < need.leaves {
            self.leaves.push(A::allocate(LEAF_BLOCK)?);
        }
        while self.inners.len < need.inners {
            self.inners.push(A::allocate(INNER_BLOCK)?);
        }
        Ok(())
    }

    /// Makes a leaf in a spare block.
    ///
    /// # Panics
    /// If there is no spare block: a write must not use more nodes than it reserved.
    #[inline]
    pub(crate) fn take_leaf(&mut self, node: Leaf) -> NonNull<Leaf> {
        let place = self.leaves.pop().cast();
        // SAFETY: the block is for a leaf, and ours.
        unsafe { place.write(node) };
        place
    }

    /// A block for a leaf: a spare one if there is one, otherwise a new one.
    #[inline(always)]
    pub(crate) fn leaf(&mut self) -> Result<NonNull<Leaf>, Error> {
        if self.leaves.head.is_null() {
            return Ok(A::allocate(LEAF_BLOCK)?.cast());
        }
        Ok(self.leaves.pop().cast())
    }

    /// A spare block for a leaf.
    ///
    /// # Panics
    /// As for [`Reserve::take_leaf`].
    pub(crate) fn take_leaf_block(&mut self) -> NonNull<Leaf> {
        self.leaves.pop().cast()
    }

    /// Makes an inner node without children in a spare block.
    ///
    /// # Panics
    /// As for [`Reserve::take_leaf`].
    pub(crate) fn take_inner(&mut self) -> NonNull<Inner> {
        let place = self.take_inner_block();
        // SAFETY: the block is for an inner node, and ours.
        unsafe { Inner::make(place) };
        place
    }

    /// A spare block for an inner node.
    ///
    /// # Panics
    /// As for [`Reserve::take_leaf`].
    #[inline]
    pub(crate) fn take_inner_block(&mut self) -> NonNull<Inner> {
        self.inners.pop().cast()
    }

    fn give_back(list: &mut List, layout: Layout) {
        while list.len > 0 {
            // SAFETY: the block came from `A` with this layout, and has no other owner.
            unsafe { A::deallocate(list.pop().cast(), layout) }
        }
    }
}

impl List {
    const EMPTY: List = List { head: ptr::null_mut(), len: 0 };

    #[inline]
    fn push(&mut self, block: NonNull<u8>) {
        let block = block.cast::<Spare>();
        // SAFETY: a new block is large enough and aligned for one word.
        unsafe { block.write(Spare { next: self.head }) };
        self.head = block.as_ptr();
        self.len += 1;
    }

    #[inline]
    fn pop(&mut self) -> NonNull<u8> {
        let Some(block) = NonNull::new(self.head) else {
            panic!("a write takes more nodes than it reserved")
        };
        // SAFETY: the block is on the list, so it holds a `Spare`.
        self.head = unsafe { block.as_ref() }.next;
        self.len -= 1;
        block.cast()
    }
}

impl<A: NodeAlloc> Drop for Reserve<A> {
    #[inline]
    fn drop(&mut self) {
        Self::give_back(&mut self.leaves, LEAF_BLOCK);
        Self::give_back(&mut self.inners, INNER_BLOCK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Body;
    use crate::testing::Flaky;

    const FIVE: Need = Need { leaves: 3, inners: 2 };

    #[test]
    fn fills_takes_and_gives_back() {
        let before = Flaky::live();
        {
            let mut reserve = Reserve::<Flaky>::new();
            reserve.fill(FIVE).unwrap();
            reserve.fill(Need { leaves: 2, inners: 1 }).unwrap();
            assert_eq!(Flaky::live(), before + 5);
            let leaf = reserve.take_leaf(Leaf::new(Body::EMPTY));
            let inner = reserve.take_inner();
            // SAFETY: the nodes are ours until they are deallocated.
            unsafe {
                assert_eq!((leaf.as_ref().body().len(), inner.as_ref().seps().len()), (1, 0));
                Flaky::deallocate(leaf.cast(), LEAF_BLOCK);
                Flaky::deallocate(inner.cast(), INNER_BLOCK);
            }
            assert_eq!(Flaky::live(), before + 3);
        }
        assert_eq!(Flaky::live(), before);
    }

    #[test]
    fn a_failure_keeps_the_reserved_blocks() {
        let before = Flaky::live();
        let mut reserve = Reserve::<Flaky>::new();
        let outcome = Flaky::failing_after(2, || reserve.fill(FIVE));
        assert_eq!(outcome, Err(Error::OutOfMemory));
        assert_eq!(Flaky::live(), before + 2);
        reserve.fill(FIVE).unwrap();
        assert_eq!(Flaky::live(), before + 5);
    }
}
