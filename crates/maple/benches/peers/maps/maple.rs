//! Our tree: with one owner; shared, with a guard or the writer's lock held over a batch; and shared, with
//! a guard or the lock taken for each operation. Insertion is the one that refuses overlaps.

use crate::peer::{Case, Peer, Reader, Support, Writer};
use crate::workload::{PAGE, Span, Value};
use grace::{Epoch, Reclaim, Single};
use maple::{Global, MapleTree};

/// Written through `get_mut`.
pub(crate) struct Owned(MapleTree<Value, Single>);
/// The guard, or the lock, is held over a batch.
pub(crate) struct Shared(MapleTree<Value, Epoch>);
/// The simple interface: a guard, or the lock, for each operation.
pub(crate) struct SharedEach(MapleTree<Value, Epoch>);

/// Gaps are found by the index.
fn support(_: Case) -> Support {
    Support::Own
}

/// Brings what the epoch engine has put off to its end.
pub(crate) fn flush() {
    for _ in 0..8 {
        Epoch::pin().flush();
    }
}

impl Peer for Owned {
    const NAME: &'static str = "maple, one owner";
    type Reader<'a> = Held<'a, Single>;
    type Writer<'a> = maple::Writer<'a, Value, Single, Global>;

    fn new() -> Self {
        Owned(MapleTree::new())
    }

    fn support(case: Case) -> Support {
        support(case)
    }

    fn reader(&self) -> Held<'_, Single> {
        Held { tree: &self.0, guard: Single::pin() }
    }

    fn writer(&mut self) -> Self::Writer<'_> {
        self.0.get_mut()
    }

    fn duplicate(&mut self) -> Option<Self> {
        Some(Owned(self.0.get_mut().duplicate().expect("there is memory")))
    }
}

impl Peer for Shared {
    const NAME: &'static str = "maple, shared, held";
    type Reader<'a> = Held<'a, Epoch>;
    type Writer<'a> = maple::Writer<'a, Value, Epoch, Global>;

    fn new() -> Self {
        Shared(MapleTree::new())
    }

    fn support(case: Case) -> Support {
        support(case)
    }

    fn reader(&self) -> Held<'_, Epoch> {
        Held { tree: &self.0, guard: Epoch::pin() }
    }

    fn writer(&mut self) -> Self::Writer<'_> {
        self.0.lock()
    }

    fn duplicate(&mut self) -> Option<Self> {
        Some(Shared(self.0.duplicate().expect("there is memory")))
    }

    fn settle() {
        flush();
    }
}

impl Peer for SharedEach {
    const NAME: &'static str = "maple, shared, each";
    type Reader<'a> = &'a MapleTree<Value, Epoch>;
    type Writer<'a> = &'a MapleTree<Value, Epoch>;

    fn new() -> Self {
        SharedEach(MapleTree::new())
    }

    fn support(case: Case) -> Support {
        match case {
            // One operation: as when held.
            Case::Iterate | Case::Duplicate => Support::Missing,
            case => support(case),
        }
    }

    fn reader(&self) -> &MapleTree<Value, Epoch> {
        &self.0
    }

    fn writer(&mut self) -> &MapleTree<Value, Epoch> {
        &self.0
    }

    fn duplicate(&mut self) -> Option<Self> {
        None
    }

    fn settle() {
        flush();
    }
}

/// A tree under a guard.
pub(crate) struct Held<'a, R: Reclaim> {
    tree: &'a MapleTree<Value, R>,
    guard: R::Guard,
}

impl<R: Reclaim> Reader for Held<'_, R> {
    #[inline]
    fn load(&self, index: usize) -> Option<Value> {
        self.tree.load(&self.guard, index)
    }

    fn each(&self, mut show: impl FnMut(usize, usize, Value)) {
        for (range, value) in self.tree.iter(&self.guard, 0..=usize::MAX) {
            show(*range.start(), *range.end(), value);
        }
    }

    fn gap_up(&self, from: usize, size: usize) -> usize {
        self.tree.empty_area(&self.guard, from..=usize::MAX, size, PAGE).expect("there is a hole")
    }

    fn gap_down(&self, to: usize, size: usize) -> usize {
        self.tree.empty_area_rev(&self.guard, 0..=to, size, PAGE).expect("there is a hole")
    }
}

impl Reader for &MapleTree<Value, Epoch> {
    #[inline]
    fn load(&self, index: usize) -> Option<Value> {
        MapleTree::load(self, &self.pin(), index)
    }

    fn each(&self, show: impl FnMut(usize, usize, Value)) {
        Held { tree: self, guard: self.pin() }.each(show);
    }

    fn gap_up(&self, from: usize, size: usize) -> usize {
        Held { tree: self, guard: self.pin() }.gap_up(from, size)
    }

    fn gap_down(&self, to: usize, size: usize) -> usize {
        Held { tree: self, guard: self.pin() }.gap_down(to, size)
    }
}

impl<R: Reclaim> Writer for maple::Writer<'_, Value, R, Global> {
    #[inline]
    fn insert(&mut self, span: Span) {
        self.insert_range(span.start..=span.end, span.value).expect("the place is free");
    }

    #[inline]
    fn erase(&mut self, span: Span) {
        let old = maple::Writer::erase(self, span.start).expect("there is memory");
        assert!(old.is_some());
    }
}

impl Writer for &MapleTree<Value, Epoch> {
    #[inline]
    fn insert(&mut self, span: Span) {
        self.insert_range(span.start..=span.end, span.value).expect("the place is free");
    }

    #[inline]
    fn erase(&mut self, span: Span) {
        let old = MapleTree::erase(self, span.start).expect("there is memory");
        assert!(old.is_some());
    }
}
