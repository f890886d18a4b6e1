//! `brie_tree::BTree`, from the last index of a range to its first and the value.
//!
//! The last index is the key because its search finds the first key at or above an index. There is
//! no step backwards except by cursors, which cost more. A cursor moves the last index of a range
//! in place. The map uses the vector instructions that it was compiled for, so it is at its best
//! only with `-Ctarget-cpu=native`.

use crate::case::Case;
use crate::peer::{Found, Peer, Reader, Support, Writer, scan_up};
use crate::workload::{Span, Value};
use brie_tree::BTree;
use brie_tree::nonmax::NonMaxU64;
use std::ops::Bound;

type Map = BTree<NonMaxU64, (usize, Value)>;

#[derive(Clone)]
pub(crate) struct Brie(Map);

/// An index as a key. Its branch is never taken, and nothing depends on it.
#[inline]
fn key(index: usize) -> NonMaxU64 {
    NonMaxU64::new(index as u64).expect("no index here is the largest of all")
}

impl Peer for Brie {
    const NAME: &'static str = "brie_tree";
    type Reader<'a> = &'a Map;
    type Writer<'a> = &'a mut Map;

    fn new() -> Self {
        Brie(Map::new())
    }

    fn support(case: Case) -> Support {
        match case {
            // It iterates upwards only.
            Case::GapDown | Case::RareGapDown => Support::Missing,
            Case::Lookup | Case::Find | Case::FindAny | Case::First => Support::Own,
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
        let (_, &(start, value)) = self.iter_from(Bound::Included(key(index))).next()?;
        (start <= index).then_some(value)
    }

    fn each(&self, mut show: impl FnMut(usize, usize, Value)) {
        for (end, &(start, value)) in self.iter() {
            show(start, end.get() as usize, value);
        }
    }

    #[inline]
    fn lookup(&self, index: usize) -> Found {
        self.find(index).filter(|span| span.start <= index)
    }

    #[inline]
    fn find(&self, index: usize) -> Found {
        let (end, &(start, value)) = self.iter_from(Bound::Included(key(index))).next()?;
        Some(Span { start, end: end.get() as usize, value })
    }

    #[inline]
    fn first(&self, index: usize) -> Found {
        self.find(index)
    }

    fn gap_up(&self, from: usize, size: usize, align: usize) -> usize {
        let above = self.iter_from(Bound::Included(key(from)));
        scan_up(above.map(|(end, &(start, _))| (start, end.get() as usize)), from, size, align)
    }
}

impl Writer for &mut Map {
    #[inline]
    fn insert(&mut self, span: Span) {
        let old = BTree::insert(self, key(span.end), (span.start, span.value));
        debug_assert!(old.is_none());
    }

    #[inline]
    fn erase(&mut self, span: Span) {
        let old = self.remove(key(span.end));
        assert!(old.is_some());
    }

    #[inline]
    fn resize(&mut self, span: Span, end: usize) {
        let mut cursor = self.cursor_mut_at(Bound::Included(key(span.end)));
        cursor.replace(key(end), (span.start, span.value));
    }

    /// One search, then steps from leaf to leaf.
    #[inline]
    fn erase_over(&mut self, spans: &[Span]) {
        let Some(first) = spans.first() else { return };
        let mut cursor = self.cursor_mut_at(Bound::Included(key(first.end)));
        for _ in spans {
            cursor.remove();
        }
    }
}
