//! The frames that a CPU has at hand.
//!
//! A stack of numbers under a lock, which others take only when memory is short: they empty it, and
//! *close* it for as long as they look for frames, so that none can hide in it. Its length can be
//! read without the lock.
//!
//! Cost of a frame taken or given: one uncontended lock, two or three lines of this CPU's own.

use super::{CACHE_BATCH, CACHE_FRAMES};
use crate::source::NodeId;
use core::sync::atomic::{AtomicUsize, Ordering};
use spin::mutex::{SpinMutex, SpinMutexGuard};

pub(super) struct Cache {
    /// The node that the CPU belongs to.
    pub(super) home: NodeId,
    /// That, or the next one that has memory: its frames are here.
    pub(super) near: NodeId,
    /// Written under the lock only.
    len: AtomicUsize,
    stack: SpinMutex<Numbers>,
}

struct Numbers {
    /// How many look for frames now.
    closed: usize,
    numbers: [u64; CACHE_FRAMES],
}

impl Cache {
    pub(super) fn new(home: NodeId) -> Cache {
        let stack = SpinMutex::new(Numbers { closed: 0, numbers: [0; CACHE_FRAMES] });
        Cache { home, near: home, len: AtomicUsize::new(0), stack }
    }

    /// Interrupts are off.
    pub(super) fn lock(&self) -> Stack<'_> {
        Stack { len: &self.len, held: self.stack.lock() }
    }

    /// How many frames it holds, as somebody saw it who has no lock.
    pub(super) fn len(&self) -> usize {
        // Relaxed: a number; nothing is reached by it.
        self.len.load(Ordering::Relaxed)
    }
}

/// A cache that is locked.
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

    /// There must be room.
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

    /// Takes the coldest half of a full stack.
    pub(super) fn shift(&mut self) -> [u64; CACHE_BATCH] {
        let numbers = &mut self.held.numbers;
        let cold = core::array::from_fn(|i| numbers[i]);
        numbers.copy_within(CACHE_BATCH.., 0);
        self.set_len(CACHE_FRAMES - CACHE_BATCH);
        cold
    }

    /// Whether somebody wants it to be empty.
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
