//! A buddy allocator whose state never grows: a bit for each block that there can be.
//!
//! A block of order `k` is 2^`k` frames from a multiple of 2^`k` on. A bit says that the block is
//! free as a whole, and is no part of a larger one that is. Taking one finds the lowest block of
//! the smallest order that will do, and halves it until it is as small as was asked for; giving one
//! back joins it with its other half, its *buddy*, as long as that is free.
//!
//! # Why not a crate
//! Freeing memory must not need memory, and must not fail. Known crates keep their free blocks in
//! sets on the heap, which end the program when the heap gives out, or in lists within the free
//! memory itself, which are searched from end to end for the buddy. This needs two bits a frame,
//! got once, and is as quick as it was full before. It takes the same block as
//! `buddy_system_allocator` would; the tests compare them call by call.
//!
//! # Cost
//! An order: a word for each 64-fold of the range (5 up to 2^30 frames, 9 at most) to find the
//! lowest; one word, or two, to take or give. At most one order after the other.

use super::MAX_ORDER;
use crate::Frame;
use alloc::boxed::Box;
use alloc::collections::TryReserveError;
use alloc::vec::Vec;

const ORDERS: usize = MAX_ORDER as usize + 1;

/// Frames that follow one another.
pub(super) struct Buddy {
    first: u64,
    len: u64,
    free: u64,
    orders: [Bits; ORDERS],
}

impl Buddy {
    /// All of them free. Allocates.
    pub(super) fn try_new(first: u64, len: u64) -> Result<Buddy, TryReserveError> {
        let mut buddy = Buddy { first, len, free: 0, orders: Default::default() };
        for order in 0..ORDERS {
            let blocks = buddy.index(first + len.saturating_sub(1), order) + 1;
            buddy.orders[order] = Bits::try_new(blocks)?;
        }
        let (mut at, end) = (first, first + len);
        while at < end {
            // As large as its place and what is left allow.
            let order = at.trailing_zeros().min((end - at).ilog2()).min(MAX_ORDER.into());
            buddy.orders[order as usize].insert(buddy.index(at, order as usize));
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

    /// How many frames are free.
    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// The smallest order from this one on of which a block is free.
    pub(super) fn smallest(&self, order: u8) -> Option<u8> {
        (order..=MAX_ORDER).find(|order| self.orders[usize::from(*order)].first().is_some())
    }

    /// The first frame of a block of this order.
    pub(super) fn take(&mut self, order: u8) -> Option<u64> {
        let from = usize::from(self.smallest(order)?);
        let index = self.orders[from].first()?;
        self.orders[from].remove(index);
        let number = ((self.first >> from) + index as u64) << from;
        for half in (usize::from(order)..from).rev() {
            let upper = self.index(number + (1 << half), half);
            self.orders[half].insert(upper);
        }
        self.free -= 1 << order;
        Some(number)
    }

    /// Takes back a block, which came from [`take`](Self::take), or consists of such.
    pub(super) fn give(&mut self, mut number: u64, order: u8) {
        self.free += 1 << order;
        let mut order = usize::from(order);
        while order < ORDERS - 1 {
            let other = number ^ (1 << order);
            // A buddy that lies outside, wholly or in part, was never free.
            if !self.covers(other) || !self.orders[order].remove(self.index(other, order)) {
                break;
            }
            number &= other;
            order += 1;
        }
        let index = self.index(number, order);
        self.orders[order].insert(index);
    }

    /// The number of the block of this order that a frame lies in.
    fn index(&self, number: u64, order: usize) -> usize {
        ((number >> order) - (self.first >> order)) as usize
    }
}

/// A set of numbers, with a bit for each word of bits that is not 0, and so on up to one word.
#[derive(Default)]
struct Bits {
    /// The bits first, then those about them.
    words: Box<[u64]>,
    /// Where each level begins.
    levels: [usize; LEVELS],
    depth: usize,
}

/// As many as there can be frames need: no range is too long.
const LEVELS: usize = 9;
const _: () = assert!(64u64.pow(LEVELS as u32) >= Frame::LIMIT);

/// Where each level begins that so many numbers need, how many levels these are, and how many
/// words.
fn levels(numbers: usize) -> ([usize; LEVELS], usize, usize) {
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
    fn try_new(numbers: usize) -> Result<Bits, TryReserveError> {
        let (levels, depth, total) = levels(numbers);
        let mut words = Vec::new();
        words.try_reserve_exact(total)?;
        words.resize(total, 0);
        Ok(Bits { words: words.into_boxed_slice(), levels, depth })
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

    /// Returns whether it was in.
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

    /// The least.
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
