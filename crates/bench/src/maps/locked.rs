//! `BTreeMap` behind a reader-writer lock that is taken for each operation.

use super::btree::Map;
use crate::case::Case;
use crate::peer::{Concurrent, Peer, Reader, Support, Writer};
use crate::workload::{Span, Value};
use std::sync::{PoisonError, RwLock};

pub(crate) struct Locked(RwLock<Map>);

impl Locked {
    fn read<T>(&self, read: impl FnOnce(&&Map) -> T) -> T {
        read(&&*self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write<T>(&self, write: impl FnOnce(&mut &mut Map) -> T) -> T {
        write(&mut &mut *self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Peer for Locked {
    const NAME: &'static str = "RwLock<BTreeMap>, each";
    type Reader<'a> = &'a Self;
    type Writer<'a> = &'a Self;

    fn new() -> Self {
        Locked(RwLock::new(Map::new()))
    }

    fn support(case: Case) -> Support {
        match case {
            // The whole case is under one lock, so it equals the map itself.
            Case::Iterate | Case::Duplicate | Case::WriteAfterDuplicate => Support::Missing,
            // A lock costs the same as for a load.
            case if case.is_by_range() => Support::Missing,
            case => super::btree::Btree::support(case),
        }
    }

    fn reader(&self) -> &Self {
        self
    }

    fn writer(&mut self) -> &Self {
        self
    }
}

impl Concurrent for Locked {
    fn concurrent_writer(&self) -> &Self {
        self
    }
}

impl Reader for &Locked {
    #[inline]
    fn load(&self, index: usize) -> Option<Value> {
        self.read(|map| map.load(index))
    }

    fn each(&self, show: impl FnMut(usize, usize, Value)) {
        self.read(|map| map.each(show));
    }

    fn gap_up(&self, from: usize, size: usize, align: usize) -> usize {
        self.read(|map| map.gap_up(from, size, align))
    }

    fn gap_down(&self, to: usize, size: usize, align: usize) -> usize {
        self.read(|map| map.gap_down(to, size, align))
    }
}

impl Writer for &Locked {
    #[inline]
    fn insert(&mut self, span: Span) {
        self.write(|map| map.insert(span));
    }

    #[inline]
    fn erase(&mut self, span: Span) {
        self.write(|map| map.erase(span));
    }
    #[inline]
    fn resize(&mut self, span: Span, end: usize) {
        self.write(|map| map.resize(span, end));
    }

    #[inline]
    fn erase_over(&mut self, spans: &[Span]) {
        self.write(|map| map.erase_over(spans));
    }

    #[inline]
    fn place(&mut self, to: usize, size: usize, value: Value) -> Option<usize> {
        self.write(|map| map.place(to, size, value))
    }
}
