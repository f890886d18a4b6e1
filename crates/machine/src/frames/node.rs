//! The memory of a NUMA node: the ranges that were added, under a lock. The number of free frames
//! can be read without the lock.

use super::buddy::Buddy;
use alloc::collections::TryReserveError;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicUsize, Ordering};
use spin::mutex::{SpinMutex, SpinMutexGuard};

#[derive(Default)]
pub(super) struct Node {
    /// Written under the lock only.
    free: AtomicUsize,
    /// In ascending order.
    ranges: SpinMutex<Vec<Buddy>>,
}

impl Node {
    /// Adds a range of free frames. Allocates.
    pub(super) fn add(&mut self, range: Buddy) -> Result<(), TryReserveError> {
        let ranges = self.ranges.get_mut();
        ranges.try_reserve(1)?;
        *self.free.get_mut() += range.free() as usize;
        ranges.insert(ranges.partition_point(|other| other.first() < range.first()), range);
        Ok(())
    }

    /// Whether the node has no memory at all.
    pub(super) fn is_empty(&mut self) -> bool {
        self.ranges.get_mut().is_empty()
    }

    /// The number of free frames. It may be out of date, since the lock is not held.
    pub(super) fn free(&self) -> usize {
        // Relaxed: only a number. No memory is reached through it.
        self.free.load(Ordering::Relaxed)
    }

    /// Interrupts must be disabled.
    pub(super) fn lock(&self) -> Ranges<'_> {
        Ranges { free: &self.free, ranges: self.ranges.lock() }
    }
}

/// A locked node.
pub(super) struct Ranges<'a> {
    free: &'a AtomicUsize,
    ranges: SpinMutexGuard<'a, Vec<Buddy>>,
}

impl Ranges<'_> {
    /// Takes a block of the smallest sufficient order, from the lowest range that has one.
    pub(super) fn take(&mut self, order: u8) -> Option<u64> {
        let smallest = |range: &&mut Buddy| range.smallest(order).unwrap_or(u8::MAX);
        let number = self.ranges.iter_mut().min_by_key(smallest)?.take(order)?;
        self.count(|free| free - (1 << order));
        Some(number)
    }

    pub(super) fn give(&mut self, number: u64, order: u8) {
        if let Some(range) = self.ranges.iter_mut().find(|range| range.covers(number)) {
            range.give(number, order);
            self.count(|free| free + (1 << order));
        }
    }

    fn count(&mut self, change: impl FnOnce(usize) -> usize) {
        // Relaxed, both: the lock orders them. A reader without the lock uses only the number.
        self.free.store(change(self.free.load(Ordering::Relaxed)), Ordering::Relaxed);
    }
}
