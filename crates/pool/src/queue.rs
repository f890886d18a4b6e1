//! The queue of a depot's slabs that have a free block, first in, first out.
//!
//! A slab enters at the tail when its first block is freed. By the time it reaches the front, more
//! of its blocks are free, so blocks are allocated in runs.

use crate::slab::Slab;
use core::ptr::NonNull;

/// A doubly linked list through the slabs' headers.
pub(super) struct Queue {
    head: Option<NonNull<Slab>>,
    tail: Option<NonNull<Slab>>,
}

impl Queue {
    pub(super) const fn new() -> Self {
        Queue { head: None, tail: None }
    }

    pub(super) fn front(&self) -> Option<NonNull<Slab>> {
        self.head
    }

    /// Adds a slab at the tail.
    ///
    /// # Safety
    /// The slab belongs to this queue's depot, whose lock is held, and is in no queue.
    pub(super) unsafe fn push(&mut self, slab: NonNull<Slab>) {
        // SAFETY: the held lock gives exclusive access to the headers of the slab and of those in
        // the queue.
        unsafe {
            (*slab.as_ptr()).prev = self.tail;
            (*slab.as_ptr()).next = None;
            match self.tail {
                Some(tail) => (*tail.as_ptr()).next = Some(slab),
                None => self.head = Some(slab),
            }
        }
        self.tail = Some(slab);
    }

    /// Removes a slab from any position.
    ///
    /// # Safety
    /// The slab is in this queue, and the lock of its depot is held.
    pub(super) unsafe fn remove(&mut self, slab: NonNull<Slab>) {
        // SAFETY: the held lock gives exclusive access to the headers of the slabs in the queue.
        unsafe {
            let (prev, next) = (slab.as_ref().prev, slab.as_ref().next);
            match prev {
                Some(prev) => (*prev.as_ptr()).next = next,
                None => self.head = next,
            }
            match next {
                Some(next) => (*next.as_ptr()).prev = prev,
                None => self.tail = prev,
            }
        }
    }

    /// Panics unless the links agree and every slab has a free block. Returns the slabs.
    #[cfg(test)]
    pub(super) fn check(&self) -> std::vec::Vec<NonNull<Slab>> {
        let mut slabs = std::vec::Vec::new();
        let (mut prev, mut at) = (None, self.head);
        while let Some(slab) = at {
            // SAFETY: the test owns the depot alone.
            let header = unsafe { slab.as_ref() };
            assert_eq!(header.prev, prev);
            assert!(!header.is_full());
            header.check();
            slabs.push(slab);
            (prev, at) = (at, header.next);
        }
        assert_eq!(self.tail, prev);
        slabs
    }
}
