//! How the stressed index space is laid out: blocks, each with one rule that always holds.

use std::ops::RangeInclusive;

/// Indices of a block.
pub(crate) const BLOCK: usize = 1 << 12;
/// Blocks of a kind, one after the other: fixed, covered, toggled, free, fixed, and so on.
pub(crate) const GROUPS: usize = if cfg!(miri) { 2 } else { 40 };
const KINDS: usize = 4;
/// Indices of a fixed entry; as many again after it are never mapped.
pub(crate) const FIXED: usize = 1 << 8;
/// The tail: from here to the largest index, covered all the time.
pub(crate) const TAIL: usize = GROUPS * KINDS * BLOCK + FREE;
/// The hole before the tail, longer than any other can be; it is there all the time.
pub(crate) const FREE: usize = 8 * BLOCK;

/// A block's place.
#[derive(Clone, Copy)]
pub(crate) struct Group(pub(crate) usize);

impl Group {
    fn block(self, kind: usize) -> RangeInclusive<usize> {
        let first = (self.0 * KINDS + kind) * BLOCK;
        first..=first + BLOCK - 1
    }

    /// Entries that are never written again, with holes that are never filled.
    pub(crate) fn fixed(self, i: usize) -> RangeInclusive<usize> {
        let first = self.block(0).start() + i % (BLOCK / FIXED / 2) * 2 * FIXED;
        first..=first + FIXED - 1
    }

    /// The entries of [`Group::fixed`], in order.
    pub(crate) fn all_fixed(self) -> impl Iterator<Item = RangeInclusive<usize>> {
        (0..BLOCK / FIXED / 2).map(move |i| self.fixed(i))
    }

    /// Stored over and over, in any pieces, but never erased.
    pub(crate) fn covered(self) -> RangeInclusive<usize> {
        self.block(1)
    }

    /// Stored and erased, in any pieces.
    pub(crate) fn toggled(self) -> RangeInclusive<usize> {
        self.block(2)
    }

    /// Never mapped.
    pub(crate) fn never(self) -> RangeInclusive<usize> {
        self.block(3)
    }
}

/// Numbers by xorshift: runs repeat as far as the threads do.
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

    /// A piece of a range: mostly small, now and then most of it.
    pub(crate) fn piece(&mut self, range: &RangeInclusive<usize>) -> RangeInclusive<usize> {
        let length = (range.end() - range.start()).min(BLOCK - 1) + 1;
        let first = range.start() + self.roll(length);
        let most = if self.roll(8) == 0 { length } else { length / 32 };
        first..=(first + self.roll(most)).min(*range.end())
    }
}
