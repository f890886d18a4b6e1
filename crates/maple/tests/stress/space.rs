//! The layout of the stressed index space: blocks, each with one rule that always holds.

use std::ops::RangeInclusive;

/// The number of indices of a block.
pub(crate) const BLOCK: usize = 1 << 12;
/// The number of groups. A group is one block of each kind: fixed, covered, toggled, free.
pub(crate) const GROUPS: usize = if cfg!(miri) { 2 } else { 40 };
const KINDS: usize = 4;
/// The number of indices of a fixed entry; the same number after it is never mapped.
pub(crate) const FIXED: usize = 1 << 8;
/// The first index of the tail, which reaches to the largest index and is always covered.
pub(crate) const TAIL: usize = GROUPS * KINDS * BLOCK + FREE;
/// The length of the hole before the tail. It is longer than any other hole, and always there.
pub(crate) const FREE: usize = 8 * BLOCK;

/// A group of blocks.
#[derive(Clone, Copy)]
pub(crate) struct Group(pub(crate) usize);

impl Group {
    fn block(self, kind: usize) -> RangeInclusive<usize> {
        let first = (self.0 * KINDS + kind) * BLOCK;
        first..=first + BLOCK - 1
    }

    /// An entry that is never written again; the hole after it is never filled.
    pub(crate) fn fixed(self, i: usize) -> RangeInclusive<usize> {
        let first = self.block(0).start() + i % (BLOCK / FIXED / 2) * 2 * FIXED;
        first..=first + FIXED - 1
    }

    /// The entries of [`Group::fixed`], in order.
    pub(crate) fn all_fixed(self) -> impl Iterator<Item = RangeInclusive<usize>> {
        (0..BLOCK / FIXED / 2).map(move |i| self.fixed(i))
    }

    /// Stored to often, in any pieces, but never erased.
    pub(crate) fn covered(self) -> RangeInclusive<usize> {
        self.block(1)
    }

    /// Stored to and erased, in any pieces.
    pub(crate) fn toggled(self) -> RangeInclusive<usize> {
        self.block(2)
    }

    /// Never mapped.
    pub(crate) fn never(self) -> RangeInclusive<usize> {
        self.block(3)
    }
}

/// A xorshift generator: runs repeat, except for the interleaving of the threads.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % below
    }

    pub(crate) fn group(&mut self) -> Group {
        Group(self.roll(GROUPS))
    }

    /// A piece of a range: mostly small, sometimes most of it.
    pub(crate) fn piece(&mut self, range: &RangeInclusive<usize>) -> RangeInclusive<usize> {
        let length = (range.end() - range.start()).min(BLOCK - 1) + 1;
        let first = range.start() + self.roll(length);
        let most = if self.roll(8) == 0 { length } else { length / 32 };
        first..=(first + self.roll(most)).min(*range.end())
    }
}
