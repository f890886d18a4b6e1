//! Tests of whole trees against a slow and simple model.

mod ahead;
mod compound;
mod differences;
mod erases;
mod failure;
mod far;
mod model;
mod near;
mod shapes;
mod shared;
mod sharing;
mod toggles;

use crate::Index;
use crate::testing::{Flaky, Owned};
use crate::{MapleTree, Writer};
use grace::Reclaim;
use std::ops::RangeInclusive;
use std::vec::Vec;

/// A small random number generator (xorshift) with a seed, so that runs can be repeated.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll<N: Number>(&mut self, below: N) -> N {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        N::from_u64((self.0 >> 11) % below.to_u64())
    }
}

/// A number to roll: of things, or an index.
pub(crate) trait Number {
    fn to_u64(self) -> u64;
    fn from_u64(number: u64) -> Self;
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Number for $number {
            fn to_u64(self) -> u64 {
                self as u64
            }

            fn from_u64(number: u64) -> Self {
                number as Self
            }
        }
    )*};
}

numbers!(i32, u32, u64, usize);

/// The model: the index range in cells of equal size, with the value of each. The last cell extends
/// to the largest index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Cells(pub(crate) Vec<Option<u64>>);

pub(crate) const CELL: Index = 0x1000;

impl Cells {
    pub(crate) fn new(n: usize) -> Self {
        Cells(std::vec![None; n])
    }

    pub(crate) fn range(&self, from: usize, to: usize) -> RangeInclusive<Index> {
        let end = if to + 1 == self.0.len() { Index::MAX } else { to as Index * CELL + (CELL - 1) };
        from as Index * CELL..=end
    }

    pub(crate) fn set(&mut self, from: usize, to: usize, value: Option<u64>) {
        self.0[from..=to].fill(value);
    }

    /// The run of equal cells around a cell.
    pub(crate) fn run(&self, cell: usize) -> (usize, usize) {
        let same = |&other: &usize| self.0[other] == self.0[cell];
        let from = (0..=cell).rev().take_while(same).last().unwrap();
        let to = (cell..self.0.len()).take_while(same).last().unwrap();
        (from, to)
    }

    /// All runs: their ranges and values.
    pub(crate) fn runs(&self) -> Vec<(RangeInclusive<Index>, Option<u64>)> {
        let mut runs = Vec::new();
        let mut cell = 0;
        while cell < self.0.len() {
            let (_, to) = self.run(cell);
            runs.push((self.range(cell, to), self.0[cell]));
            cell = to + 1;
        }
        runs
    }

    pub(crate) fn entries(&self) -> Vec<(RangeInclusive<Index>, u64)> {
        self.runs().into_iter().filter_map(|(range, value)| Some((range, value?))).collect()
    }
}

pub(crate) type Tree<R> = MapleTree<Owned, R, Flaky>;

/// Checks that the tree is sound and holds what the cells hold.
pub(crate) fn check<R: Reclaim>(writer: &mut Writer<'_, Owned, R, Flaky>, cells: &Cells) {
    if let Err(violation) = writer.validate() {
        panic!("{violation}\n{}", writer.dump());
    }
    let runs = cells.runs();
    let entries = runs.iter().cloned().filter_map(|(range, value)| Some((range, value?)));
    let found: Vec<_> = writer.iter(0..=Index::MAX).map(|(range, value)| (range, *value)).collect();
    assert_eq!(found, entries.collect::<Vec<_>>(), "\n{}", writer.dump());
    let mut back: Vec<_> =
        writer.iter(0..=Index::MAX).rev().map(|(range, value)| (range, *value)).collect();
    back.reverse();
    assert_eq!(back, found);
    let mut cursor = writer.cursor(0);
    let mut ranges = Vec::new();
    while let Some((range, value)) = cursor.next_range(Index::MAX) {
        ranges.push((range, value.copied()));
    }
    assert_eq!(ranges, runs);
    let stats = writer.stats();
    assert_eq!((stats.entries, stats.entries + stats.holes), (found.len(), ranges.len()));
    assert_eq!(stats.height, writer.height());
    assert_eq!(writer.largest_gap(), longest_hole(&runs), "\n{}", writer.dump());
}

/// The length of the longest hole among the runs of cells.
pub(crate) fn longest_hole(runs: &[(RangeInclusive<Index>, Option<u64>)]) -> Index {
    let holes = runs.iter().filter(|(_, value)| value.is_none());
    holes.map(|(hole, _)| (hole.end() - hole.start()).saturating_add(1)).max().unwrap_or(0)
}
