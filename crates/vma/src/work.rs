//! The work on pages that belongs to a step of a call, and the range that gets a VMA with it.

use core::ops::Range;

use crate::{Advice, VmFlags, vma_counts::VmaCounts};

/// The work on pages that belongs to a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// None. VMAs change, or a range gets its first VMA: no host is asked to apply it.
    Nothing,
    /// The range maps nothing any more: its pages go. When the step has ended, no CPU has a
    /// translation of them. If it `may_wait`, the range had private anonymous memory only, and was
    /// unmapped by munmap(2): then CPUs may have translations while
    /// [`Host::waiting`](crate::Host::waiting) names it.
    Unmap {
        /// The range.
        range: Range<usize>,
        /// Whether CPUs may have translations of the range for a while.
        may_wait: bool,
    },
    /// The range gets a new map in the place of others, whose pages go.
    Replace(Range<usize>),
    /// The range has other rights ([`CallStep::vma`](crate::CallStep::vma)); its flags were `old`.
    /// When the step has ended, no CPU has a translation with a right that the VMA has lost.
    Protect {
        /// The range.
        range: Range<usize>,
        /// The flags that it had.
        old: VmFlags,
    },
    /// The pages of `from` move to the range of the same length at `to`, which has none. When the
    /// step has ended, no CPU has a translation of `from`.
    Move {
        /// The range of the pages.
        from: Range<usize>,
        /// Where they go.
        to: usize,
        /// Whether both ranges lie in VMAs that stay (UFFDIO_MOVE): then pages may be at `to`, and
        /// the host refuses the move.
        stays: bool,
    },
    /// madvise(2) on a part of one VMA ([`CallStep::vma`](crate::CallStep::vma)), which stays. The
    /// host may make parts of it busy ([`CallStep::while_busy`](crate::CallStep::while_busy)).
    Advise {
        /// The part.
        range: Range<usize>,
        /// The advice.
        advice: Advice,
    },
}

impl Work {
    /// Whether VMAs that stay are busy meanwhile.
    pub(crate) fn holds(&self) -> bool {
        matches!(self, Work::Move { .. })
    }

    /// That of a new map over a range. `gone` is its effect on the VMAs that it overlaps.
    pub(crate) fn replacing(range: Range<usize>, gone: VmaCounts) -> Work {
        if gone.sizes.total() == 0 { Work::Nothing } else { Work::Replace(range) }
    }

    /// That of a change of a VMA's flags over a range.
    pub(crate) fn of_flags(range: Range<usize>, old: VmFlags, new: VmFlags) -> Work {
        match (old ^ new).intersects(VmFlags::ACCESS | VmFlags::PKEY) {
            true => Work::Protect { range, old },
            false => Work::Nothing,
        }
    }
}

/// A range that gets a VMA where it had none, or another one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EnteredRange {
    /// The range.
    pub range: Range<usize>,
    /// Whether the map is new. Otherwise a map that was there grows, or moves.
    pub new: bool,
}
