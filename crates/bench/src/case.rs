//! The cases: the kinds of work that are measured.

/// One kind of work, timed for each map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Case {
    Load,
    LoadDependent,
    Lookup,
    Find,
    FindAny,
    FindBack,
    First,
    FirstBack,
    CursorNext,
    CursorPrev,
    Iterate,
    IterateBack,
    CursorStep,
    InsertRandom,
    InsertAscending,
    Erase,
    Move,
    Resize,
    EraseOver,
    GapUp,
    GapDown,
    RareGapUp,
    RareGapDown,
    ShortGapUp,
    ShortGapDown,
    SkewedGapUp,
    SkewedGapDown,
    MapUnmap,
    Duplicate,
    WriteAfterDuplicate,
}

impl Case {
    pub(crate) const ALL: [Case; 30] = [
        Case::Load,
        Case::LoadDependent,
        Case::Lookup,
        Case::Find,
        Case::FindAny,
        Case::FindBack,
        Case::First,
        Case::FirstBack,
        Case::CursorNext,
        Case::CursorPrev,
        Case::Iterate,
        Case::IterateBack,
        Case::CursorStep,
        Case::InsertRandom,
        Case::InsertAscending,
        Case::Erase,
        Case::Move,
        Case::Resize,
        Case::EraseOver,
        Case::GapUp,
        Case::GapDown,
        Case::RareGapUp,
        Case::RareGapDown,
        Case::ShortGapUp,
        Case::ShortGapDown,
        Case::SkewedGapUp,
        Case::SkewedGapDown,
        Case::MapUnmap,
        Case::Duplicate,
        Case::WriteAfterDuplicate,
    ];

    /// A short name, for files and filters.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Case::Load => "load",
            Case::LoadDependent => "load-dependent",
            Case::Lookup => "lookup",
            Case::Find => "find",
            Case::FindAny => "find-any",
            Case::FindBack => "find-back",
            Case::First => "iterate-first",
            Case::FirstBack => "iterate-back-first",
            Case::CursorNext => "cursor-next",
            Case::CursorPrev => "cursor-prev",
            Case::Iterate => "iterate",
            Case::IterateBack => "iterate-back",
            Case::CursorStep => "cursor-step",
            Case::InsertRandom => "insert-random",
            Case::InsertAscending => "insert-ascending",
            Case::Erase => "erase",
            Case::Move => "erase+insert",
            Case::Resize => "resize",
            Case::EraseOver => "erase-over-16",
            Case::GapUp => "gap-up",
            Case::GapDown => "gap-down",
            Case::RareGapUp => "rare-gap-up",
            Case::RareGapDown => "rare-gap-down",
            Case::ShortGapUp => "short-gap-up",
            Case::ShortGapDown => "short-gap-down",
            Case::SkewedGapUp => "skewed-gap-up",
            Case::SkewedGapDown => "skewed-gap-down",
            Case::MapUnmap => "mmap+munmap",
            Case::Duplicate => "duplicate",
            Case::WriteAfterDuplicate => "write-after-duplicate",
        }
    }

    /// The case of that name.
    pub(crate) fn named(name: &str) -> Option<Case> {
        Case::ALL.into_iter().find(|case| case.name() == name)
    }

    /// One operation of the case, in words.
    pub(crate) fn about(self) -> &'static str {
        match self {
            Case::Load => "the entry at a random index; keys are independent",
            Case::LoadDependent => "the same; each key depends on the last result",
            Case::Lookup => "the range and the entry at a random index",
            Case::Find => "the range at or after a random index, which lies in a range",
            Case::FindAny => "the range at or after a random address, in a range or in a hole",
            Case::FindBack => "the range at or before a random address",
            Case::First => "an iterator from a random address upwards, and its first step",
            Case::FirstBack => "an iterator from a random address downwards, and its first step",
            Case::CursorNext => "a cursor at a random address, and its step to the next range",
            Case::CursorPrev => "a cursor at a random address, and its step to the previous range",
            Case::Iterate => "one step of an iteration over everything",
            Case::IterateBack => "the same downwards",
            Case::CursorStep => "the same by a cursor",
            Case::InsertRandom => "one insertion of a build from nothing, in random order",
            Case::InsertAscending => "the same in ascending order",
            Case::Erase => "one removal of a tear-down to nothing, in random order",
            Case::Move => "erase a random range, or insert one elsewhere, in turn",
            Case::Resize => "grow a random range by a page, or shrink it back",
            Case::EraseOver => "erase 16 neighbours at once",
            Case::GapUp => "the lowest hole of 2 pages above a random index",
            Case::GapDown => "the highest hole of 2 pages below a random index",
            Case::RareGapUp => "the lowest hole of 256 pages (one in 1,024) above a random index",
            Case::RareGapDown => {
                "the highest hole of 256 pages (one in 1,024) below a random index"
            }
            Case::ShortGapUp => {
                "the lowest hole of 256 pages upwards; all but the last are a page short"
            }
            Case::ShortGapDown => {
                "the highest hole of 256 pages downwards; all but the first are a page short"
            }
            Case::SkewedGapUp => {
                "the lowest aligned 2 MiB; all long holes but the last are misaligned"
            }
            Case::SkewedGapDown => {
                "the highest aligned 2 MiB; all long holes but the first are misaligned"
            }
            Case::MapUnmap => {
                "mmap and munmap: the highest hole of 2 pages below a random index, store, erase"
            }
            Case::Duplicate => "a copy of the whole map",
            Case::WriteAfterDuplicate => "the first removal from a copy of the whole map",
        }
    }

    /// Whether it is a search or a step that returns a range, other than an iteration upwards. A
    /// map supports those that it has an operation for.
    pub(crate) fn is_by_range(self) -> bool {
        use Case::*;
        matches!(
            self,
            Lookup | Find | FindAny | FindBack | First | FirstBack | CursorNext | CursorPrev
        ) || matches!(self, IterateBack | CursorStep)
    }

    /// Whether it is a search for free space that all maps can do by scanning.
    pub(crate) fn is_gap(self) -> bool {
        matches!(self, Case::GapUp | Case::GapDown | Case::RareGapUp | Case::RareGapDown)
    }

    /// Whether a map without a gap index would take too long by scanning.
    pub(crate) fn is_adverse_gap(self) -> bool {
        matches!(
            self,
            Case::ShortGapUp | Case::ShortGapDown | Case::SkewedGapUp | Case::SkewedGapDown
        )
    }
}
