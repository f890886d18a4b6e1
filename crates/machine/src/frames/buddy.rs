//! A buddy allocator of constant size: one bit for each possible block.
//!
//! A block of order `k` is 2^`k` frames, beginning at a multiple of 2^`k`. Its bit says that the
//! block is free and not part of a larger free block. An allocation takes the lowest block of the
//! smallest sufficient order, and halves it down to the requested order. A free merges the block
//! with its other half, its *buddy*, while that is free.
//!
//! # Why not a crate
//! Freeing memory must need no memory, and must not fail. Known crates keep their free blocks in
//! sets on the heap, and abort when the heap is exhausted; or they keep lists in the free memory
//! itself, and search them linearly for the buddy. This allocator needs two bits for each frame,
//! allocated once, and its speed does not depend on its fill. It chooses the same block as
//! `buddy_system_allocator`. The tests compare them call by call.
//!
//! # Cost
//! One word for each 64-fold of the range (5 up to 2^30 frames, at most 9) to find the lowest block
//! of an order, and one or two words to take or free a block. A call that halves or merges blocks
//! visits each order at most once.

use super::MAX_ORDER;
use crate::Frame;
use crate::storage::{NoMemory, Slice, Storage};

const ORDERS: usize = MAX_ORDER as usize + 1;

/// A range of consecutive frames.
pub(super) struct Buddy {
    first: u64,
    len: u64,
    free: u64,
    orders: [Bits; ORDERS],
    /// A bit for each order that has a free block.
    with_blocks: u32,
}

impl Buddy {
    /// A range of free frames, with memory from `storage`.
    pub(super) fn try_new(storage: &Storage, first: u64, len: u64) -> Result<Buddy, NoMemory> {
        let mut buddy = Buddy { first, len, free: 0, orders: Default::default(), with_blocks: 0 };
        for order in 0..ORDERS {
            let blocks = buddy.index(first + len.saturating_sub(1), order) + 1;
            buddy.orders[order] = Bits::try_new(storage, blocks)?;
        }
        let (mut at, end) = (first, first + len);
        while at < end {
            // The largest order that the block's position and the remaining length allow.
            let order = at.trailing_zeros().min((end - at).ilog2()).min(MAX_ORDER.into());
            buddy.insert(at, order as usize);
            at += 1 << order;
        }
        buddy.free = len;
        Ok(buddy)
    }

    pub(super) fn first(&self) -> u64 {
        self.first
    }

    pub(super) fn covers(&self, number: u64) -> bool {
        number.checked_sub(self.first).is_some_and(|offset| offset < self.len)
    }

    /// The number of free frames.
    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// The smallest order, from this one on, that has a free block.
    pub(super) fn smallest(&self, order: u8) -> Option<u8> {
        let orders = self.with_blocks.checked_shr(order.into())?;
        (orders != 0).then(|| order + orders.trailing_zeros() as u8)
    }

    /// Takes a block of this order, and returns its first frame.
    pub(super) fn take(&mut self, order: u8) -> Option<u64> {
        let from = usize::from(self.smallest(order)?);
        let index = self.orders[from].first()?;
        let number = ((self.first >> from) + index as u64) << from;
        self.remove(number, from);
        for half in (usize::from(order)..from).rev() {
            self.insert(number + (1 << half), half);
        }
        self.free -= 1 << order;
        Some(number)
    }

    /// Takes the frames that [`take`](Self::take) of single frames would take next, as one block of
    /// at most this order. Returns its first frame and its order.
    pub(super) fn take_run(&mut self, most: u8) -> Option<(u64, u8)> {
        let order = self.smallest(0)?.min(most);
        Some((self.take(order)?, order))
    }

    /// Takes the block of this order at `number`, if it is free.
    pub(super) fn take_at(&mut self, number: u64, order: u8) -> bool {
        let order = usize::from(order);
        let within = |from: &usize| {
            let block = number >> from << from;
            block >= self.first && self.orders[*from].contains(self.index(block, *from))
        };
        let Some(from) = (order..ORDERS).find(within) else { return false };
        self.remove(number >> from << from, from);
        for half in (order..from).rev() {
            // The half that does not contain the block stays free.
            self.insert((number >> half << half) ^ (1 << half), half);
        }
        self.free -= 1 << order;
        true
    }

