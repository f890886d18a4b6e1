//! `crossbeam_skiplist::SkipMap`, from the last index of a range to its first and the value. Each
//! operation pins the epoch. With a guard held over a batch of reads, that is a nested pin, which
//! costs less. The map cannot be copied.

use crate::case::Case;
use crate::peer::{Peer, Reader, Support, Writer, scan_down, scan_up};
use crate::workload::{Span, Value};
use crossbeam_epoch::Guard;
use crossbeam_skiplist::SkipMap;
use std::ops::Bound;

type Map = SkipMap<usize, (usize, Value)>;

pub(crate) struct Skips<const HELD: bool>(Map);

pub(crate) struct Reading<'a> {
    map: &'a Map,
    _guard: Option<Guard>,
}

impl<const HELD: bool> Peer for Skips<HELD> {
    const NAME: &'static str =
        if HELD { "crossbeam-skiplist, guard held" } else { "crossbeam-skiplist, each" };
    type Reader<'a> = Reading<'a>;
    type Writer<'a> = &'a Map;

    fn new() -> Self {
        Skips(Map::new())
    }

    fn support(case: Case) -> Support {
        match case {
            Case::Load | Case::LoadDependent => Support::Own,
            // These gain nothing by a guard, or are one operation.
            _ if HELD => Support::Missing,
            Case::Duplicate | Case::WriteAfterDuplicate => Support::Missing,
            case => Support::without_gaps(case),
        }
    }

    fn reader(&self) -> Reading<'_> {
        Reading { map: &self.0, _guard: HELD.then(crossbeam_epoch::pin) }
    }

    fn writer(&mut self) -> &Map {
        &self.0
    }

    fn duplicate(&mut self) -> Option<Self> {
        None
    }

    fn settle() {
        super::shared::flush();
    }
}

impl Reader for Reading<'_> {
    #[inline]
    fn load(&self, index: usize) -> Option<Value> {
        let entry = self.map.lower_bound(Bound::Included(&index))?;
        let (start, value) = *entry.value();
        (start <= index).then_some(value)
    }

    fn each(&self, mut show: impl FnMut(usize, usize, Value)) {
        for entry in self.map.iter() {
            let (start, value) = *entry.value();
            show(start, *entry.key(), value);
        }
    }

    fn gap_up(&self, from: usize, size: usize, align: usize) -> usize {
        let above = self.map.range(from..);
        scan_up(above.map(|entry| (entry.value().0, *entry.key())), from, size, align)
    }

    fn gap_down(&self, to: usize, size: usize, align: usize) -> usize {
        let over = self.map.lower_bound(Bound::Included(&to)).filter(|over| over.value().0 <= to);
        let below = self.map.range(..to).rev();
        let ranges = over.into_iter().chain(below);
        scan_down(ranges.map(|entry| (entry.value().0, *entry.key())), to, size, align)
    }
}

impl Writer for &Map {
    #[inline]
    fn insert(&mut self, span: Span) {
        SkipMap::insert(self, span.end, (span.start, span.value));
    }

    #[inline]
    fn erase(&mut self, span: Span) {
        let old = self.remove(&span.end);
        assert!(old.is_some());
    }
}
