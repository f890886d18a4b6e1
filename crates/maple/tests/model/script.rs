//! What is done to a tree, as data: for proptest to shrink and for the fuzzer to read from bytes.
//!
//! Places are numbers of cells. The lower half of the cells begins at index 0, the upper half ends
//! at the largest index, and between them lies one huge gap; so every script meets both ends.

#[cfg(fuzzing)]
use arbitrary::Arbitrary;

/// Cells in all.
pub(crate) const CELLS: u16 = 512;

/// A range of cells.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(fuzzing, derive(Arbitrary))]
pub(crate) struct Cells {
    /// The first.
    pub(crate) from: u16,
    /// How many more.
    pub(crate) more: u16,
    /// Leave out the first index and the last index, if the cells are larger.
    pub(crate) trim: (bool, bool),
}

/// How the right to write is got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(fuzzing, derive(Arbitrary))]
pub(crate) enum Hold {
    /// `get_mut`.
    Alone,
    /// The tree's lock or the token; alone where the tree cannot be shared.
    Shared,
}

/// A search for free space.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(fuzzing, derive(Arbitrary))]
pub(crate) struct Area {
    /// Inside these.
    pub(crate) bounds: Cells,
    /// Free indices.
    pub(crate) size: u16,
    /// Power of two of the alignment.
    pub(crate) align: u8,
    /// The highest place.
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
    /// Write cursors only, as the next three.
    Store(Cells),
    Erase,
    Preallocate(Cells),
    /// The next store or erase has only so many allocations.
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
    /// Moves the end of the entry that holds a cell to another, with so many allocations if it must
    /// fail.
    SetEnd(u16, u16, Option<u8>),
    /// Makes a hole.
    EraseRange(Cells),
    /// Stores one cell in every so many, from one end or the other.
    InsertHole(Cells, u8, bool),
    /// Erases the entries of a range one by one, from one end or the other.
    Drain(Cells, bool),
    /// Removes everything.
    Clear,
    /// Finds free space and stores there.
    Alloc(Area),
    /// Allocates one index after the one before.
    Cyclic(Cells),
    /// Allocates ahead.
    Preallocate(Cells),
    /// Allocates ahead, then stores (or erases) with no memory left.
    Prepared(Cells, bool),
    /// Allocates ahead for an entry's whole range, then erases it with no memory left.
    PreparedErase(u16),
    /// A store (or a hole) with so many allocations.
    Failing(u8, Cells, bool),
    /// Copies the tree, with so many allocations if it must fail, and writes to the copy.
    Duplicate(Option<u8>, Cells),
    /// Looks at everything about a cell.
    Look(u16),
    /// Iterates, each bit taking from the back or the front.
    Iterate(Cells, u64),
    /// Searches.
    Gap(Area),
    /// A cursor and its moves.
    Cursor(u16, Vec<Move>),
}

/// What one writer does, and one reader after it.
#[derive(Clone, Debug)]
#[cfg_attr(fuzzing, derive(Arbitrary))]
pub(crate) struct Session {
    /// How the writer holds the tree.
    pub(crate) hold: Hold,
    /// What it does.
    pub(crate) ops: Vec<Op>,
    /// The moves of a reader's cursor after it, and where that starts, or goes on from its last
    /// pause.
    pub(crate) reader: (Option<u16>, Vec<Move>),
}

impl Cells {
    /// First and last cell.
    pub(crate) fn ends(self) -> (u16, u16) {
        let from = self.from % CELLS;
        (from, from.saturating_add(self.more).min(CELLS - 1))
    }
}

/// How large the cells are: 2 to that power; or, from 56 on, each larger than the one before, from
/// single indices at the ends of the index range to most of it in the middle.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale(pub(crate) u32);

impl Scale {
    /// Where a cell of the lower half begins.
    fn start(self, cell: u16) -> usize {
        let cell = usize::from(cell);
        // Where an index has 32 bits, half of the cells fill at most half of them.
        let (most, steps) = if usize::BITS == 64 { (55, 5) } else { (usize::BITS - 10, 10) };
        if self.0 < 56 {
            cell << self.0.min(most)
        } else {
            ((steps + cell % steps) << (cell / steps)) - steps
        }
    }

    /// The first index of a cell.
    pub(crate) fn first(self, cell: u16) -> usize {
        let cell = cell % CELLS;
        if cell < CELLS / 2 { self.start(cell) } else { usize::MAX - self.last(CELLS - 1 - cell) }
    }

    /// The last index of a cell.
    pub(crate) fn last(self, cell: u16) -> usize {
        let cell = cell % CELLS;
        if cell < CELLS / 2 {
            self.start(cell + 1) - 1
        } else {
            usize::MAX - self.first(CELLS - 1 - cell)
        }
    }

    /// First and last index of a range of cells.
    pub(crate) fn range(self, cells: Cells) -> (usize, usize) {
        let (from, to) = cells.ends();
        let (first, last) = (self.first(from), self.last(to));
        // Something is left.
        let trim = |trim: bool| usize::from(trim && last - first > 1);
        (first + trim(cells.trim.0), last - trim(cells.trim.1))
    }
}

/// What happens to one of several trees that come from each other.
#[derive(Clone, Debug)]
#[cfg_attr(fuzzing, derive(Arbitrary))]
pub(crate) enum Event {
    /// It is written to and read.
    Session(Session),
    /// It is duplicated, if there are not too many.
    Duplicate,
    /// It ends, if it is not the last.
    End,
}
