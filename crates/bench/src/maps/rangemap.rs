//! `rangemap::RangeInclusiveMap`. Insertion overwrites ranges that it overlaps, and merges equal
//! values that touch (here none do). Gaps are found by scanning upwards. It cannot step down from
//! an index.

use crate::case::Case;
use crate::peer::{Peer, Reader, Support, Writer};
use crate::workload::{Span, Value};
use rangemap::RangeInclusiveMap;

type Map = RangeInclusiveMap<usize, Value>;

#[derive(Clone)]
pub(crate) struct Ranges(Map);

impl Peer for Ranges {
    const NAME: &'static str = "rangemap";
    type Reader<'a> = &'a Map;
    type Writer<'a> = &'a mut Map;

    fn new() -> Self {
        Ranges(Map::new())
    }

    fn support(case: Case) -> Support {
        match case {
            Case::GapDown | Case::RareGapDown => Support::Missing,
            case => Support::without_gaps(case),
        }
    }

    fn reader(&self) -> &Map {
        &self.0
    }

    fn writer(&mut self) -> &mut Map {
        &mut self.0
    }

    fn duplicate(&mut self) -> Option<Self> {
        Some(self.clone())
    }
}

impl Reader for &Map {
    #[inline]
    fn load(&self, index: usize) -> Option<Value> {
        self.get(&index).copied()
    }

    fn each(&self, mut show: impl FnMut(usize, usize, Value)) {
        for (range, &value) in self.iter() {
            show(*range.start(), *range.end(), value);
        }
    }

    fn gap_up(&self, from: usize, size: usize, align: usize) -> usize {
        self.gaps(&(from..=usize::MAX))
            .map(|gap| (gap.start().next_multiple_of(align), *gap.end()))
            .find(|&(start, end)| start <= end && end - start >= size - 1)
            .map_or(usize::MAX, |(start, _)| start)
    }

    fn gap_down(&self, _: usize, _: usize, _: usize) -> usize {
        unreachable!("`support` says that it is missing")
    }
}

impl Writer for &mut Map {
    #[inline]
    fn insert(&mut self, span: Span) {
        RangeInclusiveMap::insert(self, span.start..=span.end, span.value);
    }

    #[inline]
    fn erase(&mut self, span: Span) {
        self.remove(span.start..=span.end);
    }

    #[inline]
    fn resize(&mut self, span: Span, end: usize) {
        if end > span.end {
            RangeInclusiveMap::insert(self, span.end + 1..=end, span.value);
        } else {
            self.remove(end + 1..=span.end);
        }
    }

    #[inline]
    fn erase_over(&mut self, spans: &[Span]) {
        if let (Some(first), Some(last)) = (spans.first(), spans.last()) {
            self.remove(first.start..=last.end);
        }
    }
}
