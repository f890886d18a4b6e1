//! The memory of a NUMA node: the ranges that were added, under a lock. The number of free frames
//! can be read without the lock.

use super::MAX_ORDER;
use super::buddy::Buddy;
use crate::storage::{NoMemory, Slice, Storage};
use core::sync::atomic::{AtomicUsize, Ordering};
use core::{iter, mem};
use spin::mutex::{SpinMutex, SpinMutexGuard};

#[derive(Default)]
pub(super) struct Node {
    free: AtomicUsize,
    ranges: SpinMutex<List>,
}

/// Ranges in ascending order. A list, so that no range moves when one is added.
#[derive(Default)]
struct List(Slice<Link>);

/// The only value of its slice.
struct Link {
    range: Buddy,
    next: List,
}

impl List {
    fn iter(&self) -> impl Iterator<Item = &Buddy> {
        iter::successors(self.0.first(), |link| link.next.0.first()).map(|link| &link.range)
    }

    fn find(&mut self, is_it: impl Fn(&Buddy) -> bool) -> Option<&mut Buddy> {
        let mut at = self;
        loop {
            let link = at.0.first_mut()?;
            if is_it(&link.range) {
                return Some(&mut link.range);
            }
            at = &mut link.next;
        }
    }

    /// The range with the smallest sufficient block; the lowest, if there are several.
    fn smallest(&mut self, order: u8) -> Option<&mut Buddy> {
        let best = self.iter().filter_map(|range| range.smallest(order)).min()?;
        self.find(|range| range.smallest(order) == Some(best))
    }

    fn insert(&mut self, mut new: Slice<Link>) {
        let Some(first) = new.first().map(|link| link.range.first()) else { return };
        if let Some(link) = self.0.first_mut()
            && link.range.first() < first
        {
            return link.next.insert(new);
        }
        if let Some(link) = new.first_mut() {
            link.next = mem::take(self);
        }
        self.0 = new;
    }
}

impl Node {
    /// Adds a range of free frames. Interrupts must be disabled, unless no other code uses the
    /// source yet.
    pub(super) fn add(&self, storage: &Storage, range: Buddy) -> Result<(), NoMemory> {
        let free = range.free() as usize;
        let link = storage.one(Link { range, next: List::default() })?;
        let mut ranges = self.lock();
        ranges.ranges.insert(link);
        ranges.count(|before| before + free);
        Ok(())
    }

    /// The bytes of a range's link.
    pub(super) const fn bytes() -> usize {
        size_of::<Link>() + align_of::<Link>()
    }

    /// Whether the node has no memory at all.
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.lock().0.is_empty()
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
    ranges: SpinMutexGuard<'a, List>,
}

impl Ranges<'_> {
    /// Takes a block of the smallest sufficient order, from the lowest range that has one.
    pub(super) fn take(&mut self, order: u8) -> Option<u64> {
        let number = self.ranges.smallest(order)?.take(order)?;
        self.count(|free| free - (1 << order));
        Some(number)
    }

    /// Takes a block of at most this order, of the frames that would be taken next one by one.
    pub(super) fn take_run(&mut self, most: u8) -> Option<(u64, u8)> {
        let (number, order) = self.ranges.smallest(0)?.take_run(most)?;
        self.count(|free| free - (1 << order));
        Some((number, order))
    }

    /// Takes the block of this order at `number`. Returns whether it was free.
    pub(super) fn take_at(&mut self, number: u64, order: u8) -> bool {
        let range = self.ranges.find(|range| range.covers(number));
        let taken = range.is_some_and(|range| range.take_at(number, order));
        if taken {
            self.count(|free| free - (1 << order));
        }
        taken
    }

    pub(super) fn give(&mut self, number: u64, order: u8) {
        if let Some(range) = self.ranges.find(|range| range.covers(number)) {
            range.give(number, order);
            self.count(|free| free + (1 << order));
        }
    }

    /// Frees single frames. Consecutive ones are freed as blocks, which saves their merging.
    pub(super) fn give_all(&mut self, numbers: &mut [u64]) {
        numbers.sort_unstable();
        let mut rest = &*numbers;
        while let Some(&first) = rest.first() {
            let range = self.ranges.iter().find(|range| range.covers(first));
            let is_block = |order: &u8| {
                let len = 1 << *order;
                let last = first + len - 1;
                first.is_multiple_of(len)
                    && rest.get(len as usize - 1) == Some(&last)
                    && range.is_some_and(|range| range.covers(last))
            };
            let order = (1..=MAX_ORDER).take_while(is_block).last().unwrap_or(0);
            self.give(first, order);
            rest = &rest[1 << order..];
        }
    }

    fn count(&mut self, change: impl FnOnce(usize) -> usize) {
        // Relaxed, both: the lock orders them. A reader without the lock uses only the number.
        self.free.store(change(self.free.load(Ordering::Relaxed)), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Of equal blocks, that of the lowest range is taken, in whatever order the ranges came.
    #[test]
    fn the_lowest_range_is_first() {
        for ranges in [[16, 80, 48], [80, 48, 16]] {
            let node = Node::default();
            for first in ranges {
                let range = Buddy::try_new(&Storage::Heap, first, 8).unwrap();
                node.add(&Storage::Heap, range).unwrap();
            }
            let mut node = node.lock();
            assert_eq!([node.take(3), node.take(3), node.take(3)], [Some(16), Some(48), Some(80)]);
        }
    }

    /// Frames freed together leave the same free blocks as frames freed one by one, also where two
    /// ranges meet.
    #[test]
    fn freed_together_as_one_by_one() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state >> 33
        };
        for _ in 0..if cfg!(miri) { 4 } else { 200 } {
            let full = || {
                let node = Node::default();
                let storage = Storage::Heap;
                // Not in their order.
                for (first, len) in [(30, 42), (80, 8), (3, 27)] {
                    let range = Buddy::try_new(&storage, first, len).unwrap();
                    node.add(&storage, range).unwrap();
                }
                while node.lock().take(0).is_some() {}
                node
            };
            let (together, singly) = (full(), full());
            let mut numbers: Vec<u64> = (3..72).chain(80..88).collect();
            // Some, mostly in runs.
            let (skip, from) = (2 + random() % 20, random() % 60);
            numbers.retain(|number| *number >= from && number % skip != 0);
            if random().is_multiple_of(2) {
                numbers.reverse();
            }
            together.lock().give_all(&mut numbers.clone());
            numbers.iter().for_each(|number| singly.lock().give(*number, 0));
            assert_eq!(together.free(), singly.free());
            for order in (0..7).rev() {
                let take = |node: &Node| -> Vec<u64> {
                    core::iter::from_fn(|| node.lock().take(order)).collect()
                };
                assert_eq!(take(&together), take(&singly));
            }
        }
    }
}