    /// The bytes that the tables of a range of this length need at most.
    pub(super) const fn bytes(len: u64) -> usize {
        let (mut order, mut words) = (0, 0);
        while order < ORDERS {
            // A block more at each end may be cut.
            words += levels((len >> order) as usize + 2).2;
            order += 1;
        }
        words * 8
    }

    /// Frees a block, which came from [`take`](Self::take) or consists of such blocks.
    pub(super) fn give(&mut self, mut number: u64, order: u8) {
        self.free += 1 << order;
        let mut order = usize::from(order);
        while order < ORDERS - 1 {
            let other = number ^ (1 << order);
            // A buddy that lies outside the range, at least in part, was never free.
            if !self.covers(other) || !self.remove(other, order) {
                break;
            }
            number &= other;
            order += 1;
        }
        self.insert(number, order);
    }

    /// The block is free.
    fn insert(&mut self, number: u64, order: usize) {
        let index = self.index(number, order);
        self.orders[order].insert(index);
        self.with_blocks |= 1 << order;
    }

    /// The block is no longer free. Returns whether it was.
    fn remove(&mut self, number: u64, order: usize) -> bool {
        let index = self.index(number, order);
        let blocks = &mut self.orders[order];
        let was_free = blocks.remove(index);
        if was_free && blocks.is_empty() {
            self.with_blocks &= !(1 << order);
        }
        was_free
    }

    /// The number of the block of this order that contains the frame.
    fn index(&self, number: u64, order: usize) -> usize {
        ((number >> order) - (self.first >> order)) as usize
    }
}

/// A set of numbers: a bitmap, with a bit above for each word that is not 0, and so on up to one
/// word.
#[derive(Default)]
struct Bits {
    /// The bitmap first, then its upper levels.
    words: Slice<u64>,
    /// The start of each level.
    levels: [usize; LEVELS],
    depth: usize,
}

/// Enough levels for the largest possible number of frames.
const LEVELS: usize = 9;
const _: () = assert!(64u64.pow(LEVELS as u32) >= Frame::LIMIT);

/// The start of each level for this many numbers, the number of levels, and the number of words.
const fn levels(numbers: usize) -> ([usize; LEVELS], usize, usize) {
    let (mut levels, mut depth, mut total, mut len) = ([0; LEVELS], 0, 0, numbers);
    while depth < LEVELS {
        levels[depth] = total;
        len = len.div_ceil(64);
        (total, depth) = (total + len, depth + 1);
        if len <= 1 {
            break;
        }
    }
    (levels, depth, total)
}

impl Bits {
    fn try_new(storage: &Storage, numbers: usize) -> Result<Bits, NoMemory> {
        let (levels, depth, total) = levels(numbers);
        Ok(Bits { words: storage.slice(total, |_| 0)?, levels, depth })
    }

    fn contains(&self, number: usize) -> bool {
        let word = self.words.get(number / 64);
        word.is_some_and(|word| word & 1 << (number % 64) != 0)
    }

    fn insert(&mut self, mut number: usize) {
        for level in 0..self.depth {
            let Some(word) = self.words.get_mut(self.levels[level] + number / 64) else { return };
            let before = *word;
            *word |= 1 << (number % 64);
            if before != 0 {
                return;
            }
            number /= 64;
        }
    }

    /// Returns whether the number was in the set.
    fn remove(&mut self, mut number: usize) -> bool {
        for level in 0..self.depth {
            let Some(word) = self.words.get_mut(self.levels[level] + number / 64) else {
                return false;
            };
            let bit = 1 << (number % 64);
            if *word & bit == 0 {
                return false;
            }
            *word &= !bit;
            if *word != 0 {
                return true;
            }
            number /= 64;
        }
        true
    }

    fn is_empty(&self) -> bool {
        let last = self.depth.checked_sub(1).and_then(|last| self.words.get(self.levels[last]));
        last.is_none_or(|word| *word == 0)
    }

    /// The least number.
    fn first(&self) -> Option<usize> {
        let mut number = 0;
        for level in (0..self.depth).rev() {
            let word = *self.words.get(self.levels[level] + number)?;
            if word == 0 {
                return None;
            }
            number = number * 64 + word.trailing_zeros() as usize;
        }
        Some(number)
    }
}

#[cfg(test)]
mod tests;
