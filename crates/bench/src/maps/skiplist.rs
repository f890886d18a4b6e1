//! `crossbeam_skiplist::SkipMap`, from the last index of a range to its first and the value. Each
//! operation pins the epoch. A batch of reads holds a guard, so that these are nested pins, which
//! cost less. The map cannot be copied.

use crate::case::Case;
use crate::peer::{Peer, Reader, Support, Writer, scan_down, scan_up};
use crate::workload::{Span, Value};
use crossbeam_epoch::Guard;
use crossbeam_skiplist::SkipMap;
use std::ops::Bound;

type Map = SkipMap<usize, (usize, Value)>;

pub(crate) struct Skips(Map);

pub(crate) struct Held<'a> {
    map: &'a Map,
    _guard: Guard,
}

impl Peer for Skips {
    const NAME: &'static str = "crossbeam-skiplist, guard held";
    type Reader<'a> = Held<'a>;
    type Writer<'a> = &'a Map;

    fn new() -> Self {
        Skips(Map::new())
    }

    fn support(case: Case) -> Support {
        match case {
            Case::Duplicate | Case::WriteAfterDuplicate => Support::Missing,
            case => Support::without_gaps(case),
        }
    }

    fn reader(&self) -> Held<'_> {
        Held { map: &self.0, _guard: crossbeam_epoch::pin() }
    }

    fn writer(&mut self) -> &Map {
        &self.0
    }

    fn settle() {
        super::shared::flush();
    }
}

impl Reader for Held<'_> {
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
