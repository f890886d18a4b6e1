//! `nodit::NoditMap`. Insertion is the strict one, which refuses overlaps. Gaps are found by
//! scanning `overlapping`: its own `gaps_trimmed` also looks up both ends first, and only goes
//! upwards.

use crate::peer::{Peer, Reader, Writer, scan_down, scan_up};
use crate::workload::{Span, Value};
use nodit::interval::{ii, iu, ui};
use nodit::{Interval, NoditMap};

type Map = NoditMap<usize, Interval<usize>, Value>;

#[derive(Clone)]
pub(crate) struct Nodit(Map);

impl Peer for Nodit {
    const NAME: &'static str = "nodit";
    type Reader<'a> = &'a Map;
    type Writer<'a> = &'a mut Map;

    fn new() -> Self {
        Nodit(Map::new())
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
        self.get_at_point(&index).copied()
    }

    fn each(&self, mut show: impl FnMut(usize, usize, Value)) {
        for (range, &value) in self.iter() {
            show(*range.start(), *range.end(), value);
        }
    }

    fn gap_up(&self, from: usize, size: usize, align: usize) -> usize {
        let above = iu(from);
        scan_up(
            self.overlapping(&above).map(|(range, _)| (*range.start(), *range.end())),
            from,
            size,
            align,
        )
    }

    fn gap_down(&self, to: usize, size: usize, align: usize) -> usize {
        let below = ui(to);
        let ranges = self.overlapping(&below).rev();
        scan_down(ranges.map(|(range, _)| (*range.start(), *range.end())), to, size, align)
    }
}

impl Writer for &mut Map {
    #[inline]
    fn insert(&mut self, span: Span) {
        let outcome = self.insert_strict(ii(span.start, span.end), span.value);
        assert!(outcome.is_ok());
    }

    #[inline]
    fn erase(&mut self, span: Span) {
        let removed = self.remove_overlapping(&ii(span.start, span.end)).count();
        assert!(removed == 1);
    }

    #[inline]
    fn erase_over(&mut self, spans: &[Span]) {
        if let [first, .., last] = spans {
            let removed = self.remove_overlapping(&ii(first.start, last.end)).count();
            assert!(removed == spans.len());
        } else {
            spans.iter().for_each(|&span| self.erase(span));
        }
    }
}
