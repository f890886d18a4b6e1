//! `rangemap::RangeInclusiveMap`. It overwrites what an insertion overlaps, and merges equal values that
//! touch (here none do). Its gaps are found by scanning upwards; it has no way down from an index.

use crate::peer::{Case, Peer, Reader, Support, Writer};
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
            Case::GapUp | Case::RareGapUp => Support::Scan,
            Case::GapDown | Case::RareGapDown => Support::Missing,
            _ => Support::Own,
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

    fn gap_up(&self, from: usize, size: usize) -> usize {
        self.gaps(&(from..=usize::MAX))
            .find(|gap| gap.end() - gap.start() >= size - 1)
            .map_or(usize::MAX, |gap| *gap.start())
    }

    fn gap_down(&self, _: usize, _: usize) -> usize {
        unreachable!("said to be missing")
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
}
