//! `BTreeMap` from a range's last index to its first and the value.
//!
//! By the last index, because the range that holds an index is then the first at or after it, and a scan
//! upwards begins with the same search; a scan downwards needs a second one. (By the first index it is the
//! other way round, and all else costs the same.) Insertion does not look for overlaps: it is for
//! those who know that there are none.

use crate::peer::{Peer, Reader, Writer, scan_down, scan_up};
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
        let (_, &(start, value)) = self.range(index..).next()?;
        (start <= index).then_some(value)
    }

    fn each(&self, mut show: impl FnMut(usize, usize, Value)) {
        for (&end, &(start, value)) in self.iter() {
            show(start, end, value);
        }
    }

    fn gap_up(&self, from: usize, size: usize) -> usize {
        scan_up(self.range(from..).map(|(&end, &(start, _))| (start, end)), from, size)
    }

    fn gap_down(&self, to: usize, size: usize) -> usize {
        // The first range that ends at or after `to` may begin before it.
        let over = self.range(to..).next().filter(|&(_, &(start, _))| start <= to);
        let below = self.range(..to).rev();
        scan_down(over.into_iter().chain(below).map(|(&end, &(start, _))| (start, end)), to, size)
    }
}

impl Writer for &mut Map {
    #[inline]
    fn insert(&mut self, span: Span) {
        let old = BTreeMap::insert(self, span.end, (span.start, span.value));
        debug_assert!(old.is_none());
    }

    #[inline]
    fn erase(&mut self, span: Span) {
        let old = self.remove(&span.end);
        assert!(old.is_some());
    }
}
