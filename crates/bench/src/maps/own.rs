//! Our tree with one owner, and the code that all uses of our tree share. Insertion refuses
//! overlaps.
//!
//! It needs no operating system: the freestanding program measures this map.

use crate::case::Case;
use crate::peer::{Found, Peer, Reader, Support, Writer};
use crate::workload::{PAGE, Span, Value};
use core::ops::RangeInclusive;
use grace::{Reclaim, Single};
use maple::{MapleTree, NodeAlloc, Nodes};

/// A source of nodes, with the names of the maps that have it.
pub(crate) trait Source: NodeAlloc {
    const OWNED: &'static str;
    const SHARED: &'static str;
    const EACH: &'static str;
}

impl Source for Nodes {
    const OWNED: &'static str = "maple, one owner";
    const SHARED: &'static str = "maple, shared, held";
    const EACH: &'static str = "maple, shared, each";
}

/// Written through `get_mut`.
pub(crate) struct Owned<A: NodeAlloc = Nodes>(MapleTree<Value, Single, A>);

impl<A: Source> Peer for Owned<A> {
    const NAME: &'static str = A::OWNED;
    type Reader<'a> = Held<'a, Single, A>;
    type Writer<'a> = maple::Writer<'a, Value, Single, A>;

    fn new() -> Self {
        Owned(MapleTree::new_in())
    }

    /// Gaps are found by the gap index.
    fn support(_: Case) -> Support {
        Support::Own
    }

    fn reader(&self) -> Held<'_, Single, A> {
        Held { tree: &self.0, guard: Single::pin() }
    }

    fn writer(&mut self) -> Self::Writer<'_> {
        self.0.get_mut()
    }

    fn bytes(&self) -> Option<usize> {
        Some(self.0.stats(&Single::pin()).bytes)
    }

    fn duplicate(&mut self) -> Option<Self> {
        Some(Owned(self.0.get_mut().duplicate().expect("there is memory")))
    }
}

/// A tree under a guard.
pub(crate) struct Held<'a, R: Reclaim, A: NodeAlloc> {
    pub(crate) tree: &'a MapleTree<Value, R, A>,
    pub(crate) guard: R::Guard,
}

#[inline(always)]
fn span((range, value): (RangeInclusive<usize>, Value)) -> Span {
    Span { start: *range.start(), end: *range.end(), value }
}

impl<R: Reclaim, A: NodeAlloc> Reader for Held<'_, R, A> {
    #[inline]
    fn load(&self, index: usize) -> Option<Value> {
        self.tree.load(&self.guard, index)
    }

    fn each(&self, mut show: impl FnMut(usize, usize, Value)) {
        for (range, value) in self.tree.iter(&self.guard, 0..=usize::MAX) {
            show(*range.start(), *range.end(), value);
        }
    }

    fn each_back(&self, mut show: impl FnMut(usize, usize, Value)) {
        for (range, value) in self.tree.iter(&self.guard, 0..=usize::MAX).rev() {
            show(*range.start(), *range.end(), value);
        }
    }

    fn each_by_cursor(&self, mut show: impl FnMut(usize, usize, Value)) {
        let mut cursor = self.tree.cursor(&self.guard, 0);
        while let Some((range, value)) = cursor.find(usize::MAX) {
            show(*range.start(), *range.end(), value);
        }
    }

    #[inline]
    fn lookup(&self, index: usize) -> Found {
        self.tree.lookup(&self.guard, index).map(span)
    }

    #[inline]
    fn find(&self, index: usize) -> Found {
        self.tree.find(&self.guard, index..=usize::MAX).map(span)
    }

    #[inline]
    fn find_back(&self, index: usize) -> Found {
        self.tree.find_rev(&self.guard, 0..=index).map(span)
    }

    #[inline]
    fn first(&self, index: usize) -> Found {
        self.tree.iter(&self.guard, index..=usize::MAX).next().map(span)
    }

    #[inline]
    fn first_back(&self, index: usize) -> Found {
        self.tree.iter(&self.guard, 0..=index).next_back().map(span)
    }

    #[inline]
    fn cursor_next(&self, index: usize) -> Found {
        self.tree.cursor(&self.guard, index).next(usize::MAX).map(span)
    }

    #[inline]
    fn cursor_prev(&self, index: usize) -> Found {
        self.tree.cursor(&self.guard, index).prev(0).map(span)
    }

    fn gap_up(&self, from: usize, size: usize, align: usize) -> usize {
        self.tree.empty_area(&self.guard, from..=usize::MAX, size, align).expect("there is a hole")
    }

    fn gap_down(&self, to: usize, size: usize, align: usize) -> usize {
        self.tree.empty_area_rev(&self.guard, 0..=to, size, align).expect("there is a hole")
    }
}

impl<R: Reclaim, A: NodeAlloc> Writer for maple::Writer<'_, Value, R, A> {
    #[inline]
    fn insert(&mut self, span: Span) {
        self.insert_range(span.start..=span.end, span.value).expect("the place is free");
    }

    #[inline]
    fn erase(&mut self, span: Span) {
        let old = maple::Writer::erase(self, span.start).expect("there is memory");
        assert!(old.is_some());
    }

    #[inline]
    fn resize(&mut self, span: Span, end: usize) {
        let moved = self.set_end(span.start, end).expect("there is memory, and room");
        assert!(moved.is_some());
    }

    #[inline]
    fn erase_over(&mut self, spans: &[Span]) {
        if let (Some(first), Some(last)) = (spans.first(), spans.last()) {
            self.erase_range(first.start..=last.end).expect("there is memory");
        }
    }

    #[inline]
    fn place(&mut self, to: usize, size: usize, value: Value) -> Option<usize> {
        Some(self.alloc_rrange(0..=to, size, PAGE, value).expect("there is a hole"))
    }
}
