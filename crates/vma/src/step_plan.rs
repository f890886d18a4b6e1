//! The plan of a call: the stores of a [`CallStep`](crate::CallStep), and the work on pages between
//! them.

use core::ops::Range;

use crate::{
    Area, Vma,
    tree::TreeWrite,
    vma_counts::VmaCounts,
    work::{EnteredRange, Work},
};

/// The stores of a step.
pub(crate) enum StepStores<F> {
    /// One change, and its effect on the counts.
    One(TreeWrite<F>, VmaCounts),
    /// The VMA at `start` gets another end; the effect on the counts.
    End { start: usize, end: usize, more: VmaCounts },
    /// A part of the VMA `area` goes to `new`; `left_behind` is the change of its old range.
    Move { new: Area<F>, area: Area<F>, left_behind: TreeWrite<F> },
    /// None. The VMAs stay as they are; they are busy during work that [needs](Work::holds) it.
    Held([Option<Area<F>>; 2]),
}

/// A step, before it is applied.
pub(crate) struct StepPlan<F> {
    pub(crate) stores: StepStores<F>,
    pub(crate) work: Work,
    pub(crate) enters: Option<EnteredRange>,
    /// Bytes for which memory must be promised ([`VmFlags::ACCOUNT`](crate::VmFlags::ACCOUNT)),
    /// more than before.
    pub(crate) growth: isize,
}

impl<F> StepPlan<F> {
    /// One change with the work `work`. `gone` is its effect on the VMAs that it overlaps.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(crate) fn change(change: TreeWrite<F>, gone: VmaCounts, work: Work) -> Self {
        let more = change.effect(gone);
        let growth = more.sizes.accounted();
        StepPlan { stores: StepStores::One(change, more), work, enters: None, growth }
    }

    /// The VMA at `start` gets another end, and counts `more`.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(crate) fn end(start: usize, end: usize, more: VmaCounts) -> Self {
        let (stores, growth) = (StepStores::End { start, end, more }, more.sizes.accounted());
        StepPlan { stores, work: Work::Nothing, enters: None, growth }
    }

    /// Work on pages while the VMAs stay.
    pub(crate) fn work(work: Work, held: [Option<Area<F>>; 2]) -> Self {
        StepPlan { stores: StepStores::Held(held), work, enters: None, growth: 0 }
    }

    /// The contents that are stored, or that the work is about.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(crate) fn vma(&self) -> Option<&Vma<F>> {
        match &self.stores {
            StepStores::One(change, _) => change.vma.as_deref(),
            StepStores::Move { new, .. } => Some(&new.vma),
            StepStores::Held([Some(area), _]) => Some(&area.vma),
            _ => None,
        }
    }

    /// A range gets a VMA with it.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(crate) fn enters(self, range: Range<usize>, new: bool) -> Self {
        StepPlan { enters: Some(EnteredRange { range, new }), ..self }
    }
}
