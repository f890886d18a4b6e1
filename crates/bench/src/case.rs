//! The cases: the kinds of work that are measured.

/// Each row is a case, its short name for files and filters, and one operation of it in words.
macro_rules! cases {
    ($($case:ident, $name:literal, $about:literal;)*) => {
        /// One kind of work, timed for each map.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum Case {
            $($case),*
        }

        impl Case {
            pub(crate) const ALL: &'static [Case] = &[$(Case::$case),*];

            /// A short name, for files and filters.
            pub(crate) fn name(self) -> &'static str {
                match self { $(Case::$case => $name),* }
            }

            /// One operation of the case, in words.
            pub(crate) fn about(self) -> &'static str {
                match self { $(Case::$case => $about),* }
            }
        }
    };
}

cases! {
    Load, "load", "the entry at a random index; keys are independent";
    LoadDependent, "load-dependent", "the same; each key depends on the last result";
    Lookup, "lookup", "the range and the entry at a random index";
    Find, "find", "the range at or after a random index, which lies in a range";
    FindAny, "find-any", "the range at or after a random address, in a range or in a hole";
    FindBack, "find-back", "the range at or before a random address";
    First, "iterate-first", "an iterator from a random address upwards, and its first step";
    FirstBack, "iterate-back-first",
        "an iterator from a random address downwards, and its first step";
    CursorNext, "cursor-next", "a cursor at a random address, and its step to the next range";
    CursorPrev, "cursor-prev", "a cursor at a random address, and its step to the previous range";
    Iterate, "iterate", "one step of an iteration over everything";
    IterateBack, "iterate-back", "the same downwards";
    CursorStep, "cursor-step", "the same by a cursor";
    InsertRandom, "insert-random", "one insertion of a build from nothing, in random order";
    InsertAscending, "insert-ascending", "the same in ascending order";
    Erase, "erase", "one removal of a tear-down to nothing, in random order";
    Move, "erase+insert", "erase a random range, or insert one elsewhere, in turn";
    Resize, "resize", "grow a random range by a page, or shrink it back";
    EraseOver, "erase-over-16", "erase 16 neighbours at once";
    GapUp, "gap-up", "the lowest hole of 2 pages above a random index";
    GapDown, "gap-down", "the highest hole of 2 pages below a random index";
    RareGapUp, "rare-gap-up", "the lowest hole of 256 pages (one in 1,024) above a random index";
    RareGapDown, "rare-gap-down",
        "the highest hole of 256 pages (one in 1,024) below a random index";
    ShortGapUp, "short-gap-up",
        "the lowest hole of 256 pages upwards; all but the last are a page short";
    ShortGapDown, "short-gap-down",
        "the highest hole of 256 pages downwards; all but the first are a page short";
    SkewedGapUp, "skewed-gap-up",
        "the lowest aligned 2 MiB; all long holes but the last are misaligned";
    SkewedGapDown, "skewed-gap-down",
        "the highest aligned 2 MiB; all long holes but the first are misaligned";
    MapUnmap, "mmap+munmap",
        "mmap and munmap: the highest hole of 2 pages below a random index, store, erase";
    Duplicate, "duplicate", "a copy of the whole map";
    WriteAfterDuplicate, "write-after-duplicate", "the first removal from a copy of the whole map";
}

impl Case {
    /// The case of that name.
    pub(crate) fn named(name: &str) -> Option<Case> {
        Case::ALL.iter().copied().find(|case| case.name() == name)
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
