//! The interface of a map under test.

use crate::case::Case;
use crate::workload::{Span, Value};

/// The support of a map for a case.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Support {
    /// By an operation of its own.
    Own,
    /// By scanning range after range.
    Scan,
    /// Missing, or no better than scanning from one end of the map.
    Missing,
}

impl Support {
    /// The support of maps without a gap index, which are scanned, and without searches that return
    /// ranges.
    pub(crate) fn without_gaps(case: Case) -> Support {
        if case.is_gap() {
            Support::Scan
        } else if case.is_adverse_gap() || case.is_by_range() || case == Case::MapUnmap {
            Support::Missing
        } else {
            Support::Own
        }
    }
}

/// A map under test.
pub(crate) trait Peer: Sized {
    /// The name in tables.
    const NAME: &'static str;

    type Reader<'a>: Reader
    where
        Self: 'a;
    type Writer<'a>: Writer
    where
        Self: 'a;

    fn new() -> Self;

    /// The support for a case.
    fn support(case: Case) -> Support {
        Support::without_gaps(case)
    }

    /// Begins a batch of reads. The reader may hold a guard for the batch.
    fn reader(&self) -> Self::Reader<'_>;

    /// Begins a batch of writes. The writer may hold a lock for the batch.
    fn writer(&mut self) -> Self::Writer<'_>;

    /// A copy of the map. `None` if it has no such operation.
    fn duplicate(&mut self) -> Option<Self> {
        None
    }

    /// The bytes by the map's own account, if it allocates from a pool that outlives it. Otherwise
    /// the bytes that it requests from the allocator count.
    fn bytes(&self) -> Option<usize> {
        None
    }

    /// Makes deferred frees, within the time of the writes that deferred them.
    fn settle() {}
}

/// A map that can be written while other threads read or write it.
pub(crate) trait Concurrent: Peer + Sync {
    /// Begins a batch of writes like [`Peer::writer`], through a shared reference.
    fn concurrent_writer(&self) -> Self::Writer<'_>;
}

/// A range and its value, if one was found.
pub(crate) type Found = Option<Span>;

/// A batch of reads. Those with a body are missing in some maps.
pub(crate) trait Reader {
    /// The value at an index.
    fn load(&self, index: usize) -> Option<Value>;

    /// Calls `show` with every range and its value, in ascending order.
    fn each(&self, show: impl FnMut(usize, usize, Value));

    /// As `each`, in descending order.
    fn each_back(&self, _show: impl FnMut(usize, usize, Value)) {
        unreachable!("{MISSING}")
    }

    /// As `each`, by a cursor.
    fn each_by_cursor(&self, _show: impl FnMut(usize, usize, Value)) {
        unreachable!("{MISSING}")
    }

    /// The range that holds an index.
    fn lookup(&self, _index: usize) -> Found {
        unreachable!("{MISSING}")
    }

    /// The range that holds an index, or the next one.
    fn find(&self, _index: usize) -> Found {
        unreachable!("{MISSING}")
    }

    /// The range that holds an index, or the previous one.
    fn find_back(&self, _index: usize) -> Found {
        unreachable!("{MISSING}")
    }

    /// As `find`, by the first step of an iterator.
    fn first(&self, _index: usize) -> Found {
        unreachable!("{MISSING}")
    }

    /// As `find_back`, by the first step of an iterator downwards.
    fn first_back(&self, _index: usize) -> Found {
        unreachable!("{MISSING}")
    }

    /// The first range that begins after an index, by a cursor at the index.
    fn cursor_next(&self, _index: usize) -> Found {
        unreachable!("{MISSING}")
    }

    /// The last range that ends before an index, by a cursor at the index.
    fn cursor_prev(&self, _index: usize) -> Found {
        unreachable!("{MISSING}")
    }

    /// The start of the lowest hole of `size` at or above `from`, at a multiple of `align`. There
    /// is one.
    fn gap_up(&self, _from: usize, _size: usize, _align: usize) -> usize {
        unreachable!("{MISSING}")
    }

    /// The start of the highest hole of `size` that ends at or below `to`. There is one.
    fn gap_down(&self, _to: usize, _size: usize, _align: usize) -> usize {
        unreachable!("{MISSING}")
    }
}

const MISSING: &str = "`support` says that it is missing";

/// A batch of writes.
pub(crate) trait Writer {
    /// Inserts a range. No range is there.
    fn insert(&mut self, span: Span);

    /// Erases a range, which is there.
    fn erase(&mut self, span: Span);

    /// Moves the last index of a range, which is there. The room is free, and `end` is not below
    /// the start.
    fn resize(&mut self, span: Span, end: usize) {
        self.erase(span);
        self.insert(Span { end, ..span });
    }

    /// Erases adjacent ranges, which are there, with nothing else between them.
    fn erase_over(&mut self, spans: &[Span]) {
        spans.iter().for_each(|&span| self.erase(span));
    }

    /// Stores a value in the highest hole of `size` up to `to`, and returns its start. `None` if
    /// the map has no such operation.
    fn place(&mut self, _to: usize, _size: usize, _value: Value) -> Option<usize> {
        None
    }
}

/// [`Reader::gap_up`] for maps without a gap index. `ranges` are those that end at or above `from`,
/// ascending.
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

/// [`Reader::gap_down`] for maps without a gap index. `ranges` are those that begin at or below
/// `to`, descending.
pub(crate) fn scan_down(
    ranges: impl Iterator<Item = (usize, usize)>,
    to: usize,
    size: usize,
    align: usize,
) -> usize {
    // The start, if the space below `top` were free.
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
