//! What a map must do to be measured, and how it says that it cannot.

use crate::case::Case;
use crate::workload::{Span, Value};

/// How a map does a case.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Support {
    /// By an operation of its own.
    Own,
    /// By stepping from range to range.
    Scan,
    /// Not at all, or not better than from one end of the map.
    Missing,
}

impl Support {
    /// Of most maps, which know nothing of gaps and are scanned.
    pub(crate) fn without_gaps(case: Case) -> Support {
        if case.is_gap() {
            Support::Scan
        } else if case.is_adverse_gap() || case == Case::MapUnmap {
            Support::Missing
        } else {
            Support::Own
        }
    }
}

/// A map under test.
pub(crate) trait Peer: Sized {
    /// As it stands in tables.
    const NAME: &'static str;

    type Reader<'a>: Reader
    where
        Self: 'a;
    type Writer<'a>: Writer
    where
        Self: 'a;

    fn new() -> Self;

    /// How it does a case.
    fn support(case: Case) -> Support {
        Support::without_gaps(case)
    }

    /// Begins a batch of reads; what it takes is held for the batch.
    fn reader(&self) -> Self::Reader<'_>;

    /// Begins a batch of writes; what it takes is held for the batch.
    fn writer(&mut self) -> Self::Writer<'_>;

    /// A copy of all of it; `None` if it has no such operation.
    fn duplicate(&mut self) -> Option<Self>;

    /// Bytes by the map's own account, if it allocates from a pool of its own that outlives it;
    /// else those are counted that it asks of the allocator.
    fn bytes(&self) -> Option<usize> {
        None
    }

    /// Frees what has been put off. Timed with the writes that put it off.
    fn settle() {}
}

/// A map that can be written while others read or write it.
pub(crate) trait Beside: Peer + Sync {
    /// Begins a batch of writes, as [`Peer::writer`].
    fn writer_beside(&self) -> Self::Writer<'_>;
}

/// A batch of reads.
pub(crate) trait Reader {
    /// The value at an index.
    fn load(&self, index: usize) -> Option<Value>;

    /// Shows every range and its value, in ascending order.
    fn each(&self, show: impl FnMut(usize, usize, Value));

    /// The start of the lowest hole of `size` at or above `from`, at a multiple of `align`. There
    /// is one.
    fn gap_up(&self, from: usize, size: usize, align: usize) -> usize;

    /// The start of the highest hole of `size` up to `to` (which it may hold). There is one.
    fn gap_down(&self, to: usize, size: usize, align: usize) -> usize;
}

/// A batch of writes.
pub(crate) trait Writer {
    /// Inserts a range where there is none.
    fn insert(&mut self, span: Span);

    /// Erases a range that is there.
    fn erase(&mut self, span: Span);

    /// Moves the last index of a range that is there. The room is free; `end` is not below the
    /// start.
    fn resize(&mut self, span: Span, end: usize) {
        self.erase(span);
        self.insert(Span { end, ..span });
    }

    /// Erases neighbours that are there, and there is nothing else between them.
    fn erase_over(&mut self, spans: &[Span]) {
        spans.iter().for_each(|&span| self.erase(span));
    }

    /// Stores a value in the highest hole of `size` up to `to`, and returns where that begins;
    /// `None` if the map has no such operation.
    fn place(&mut self, _to: usize, _size: usize, _value: Value) -> Option<usize> {
        None
    }
}

/// [`Reader::gap_up`] for maps that know nothing of gaps: `ranges` are those that end at or above
/// `from`, ascending.
pub(crate) fn scan_up(
    ranges: impl Iterator<Item = (usize, usize)>,
    from: usize,
    size: usize,
    align: usize,
) -> usize {
    let mut at = from.next_multiple_of(align);
    for (start, end) in ranges {
        if start >= at && start - at >= size {
            break;
        }
        at = (end + 1).next_multiple_of(align);
    }
    at
}

/// [`Reader::gap_down`] for the same: `ranges` are those that begin at or below `to`, descending.
pub(crate) fn scan_down(
    ranges: impl Iterator<Item = (usize, usize)>,
    to: usize,
    size: usize,
    align: usize,
) -> usize {
    // Where it would begin, if the run below `top` were free.
    let place = |top: usize| top.saturating_sub(size) / align * align;
    let mut at = place(to + 1);
    for (start, end) in ranges {
        if end < at {
            break;
        }
        at = place(start);
    }
    at
}
