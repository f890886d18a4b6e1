//! What a call plans: the stores of a [`Step`](crate::Step), and the work on pages between them.

use core::ops::Range;

use crate::{
    Area, Vma,
    host::{Enters, Work},
    state::VmaCounts,
    tree::Change,
};

/// What a step stores.
pub(crate) enum Stores<F> {
    /// One change, and its effect on the counts.
    One(Change<F>, VmaCounts),
    /// The VMA at `start` gets another end; the effect on the counts.
    End { start: usize, end: usize, more: VmaCounts },
    /// A part of the VMA `area` goes to `new`; `left_behind` is the change of its old range.
    Move { new: Area<F>, area: Area<F>, left_behind: Change<F> },
    /// None. The VMAs stay as they are; they are busy during work that [needs](Work::holds) it.
    Held([Option<Area<F>>; 2]),
}

/// A step, before it is applied.
pub(crate) struct Plan<F> {
    pub(crate) stores: Stores<F>,
    pub(crate) work: Work,
    pub(crate) enters: Option<Enters>,
    /// Bytes for which memory must be promised ([`VmFlags::ACCOUNT`](crate::VmFlags::ACCOUNT)),
    /// more than before.
    pub(crate) growth: isize,
}

impl<F> Plan<F> {
    /// One change with the work `work`. `gone` is its effect on the VMAs that it overlaps.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(crate) fn change(change: Change<F>, gone: VmaCounts, work: Work) -> Self {
        let more = change.effect(gone);
        let growth = more.sizes.accounted();
        Plan { stores: Stores::One(change, more), work, enters: None, growth }
    }

    /// The VMA at `start` gets another end, and counts `more`.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(crate) fn end(start: usize, end: usize, more: VmaCounts) -> Self {
        let (stores, growth) = (Stores::End { start, end, more }, more.sizes.accounted());
        Plan { stores, work: Work::Nothing, enters: None, growth }
    }

    /// Work on pages while the VMAs stay.
    pub(crate) fn work(work: Work, held: [Option<Area<F>>; 2]) -> Self {
        Plan { stores: Stores::Held(held), work, enters: None, growth: 0 }
    }

    /// The contents that are stored, or that the work is about.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(crate) fn vma(&self) -> Option<&Vma<F>> {
        match &self.stores {
            Stores::One(change, _) => change.vma.as_deref(),
            Stores::Move { new, .. } => Some(&new.vma),
            Stores::Held([Some(area), _]) => Some(&area.vma),
            _ => None,
        }
    }

    /// A range gets a VMA with it.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(crate) fn enters(self, range: Range<usize>, new: bool) -> Self {
        Plan { enters: Some(Enters { range, new }), ..self }
    }
}
