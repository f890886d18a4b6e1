//! A CPU's cache of single frames.
//!
//! It is a stack of numbers under a lock. Other CPUs take the lock only when memory is short: they
//! empty the stack, and *close* it while they search for frames, so that no frame is hidden in it.
//! Its length can be read without the lock.
//!
//! Allocating or freeing a frame costs one uncontended lock, and two or three cache lines of this
//! CPU.

use super::{CACHE_BATCH, CACHE_FRAMES};
use crate::NodeId;
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use spin::mutex::{SpinMutex, SpinMutexGuard};

pub(super) struct Cache {
    /// The CPU's node.
    home: AtomicU8,
    /// The CPU's node, or the next one that has memory. The cached frames are from this node.
    /// Written under the lock only.
    near: AtomicU8,
    /// Written under the lock only.
    len: AtomicUsize,
    stack: SpinMutex<Numbers>,
}

struct Numbers {
    /// The number of CPUs that search for frames now.
    closed: usize,
    numbers: [u64; CACHE_FRAMES],
}

impl Cache {
    pub(super) fn new(home: NodeId) -> Cache {
        let stack = SpinMutex::new(Numbers { closed: 0, numbers: [0; CACHE_FRAMES] });
        let (home, near) = (AtomicU8::new(home.0), AtomicU8::new(home.0));
        Cache { home, near, len: AtomicUsize::new(0), stack }
    }

    pub(super) fn home(&self) -> NodeId {
        // Relaxed, as `set_home`: only a number.
        NodeId(self.home.load(Ordering::Relaxed))
    }

    pub(super) fn set_home(&self, node: NodeId) {
        self.home.store(node.0, Ordering::Relaxed);
    }

    /// The node of the cached frames. It may be out of date, unless the lock is held.
    #[inline]
    pub(super) fn near(&self) -> NodeId {
        // Relaxed, as `set_near`: the lock orders it, or it is only a number.
        NodeId(self.near.load(Ordering::Relaxed))
    }

    /// The stack is locked, and empty.
    pub(super) fn set_near(&self, node: NodeId) {
        self.near.store(node.0, Ordering::Relaxed);
    }

    /// Interrupts must be disabled.
    pub(super) fn lock(&self) -> Stack<'_> {
        Stack { len: &self.len, held: self.stack.lock() }
    }

    /// The number of frames. It may be out of date, since the lock is not held.
    pub(super) fn len(&self) -> usize {
        // Relaxed: only a number. No memory is reached through it.
        self.len.load(Ordering::Relaxed)
    }
}

/// A locked cache.
pub(super) struct Stack<'a> {
    len: &'a AtomicUsize,
    held: SpinMutexGuard<'a, Numbers>,
}

impl Stack<'_> {
    pub(super) fn len(&self) -> usize {
        // Relaxed, as `set_len`: the lock orders it.
        self.len.load(Ordering::Relaxed)
    }

    fn set_len(&mut self, len: usize) {
        self.len.store(len, Ordering::Relaxed);
    }

    /// The stack must have room.
    pub(super) fn push(&mut self, number: u64) {
        let len = self.len();
        self.held.numbers[len] = number;
        self.set_len(len + 1);
    }

    pub(super) fn pop(&mut self) -> Option<u64> {
        let len = self.len().checked_sub(1)?;
        self.set_len(len);
        Some(self.held.numbers[len])
    }

    /// Removes the colder half of a full stack.
    pub(super) fn shift(&mut self) -> [u64; CACHE_BATCH] {
        let numbers = &mut self.held.numbers;
        let cold = core::array::from_fn(|i| numbers[i]);
        numbers.copy_within(CACHE_BATCH.., 0);
        self.set_len(CACHE_FRAMES - CACHE_BATCH);
        cold
    }

    /// Whether another CPU keeps the cache empty.
    pub(super) fn is_closed(&self) -> bool {
        self.held.closed != 0
    }

    pub(super) fn close(&mut self) {
        self.held.closed += 1;
    }

    pub(super) fn open(&mut self) {
        self.held.closed -= 1;
    }
}
