//! Our tree shared: with a guard or the writer's lock held over a batch, or taken for each
//! operation.

use super::own::{Held, Source};
use crate::case::Case;
use crate::peer::{Concurrent, Peer, Reader, Support, Writer};
use crate::workload::{Span, Value};
use grace::{Epoch, Reclaim};
use maple::{MapleTree, NodeAlloc, Nodes};

/// The guard, or the lock, is held over a batch.
pub(crate) struct Shared<A: NodeAlloc = Nodes>(MapleTree<Value, Epoch, A>);
/// The simple interface: a guard, or the lock, for each operation.
pub(crate) struct SharedEach<A: NodeAlloc = Nodes>(MapleTree<Value, Epoch, A>);

/// Runs all frees that the epoch engine has deferred.
pub(crate) fn flush() {
    for _ in 0..8 {
        Epoch::pin().flush();
    }
}

impl<A: Source> Peer for Shared<A> {
    const NAME: &'static str = A::SHARED;
    type Reader<'a> = Held<'a, Epoch, A>;
    type Writer<'a> = maple::Writer<'a, Value, Epoch, A>;

    fn new() -> Self {
        Shared(MapleTree::new_in())
    }

    fn support(_: Case) -> Support {
        Support::Own
    }

    fn reader(&self) -> Held<'_, Epoch, A> {
        Held { tree: &self.0, guard: Epoch::pin() }
    }

    fn writer(&mut self) -> Self::Writer<'_> {
        self.0.lock()
    }

    fn bytes(&self) -> Option<usize> {
        Some(self.0.stats(&Epoch::pin()).bytes)
    }

    fn duplicate(&mut self) -> Option<Self> {
        Some(Shared(self.0.duplicate().expect("there is memory")))
    }

    fn settle() {
        flush();
    }
}

impl<A: Source> Concurrent for Shared<A> {
    fn concurrent_writer(&self) -> Self::Writer<'_> {
        self.0.lock()
    }
}

impl<A: Source> Peer for SharedEach<A> {
    const NAME: &'static str = A::EACH;
    type Reader<'a> = &'a MapleTree<Value, Epoch, A>;
    type Writer<'a> = &'a MapleTree<Value, Epoch, A>;

    fn new() -> Self {
        SharedEach(MapleTree::new_in())
    }

    fn support(case: Case) -> Support {
        match case {
            // The case is one operation, so it equals the held one.
            Case::Iterate | Case::Duplicate | Case::WriteAfterDuplicate => Support::Missing,
            // A guard costs the same as for a load.
            case if case.is_by_range() => Support::Missing,
            _ => Support::Own,
        }
    }

    fn reader(&self) -> &MapleTree<Value, Epoch, A> {
        &self.0
    }

    fn writer(&mut self) -> &MapleTree<Value, Epoch, A> {
        &self.0
    }

    fn bytes(&self) -> Option<usize> {
        Some(self.0.stats(&Epoch::pin()).bytes)
    }

    fn settle() {
        flush();
    }
}

impl<A: Source> Concurrent for SharedEach<A> {
    fn concurrent_writer(&self) -> Self::Writer<'_> {
        &self.0
    }
}

impl<A: NodeAlloc> Reader for &MapleTree<Value, Epoch, A> {
    #[inline]
    fn load(&self, index: usize) -> Option<Value> {
        MapleTree::load(self, &self.pin(), index)
    }

    fn each(&self, show: impl FnMut(usize, usize, Value)) {
        Held { tree: self, guard: self.pin() }.each(show);
    }

    fn gap_up(&self, from: usize, size: usize, align: usize) -> usize {
        Held { tree: self, guard: self.pin() }.gap_up(from, size, align)
    }

    fn gap_down(&self, to: usize, size: usize, align: usize) -> usize {
        Held { tree: self, guard: self.pin() }.gap_down(to, size, align)
    }
}

impl<A: NodeAlloc> Writer for &MapleTree<Value, Epoch, A> {
    #[inline]
    fn insert(&mut self, span: Span) {
        self.lock().insert(span);
    }

    #[inline]
    fn erase(&mut self, span: Span) {
        Writer::erase(&mut self.lock(), span);
    }

    #[inline]
    fn resize(&mut self, span: Span, end: usize) {
        self.lock().resize(span, end);
    }

    #[inline]
    fn erase_over(&mut self, spans: &[Span]) {
        self.lock().erase_over(spans);
    }

    #[inline]
    fn place(&mut self, to: usize, size: usize, value: Value) -> Option<usize> {
        self.lock().place(to, size, value)
    }
}
