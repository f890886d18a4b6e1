//! Nodes allocated ahead of a write.
//!
//! Spare blocks form a list through their own first word, so that holding them costs nothing.

use crate::alloc::NodeAlloc;
use crate::error::Error;
use crate::layout::BLOCK;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};

/// Spare node blocks. Dropping it gives them back.
pub(crate) struct Reserve<A: NodeAlloc> {
    /// The first block; its first word points to the next.
    head: *mut Spare,
    len: usize,
    _alloc: PhantomData<A>,
}

struct Spare {
    next: *mut Spare,
}

impl<A: NodeAlloc> Reserve<A> {
    pub(crate) const fn new() -> Self {
        Reserve { head: ptr::null_mut(), len: 0, _alloc: PhantomData }
    }

    /// Allocates until there are at least `n` blocks. What was got before a failure is kept.
    pub(crate) fn fill(&mut self, n: usize) -> Result<(), Error> {
        while self.len < n {
            let block = A::allocate(BLOCK)?.cast::<Spare>();
            // SAFETY: a fresh block is large and aligned enough for one word.
            unsafe { block.write(Spare { next: self.head }) };
            self.head = block.as_ptr();
            self.len += 1;
        }
        Ok(())
    }

    /// Makes a node of a spare block.
    ///
    /// # Panics
    /// If there is none: a write must take no more than it planned.
    pub(crate) fn take<N>(&mut self, node: N) -> NonNull<N> {
        const { assert!(size_of::<N>() <= BLOCK.size() && align_of::<N>() <= BLOCK.align()) }
        let Some(block) = NonNull::new(self.head) else { panic!("more nodes than planned") };
        // SAFETY: the block is on the list, so it holds a `Spare`; it is large enough for a node.
        unsafe {
            self.head = block.as_ref().next;
            self.len -= 1;
            let place = block.cast::<N>();
            place.write(node);
            place
        }
    }
}

impl<A: NodeAlloc> Drop for Reserve<A> {
    fn drop(&mut self) {
        while let Some(block) = NonNull::new(self.head) {
            // SAFETY: the block is on the list, came from `A`, and is nobody else's.
            unsafe {
                self.head = block.as_ref().next;
                A::deallocate(block.cast(), BLOCK);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Flaky;

    #[test]
    fn fills_takes_and_gives_back() {
        let before = Flaky::live();
        {
            let mut reserve = Reserve::<Flaky>::new();
            reserve.fill(3).unwrap();
            reserve.fill(2).unwrap();
            assert_eq!(Flaky::live(), before + 3);
            let node = reserve.take(7u64);
            // SAFETY: the block is ours until it is given back.
            unsafe {
                assert_eq!(node.read(), 7);
                Flaky::deallocate(node.cast(), BLOCK);
            }
            assert_eq!(Flaky::live(), before + 2);
        }
        assert_eq!(Flaky::live(), before);
    }

    #[test]
    fn a_failure_keeps_what_is_there() {
        let before = Flaky::live();
        let mut reserve = Reserve::<Flaky>::new();
        let outcome = Flaky::failing_after(2, || reserve.fill(5));
        assert_eq!(outcome, Err(Error::OutOfMemory));
        assert_eq!(Flaky::live(), before + 2);
        reserve.fill(5).unwrap();
        assert_eq!(Flaky::live(), before + 5);
    }
}
