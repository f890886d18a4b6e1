//! What a map must do to be measured, and how it says that it cannot.

use crate::workload::{Span, Value};

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Case {
    Load,
    LoadDependent,
    Iterate,
    InsertRandom,
    InsertAscending,
    Erase,
    Move,
    GapUp,
    GapDown,
    RareGapUp,
    RareGapDown,
    Duplicate,
}

impl Case {
    pub(crate) const ALL: [Case; 12] = [
        Case::Load,
        Case::LoadDependent,
        Case::Iterate,
        Case::InsertRandom,
        Case::InsertAscending,
        Case::Erase,
        Case::Move,
        Case::GapUp,
        Case::GapDown,
        Case::RareGapUp,
        Case::RareGapDown,
        Case::Duplicate,
    ];

    /// A short name, for files and filters.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Case::Load => "load",
            Case::LoadDependent => "load-dependent",
            Case::Iterate => "iterate",
            Case::InsertRandom => "insert-random",
            Case::InsertAscending => "insert-ascending",
            Case::Erase => "erase",
            Case::Move => "erase+insert",
            Case::GapUp => "gap-up",
            Case::GapDown => "gap-down",
            Case::RareGapUp => "rare-gap-up",
            Case::RareGapDown => "rare-gap-down",
            Case::Duplicate => "duplicate",
        }
    }

    /// What one operation is.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Case::Load => "the entry at a random index; independent keys",
            Case::LoadDependent => "the same; each key depends on the last result",
            Case::Iterate => "one step of an iteration over everything",
            Case::InsertRandom => "one insertion of a build from nothing, in random order",
            Case::InsertAscending => "the same in ascending order",
            Case::Erase => "one removal of a tear-down to nothing, in random order",
            Case::Move => "erase a random range and insert one elsewhere",
            Case::GapUp => "the lowest hole of 2 pages above a random index",
            Case::GapDown => "the highest hole of 2 pages below a random index",
            Case::RareGapUp => "the lowest hole of 256 pages (one in 1,024) above a random index",
            Case::RareGapDown => {
                "the highest hole of 256 pages (one in 1,024) below a random index"
            }
            Case::Duplicate => "a copy of the whole map, for each entry",
        }
    }

    fn is_gap(self) -> bool {
        matches!(self, Case::GapUp | Case::GapDown | Case::RareGapUp | Case::RareGapDown)
    }
}

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

    /// How it does a case. Most maps know nothing of gaps and are scanned.
    fn support(case: Case) -> Support {
        if case.is_gap() { Support::Scan } else { Support::Own }
    }

    /// Begins a batch of reads; what it takes is held for the batch.
    fn reader(&self) -> Self::Reader<'_>;

    /// Begins a batch of writes; what it takes is held for the batch.
    fn writer(&mut self) -> Self::Writer<'_>;

    /// A copy of all of it; `None` if it has no such operation.
    fn duplicate(&mut self) -> Option<Self>;

    /// Frees what has been put off. Timed with the writes that put it off.
    fn settle() {}
}

/// A batch of reads.
pub(crate) trait Reader {
    /// The value at an index.
    fn load(&self, index: usize) -> Option<Value>;

    /// Shows every range and its value, in ascending order.
    fn each(&self, show: impl FnMut(usize, usize, Value));

    /// The start of the lowest hole of `size` at or above `from`. There is one.
    fn gap_up(&self, from: usize, size: usize) -> usize;

    /// The start of the highest hole of `size` up to `to` (which it may hold). There is one.
    fn gap_down(&self, to: usize, size: usize) -> usize;
}

/// A batch of writes.
pub(crate) trait Writer {
    /// Inserts a range where there is none.
    fn insert(&mut self, span: Span);

    /// Erases a range that is there.
    fn erase(&mut self, span: Span);
}

/// [`Reader::gap_up`] for maps that know nothing of gaps: `ranges` are those that end at or above `from`,
/// ascending.
pub(crate) fn scan_up(
    ranges: impl Iterator<Item = (usize, usize)>,
    from: usize,
    size: usize,
) -> usize {
    let mut at = from;
    for (start, end) in ranges {
        if start >= at && start - at >= size {
            break;
        }
        at = end + 1;
    }
    at
}

/// [`Reader::gap_down`] for the same: `ranges` are those that begin at or below `to`, descending.
pub(crate) fn scan_down(
    ranges: impl Iterator<Item = (usize, usize)>,
    to: usize,
    size: usize,
) -> usize {
    // One past the free run.
    let mut at = to + 1;
    for (start, end) in ranges {
        if end < at && at - end > size {
            break;
        }
        at = start;
    }
    at - size
}
