//! A sorted list of address ranges. Ranges that touch are one.
//!
//! For few ranges, of which most are added next to the last: an insertion is a search and a move.

use alloc::vec::Vec;
use core::ops::Range;

/// Ranges that neither overlap nor touch, in order.
#[derive(Default)]
pub(crate) struct Ranges(Vec<(usize, usize)>);

impl Ranges {
    pub(crate) fn new() -> Self {
        Ranges(Vec::new())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Makes room for one more. Returns false if there is no memory.
    pub(crate) fn reserve(&mut self) -> bool {
        self.0.try_reserve(1).is_ok()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.0.iter().map(|&(start, end)| start..end)
    }

    /// The first that ends at `at` or above it.
    fn from(&self, at: usize) -> usize {
        self.0.partition_point(|&(_, end)| end < at)
    }

    /// Adds a range, which may overlap others. The caller has [reserved](Self::reserve) room.
    pub(crate) fn insert(&mut self, range: Range<usize>) {
        let first = self.from(range.start);
        let behind = first + self.0[first..].partition_point(|&(start, _)| start <= range.end);
        match self.0[first..behind] {
            [] => self.0.insert(first, (range.start, range.end)),
            [(start, _), ..] => {
                let end = self.0[behind - 1].1;
                self.0[first] = (start.min(range.start), end.max(range.end));
                self.0.drain(first + 1..behind);
            }
        }
    }

    /// The lowest that overlaps this range.
    pub(crate) fn overlapping(&self, range: &Range<usize>) -> Option<Range<usize>> {
        let first = self.0.partition_point(|&(_, end)| end <= range.start);
        let &(start, end) = self.0.get(first)?;
        (start < range.end).then_some(start..end)
    }

    /// The range with those that overlap or touch it.
    pub(crate) fn extended(&self, range: Range<usize>) -> Range<usize> {
        let first = self.from(range.start);
        let touching = self.0[first..].iter().take_while(|&&(start, _)| start <= range.end);
        touching.fold(range.clone(), |all, &(start, end)| all.start.min(start)..all.end.max(end))
    }

    /// From the start of the first to the end of the last.
    pub(crate) fn hull(&self) -> Option<Range<usize>> {
        Some(self.0.first()?.0..self.0.last()?.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(list: &[(usize, usize)]) -> Ranges {
        let mut ranges = Ranges::new();
        for &(start, end) in list {
            assert!(ranges.reserve());
            ranges.insert(start..end);
        }
        ranges
    }

    #[test]
    fn ranges_that_touch_are_one() {
        let ranges = of(&[(6, 8), (2, 4), (10, 12), (4, 6)]);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [2..8, 10..12]);
        assert_eq!(of(&[(2, 4), (6, 8), (10, 12), (3, 11)]).0, [(2, 12)]);
        assert_eq!(of(&[(2, 4), (6, 8), (2, 3)]).0, [(2, 4), (6, 8)]);
        assert_eq!((ranges.overlapping(&(0..2)), ranges.overlapping(&(8..10))), (None, None));
        assert_eq!(ranges.overlapping(&(0..20)), Some(2..8));
        assert_eq!(ranges.overlapping(&(8..11)), Some(10..12));
        assert_eq!(ranges.extended(8..10), 2..12);
        assert_eq!(ranges.extended(20..21), 20..21);
        assert_eq!(ranges.hull(), Some(2..12));
        assert_eq!(of(&[]).hull(), None);
    }
}
