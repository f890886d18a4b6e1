//! Scripts of operations, as data: proptest shrinks them, and the fuzzer reads them from bytes.
//!
//! Places are numbers of cells. The lower half of the cells begins at index 0, the upper half ends
//! at the largest index, and one huge gap lies between them. So every script touches both ends of
//! the index range.

#[cfg(fuzzing)]
use arbitrary::Arbitrary;
use maple::Index;

/// The number of cells.
pub(crate) const CELLS: u16 = 512;

/// A range of cells.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(fuzzing, derive(Arbitrary))]
pub(crate) struct Cells {
    /// The first cell.
    pub(crate) from: u16,
    /// The number of further cells.
    pub(crate) more: u16,
    /// Leave out the first index and the last index, if the cells have more.
    pub(crate) trim: (bool, bool),
}

/// The way to get a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(fuzzing, derive(Arbitrary))]
pub(crate) enum Hold {
    /// `get_mut`.
    Alone,
    /// The tree's lock or the token; `get_mut` if the tree cannot be shared.
    Shared,
}

/// A search for free space.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(fuzzing, derive(Arbitrary))]
pub(crate) struct Area {
    /// The bounds of the search.
    pub(crate) bounds: Cells,
    /// The number of free indices, less one.
    pub(crate) size: u16,
    /// The exponent of the alignment.
    pub(crate) align: u8,
    /// Whether to search for the highest place.
    pub(crate) high: bool,
}

/// A move of a cursor.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(fuzzing, derive(Arbitrary))]
#[allow(missing_docs)]
pub(crate) enum Move {
    Walk,
    Set(u16),
    Reset,
    Pause,
    Next(u16),
    Prev(u16),
    Find(u16),
    FindRev(u16),
    NextRange(u16),
    PrevRange(u16),
    Area(Area),
    /// For write cursors only, like the next three.
    Store(Cells),
    Erase,
    Preallocate(Cells),
    /// The next store or erase may make this many allocations.
    Budget(u8),
}

/// One operation.
#[derive(Clone, Debug)]
#[cfg_attr(fuzzing, derive(Arbitrary))]
pub(crate) enum Op {
    /// Stores over a range.
    Store(Cells),
    /// Stores where free.
    Insert(Cells),
    /// Erases the entry that holds a cell.
    Erase(u16),
    /// Moves the end of the entry that holds a cell to another cell, with a budget of allocations
    /// if it is to fail.
    SetEnd(u16, u16, Option<u8>),
    /// Makes a hole.
    EraseRange(Cells),
    /// Stores one cell in every few, upwards or downwards.
    InsertHole(Cells, u8, bool),
    /// Erases the entries of a range one by one, upwards or downwards.
    Drain(Cells, bool),
    /// Removes everything.
    Clear,
    /// Finds free space and stores there.
    Alloc(Area),
    /// Allocates one index after the previous one.
    Cyclic(Cells),
    /// Preallocates for a range.
    Preallocate(Cells),
    /// Preallocates, then stores (or erases) without any memory.
    Prepared(Cells, bool),
    /// Preallocates for an entry's whole range, then erases it without any memory.
    PreparedErase(u16),
    /// A store (or an erase) with a budget of allocations.
    Failing(u8, Cells, bool),
    /// Duplicates the tree, with a budget of allocations if it is to fail, and writes to the
    /// duplicate.
    Duplicate(Option<u8>, Cells),
    /// Reads a cell in every way.
    Look(u16),
    /// Iterates; each bit selects the back or the front.
    Iterate(Cells, u64),
    /// Searches for free space.
    Gap(Area),
    /// A cursor and its moves.
    Cursor(u16, Vec<Move>),
}

/// The operations of one writer, and then of one reader.
#[derive(Clone, Debug)]
#[cfg_attr(fuzzing, derive(Arbitrary))]
pub(crate) struct Session {
    /// The way to get the writer.
    pub(crate) hold: Hold,
    /// The writer's operations.
    pub(crate) ops: Vec<Op>,
    /// The moves of the reader's cursor, and its first cell; without one it resumes at its last
    /// pause.
    pub(crate) reader: (Option<u16>, Vec<Move>),
}

impl Cells {
    /// The first and the last cell.
    pub(crate) fn ends(self) -> (u16, u16) {
        let from = self.from % CELLS;
        (from, from.saturating_add(self.more).min(CELLS - 1))
    }
}

/// The size of a cell: 2 to that power. From 56 on, each cell is larger than the one before: from
/// single indices at the ends of the index range to most of it in the middle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale(pub(crate) u32);

impl Scale {
    /// The first index of a cell of the lower half.
    fn start(self, cell: u16) -> Index {
        let cell = Index::from(cell);
        // Where an index has 32 bits, half of the cells must fill at most half of the index range.
        let (most, steps) = if Index::BITS == 64 { (55, 5) } else { (Index::BITS - 10, 10) };
        if self.0 < 56 {
            cell << self.0.min(most)
        } else {
            ((steps + cell % steps) << (cell / steps)) - steps
        }
    }

    /// The first index of a cell.
    pub(crate) fn first(self, cell: u16) -> Index {
        let cell = cell % CELLS;
        if cell < CELLS / 2 { self.start(cell) } else { Index::MAX - self.last(CELLS - 1 - cell) }
    }

    /// The last index of a cell.
    pub(crate) fn last(self, cell: u16) -> Index {
        let cell = cell % CELLS;
        if cell < CELLS / 2 {
            self.start(cell + 1) - 1
        } else {
            Index::MAX - self.first(CELLS - 1 - cell)
        }
    }

    /// The first and the last index of a range of cells.
    pub(crate) fn range(self, cells: Cells) -> (Index, Index) {
        let (from, to) = cells.ends();
        let (first, last) = (self.first(from), self.last(to));
        // At least one index must be left.
        let trim = |trim: bool| Index::from(trim && last - first > 1);
        (first + trim(cells.trim.0), last - trim(cells.trim.1))
    }
}

/// An event for one of several duplicated trees.
#[derive(Clone, Debug)]
#[cfg_attr(fuzzing, derive(Arbitrary))]
pub(crate) enum Event {
    /// It is written to and read.
    Session(Session),
    /// It is duplicated, unless there are too many trees.
    Duplicate,
    /// It is dropped, unless it is the last tree.
    End,
}
