//! `BTreeMap`, from the first index of a range to its last and the value.
//!
//! The first index is the key so that the last can be moved in place. The range that holds an index
//! is the last one that begins at or before it. A search with the last index as the key costs the
//! same. Insertion does not look for overlaps: the caller must know that there are none.

use crate::case::Case;
use crate::peer::{Found, Peer, Reader, Support, Writer, scan_down, scan_up};
use crate::workload::{Span, Value};
use std::collections::BTreeMap;

pub(crate) type Map = BTreeMap<usize, (usize, Value)>;

#[derive(Clone)]
pub(crate) struct Btree(Map);

impl Peer for Btree {
    const NAME: &'static str = "BTreeMap";
    type Reader<'a> = &'a Map;
    type Writer<'a> = &'a mut Map;

    fn new() -> Self {
        Btree(Map::new())
    }

    fn support(case: Case) -> Support {
        match case {
            Case::MapUnmap => Support::Scan,
            Case::Lookup | Case::FindBack | Case::FirstBack | Case::IterateBack => Support::Own,
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

/// The same map, with many ranges erased one by one by their keys, as before `extract_if`.
pub(crate) struct ByKey(Map);

/// Writes of [`ByKey`].
pub(crate) struct KeyWriter<'a>(&'a mut Map);

impl Peer for ByKey {
    const NAME: &'static str = crate::results::BY_KEY;
    type Reader<'a> = &'a Map;
    type Writer<'a> = KeyWriter<'a>;

    fn new() -> Self {
        ByKey(Map::new())
    }

    fn support(case: Case) -> Support {
        // The rest is as above.
        if case == Case::EraseOver { Support::Own } else { Support::Missing }
    }

    fn reader(&self) -> &Map {
        &self.0
    }

    fn writer(&mut self) -> KeyWriter<'_> {
        KeyWriter(&mut self.0)
    }
}

impl Writer for KeyWriter<'_> {
    fn insert(&mut self, span: Span) {
        Writer::insert(&mut self.0, span);
    }

    #[inline]
    fn erase(&mut self, span: Span) {
        Writer::erase(&mut self.0, span);
    }
}

/// The same map with the last index as the key, for searches upwards: the range at or after an
/// index is the first one that ends there or later.
pub(crate) struct ByEnd(Map);

/// Reads of [`ByEnd`].
pub(crate) struct EndReader<'a>(&'a Map);
/// Writes of [`ByEnd`].
pub(crate) struct EndWriter<'a>(&'a mut Map);

impl Peer for ByEnd {
    const NAME: &'static str = crate::results::BY_END;
    type Reader<'a> = EndReader<'a>;
    type Writer<'a> = EndWriter<'a>;

    fn new() -> Self {
        ByEnd(Map::new())
    }

    fn support(case: Case) -> Support {
        // The rest is as above.
        match case {
            Case::Find | Case::FindAny | Case::First => Support::Own,
            _ => Support::Missing,
        }
    }

    fn reader(&self) -> EndReader<'_> {
        EndReader(&self.0)
    }

    fn writer(&mut self) -> EndWriter<'_> {
        EndWriter(&mut self.0)
    }
}

impl Reader for EndReader<'_> {
    #[inline]
    fn load(&self, index: usize) -> Option<Value> {
        self.find(index).filter(|span| span.start <= index).map(|span| span.value)
    }

    fn each(&self, mut show: impl FnMut(usize, usize, Value)) {
        for (&end, &(start, value)) in self.0.iter() {
            show(start, end, value);
        }
    }

    #[inline]
    fn find(&self, index: usize) -> Found {
        let (&end, &(start, value)) = self.0.range(index..).next()?;
        Some(Span { start, end, value })
    }

    #[inline]
    fn first(&self, index: usize) -> Found {
        self.find(index)
    }
}

impl Writer for EndWriter<'_> {
    fn insert(&mut self, span: Span) {
        self.0.insert(span.end, (span.start, span.value));
    }

    fn erase(&mut self, span: Span) {
        self.0.remove(&span.end);
    }
}

impl Reader for &Map {
    #[inline]
    fn load(&self, index: usize) -> Option<Value> {
        let (_, &(end, value)) = self.range(..=index).next_back()?;
        (index <= end).then_some(value)
    }

    fn each(&self, mut show: impl FnMut(usize, usize, Value)) {
        for (&start, &(end, value)) in self.iter() {
            show(start, end, value);
        }
    }

    fn each_back(&self, mut show: impl FnMut(usize, usize, Value)) {
        for (&start, &(end, value)) in self.iter().rev() {
            show(start, end, value);
        }
    }

    #[inline]
    fn lookup(&self, index: usize) -> Found {
        self.find_back(index).filter(|span| index <= span.end)
    }

    #[inline]
    fn find_back(&self, index: usize) -> Found {
        let (&start, &(end, value)) = self.range(..=index).next_back()?;
        Some(Span { start, end, value })
    }

    #[inline]
    fn first_back(&self, index: usize) -> Found {
        self.find_back(index)
    }

    fn gap_up(&self, from: usize, size: usize, align: usize) -> usize {
        // The last range that begins below `from` may extend beyond it.
        let over = self.range(..from).next_back().filter(|&(_, &(end, _))| end >= from);
        let ranges = over.into_iter().chain(self.range(from..));
        scan_up(ranges.map(|(&start, &(end, _))| (start, end)), from, size, align)
    }

    fn gap_down(&self, to: usize, size: usize, align: usize) -> usize {
        let below = self.range(..=to).rev();
        scan_down(below.map(|(&start, &(end, _))| (start, end)), to, size, align)
    }
}

impl Writer for &mut Map {
    #[inline]
    fn insert(&mut self, span: Span) {
        let old = BTreeMap::insert(self, span.start, (span.end, span.value));
        debug_assert!(old.is_none());
    }

    #[inline]
    fn erase(&mut self, span: Span) {
        let old = self.remove(&span.start);
        assert!(old.is_some());
    }

    #[inline]
    fn resize(&mut self, span: Span, end: usize) {
        self.get_mut(&span.start).expect("it is there").0 = end;
    }

    #[inline]
    fn erase_over(&mut self, spans: &[Span]) {
        if let (Some(first), Some(last)) = (spans.first(), spans.last()) {
            let gone = self.extract_if(first.start..=last.start, |_, _| true).count();
            assert!(gone == spans.len());
        }
    }

    #[inline]
    fn place(&mut self, to: usize, size: usize, value: Value) -> Option<usize> {
        let start = (&**self).gap_down(to, size, crate::workload::PAGE);
        Writer::insert(self, Span { start, end: start + size - 1, value });
        Some(start)
    }
}
