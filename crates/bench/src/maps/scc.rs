//! `scc::TreeIndex`, from the last index of a range to its first and the value. It is read under a
//! guard that is held for a batch, or taken for each operation. A removed key stays in its leaf,
//! marked, until the leaf is cleared or split.
//!
//! It is made for lookups of exact keys. At the start of a range of keys it may have to look into
//! several children of a node. So a load takes 0.5 to several microseconds at 50,000 ranges and
//! more, depending on the shape of the tree.

use crate::case::Case;
use crate::peer::{Peer, Reader, Support, Writer, scan_down, scan_up};
use crate::workload::{Span, Value};
use scc::{Guard, TreeIndex};

type Map = TreeIndex<usize, (usize, Value)>;

#[derive(Clone)]
pub(crate) struct Index<const HELD: bool>(Map);

pub(crate) struct Reading<'a> {
    map: &'a Map,
    guard: Option<Guard>,
}

impl Reading<'_> {
    #[inline]
    fn guarded<T>(&self, read: impl FnOnce(&Map, &Guard) -> T) -> T {
        match &self.guard {
            Some(guard) => read(self.map, guard),
            None => read(self.map, &Guard::new()),
        }
    }
}

impl<const HELD: bool> Peer for Index<HELD> {
    const NAME: &'static str =
        if HELD { "scc TreeIndex, guard held" } else { "scc TreeIndex, each" };
    type Reader<'a> = Reading<'a>;
    type Writer<'a> = &'a Map;

    fn new() -> Self {
        Index(Map::new())
    }

    fn support(case: Case) -> Support {
        match case {
            Case::Load | Case::LoadDependent => Support::Own,
            case if case.is_gap() => Support::Scan,
            // These are one operation, or take a guard of their own.
            _ if HELD => Support::Missing,
            case => Support::without_gaps(case),
        }
    }

    fn reader(&self) -> Reading<'_> {
        Reading { map: &self.0, guard: HELD.then(Guard::new) }
    }

    fn writer(&mut self) -> &Map {
        &self.0
    }

    fn duplicate(&mut self) -> Option<Self> {
        Some(self.clone())
    }

    fn settle() {
        // The collector works when guards are dropped.
        for _ in 0..1024 {
            drop(Guard::new());
        }
    }
}

impl Reader for Reading<'_> {
    #[inline]
    fn load(&self, index: usize) -> Option<Value> {
        self.guarded(|map, guard| {
            let (_, &(start, value)) = map.range(index.., guard).next()?;
            (start <= index).then_some(value)
        })
    }

    fn each(&self, mut show: impl FnMut(usize, usize, Value)) {
        self.guarded(|map, guard| {
            for (&end, &(start, value)) in map.iter(guard) {
                show(start, end, value);
            }
        });
    }

    fn gap_up(&self, from: usize, size: usize, align: usize) -> usize {
        self.guarded(|map, guard| {
            let above = map.range(from.., guard);
            scan_up(above.map(|(&end, &(start, _))| (start, end)), from, size, align)
        })
    }

    fn gap_down(&self, to: usize, size: usize, align: usize) -> usize {
        self.guarded(|map, guard| {
            let over = map.range(to.., guard).next().filter(|&(_, &(start, _))| start <= to);
            let below = map.range(..to, guard).rev();
            let ranges = over.into_iter().chain(below);
            scan_down(ranges.map(|(&end, &(start, _))| (start, end)), to, size, align)
        })
    }
}

impl Writer for &Map {
    #[inline]
    fn insert(&mut self, span: Span) {
        let outcome = self.insert_sync(span.end, (span.start, span.value));
        assert!(outcome.is_ok());
    }

    #[inline]
    fn erase(&mut self, span: Span) {
        assert!(self.remove_sync(&span.end));
    }
}
