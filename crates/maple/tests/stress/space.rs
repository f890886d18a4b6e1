//! The layout of the stressed index space: blocks, each with one rule that always holds.

use maple::Index;
use std::ops::RangeInclusive;

/// The number of indices of a block.
pub(crate) const BLOCK: Index = 1 << 12;
/// The number of groups. A group is one block of each kind: fixed, covered, toggled, free.
pub(crate) const GROUPS: Index = if cfg!(miri) { 2 } else { 40 };
const KINDS: Index = 4;
/// The number of indices of a fixed entry; the same number after it is never mapped.
pub(crate) const FIXED: Index = 1 << 8;
/// The first index of the tail, which reaches to the largest index and is always covered.
pub(crate) const TAIL: Index = GROUPS * KINDS * BLOCK + FREE;
/// The length of the hole before the tail. It is longer than any other hole, and always there.
///
/// Together with the blocks before it, it is sometimes shorter and sometimes longer than 2^32 where
/// that needs two words: a search that loads half of an old length and half of a new one fails.
pub(crate) const FREE: Index =
    if cfg!(target_pointer_width = "64") { 8 * BLOCK } else { (1 << 32) - BLOCK - BLOCK / 2 };

/// A group of blocks.
#[derive(Clone, Copy)]
pub(crate) struct Group(pub(crate) Index);

impl Group {
    fn block(self, kind: Index) -> RangeInclusive<Index> {
        let first = (self.0 * KINDS + kind) * BLOCK;
        first..=first + BLOCK - 1
    }

    /// An entry that is never written again; the hole after it is never filled.
    pub(crate) fn fixed(self, i: Index) -> RangeInclusive<Index> {
        let first = self.block(0).start() + i % (BLOCK / FIXED / 2) * 2 * FIXED;
        first..=first + FIXED - 1
    }

    /// The entries of [`Group::fixed`], in order.
    pub(crate) fn all_fixed(self) -> impl Iterator<Item = RangeInclusive<Index>> {
        (0..BLOCK / FIXED / 2).map(move |i| self.fixed(i))
    }

    /// Stored to often, in any pieces, but never erased.
    pub(crate) fn covered(self) -> RangeInclusive<Index> {
        self.block(1)
    }

    /// Stored to and erased, in any pieces.
    pub(crate) fn toggled(self) -> RangeInclusive<Index> {
        self.block(2)
    }

    /// Never mapped.
    pub(crate) fn never(self) -> RangeInclusive<Index> {
        self.block(3)
    }
}

/// A xorshift generator: runs repeat, except for the interleaving of the threads.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, below: Index) -> Index {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as Index % below
    }

    pub(crate) fn group(&mut self) -> Group {
        Group(self.roll(GROUPS))
    }

    /// A piece of a range: mostly small, sometimes most of it.
    pub(crate) fn piece(&mut self, range: &RangeInclusive<Index>) -> RangeInclusive<Index> {
        let length = (range.end() - range.start()).min(BLOCK - 1) + 1;
        let first = range.start() + self.roll(length);
        let most = if self.roll(8) == 0 { length } else { length / 32 };
        first..=(first + self.roll(most)).min(*range.end())
    }
}
