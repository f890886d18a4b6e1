//! Sweeps: a change of the pages of a range, with a gather for each flush.

use core::ops::Range;

use grace::Concurrent;
use machine::{Machine, VirtAddr, VirtRange};
use paging::{Format, Mapping, SweepChange};

use crate::{
    addresses::virt,
    change::gather::{Gather, SweptPages, TakenPages},
    space::Core,
};

/// A page that the range of a sweep cuts in two.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CutPage {
    /// The VMAs allow none.
    Fails,
    /// It is left as it is: a fault has brought it in since the ends of the range were split, as if
    /// it came after the call; or nothing of it is to change.
    IsLater,
}

impl<M: Machine, F: Format, G: Concurrent> Core<M, F, G> {
    /// Changes the pages of a range. Cleared and replaced frames are given back, a gather for each
    /// flush. When it returns, no CPU has a translation that was changed. The caller holds the mmap
    /// lock, and gives no page more rights than its VMA. `change` does not answer with
    /// [`SweepChange::Stop`]; after a [cut](CutPage::IsLater) it may be asked again about a page
    /// that stayed.
    pub(crate) fn sweep(
        &self,
        whose: SweptPages,
        range: Range<usize>,
        cut: CutPage,
        mut change: impl FnMut(&Mapping) -> SweepChange,
    ) -> Result<(), paging::Error> {
        self.each_part(range, cut, |part| Gather::new(&self.tables).sweep(whose, part, &mut change))
    }

    /// [`sweep`](Self::sweep) that takes pages out of a range.
    pub(crate) fn take_out(
        &self,
        range: Range<usize>,
        mut clears: TakenPages<impl FnMut(&Mapping) -> SweepChange>,
    ) -> Result<(), paging::Error> {
        self.each_part(range, CutPage::IsLater, |part| {
            Gather::new(&self.tables).take_out(part, &mut clears)
        })
    }

    /// [`take_out`](Self::take_out), of a range that maps nothing any more. The frames may
    /// wait, so CPUs may have translations when it returns.
    pub(crate) fn take_out_and_wait(
        &self,
        range: Range<usize>,
        mut clears: TakenPages<impl FnMut(&Mapping) -> SweepChange>,
    ) -> Result<(), paging::Error> {
        self.each_part(range.clone(), CutPage::IsLater, |part| {
            let mut gather = Gather::new(&self.tables);
            let huge = self.huge.may_exist();
            let keeps = self.waiting.keeps_tables(&self.tables, &range, huge);
            gather.keep_tables(keeps);
            let swept = gather.take_out(part, &mut clears);
            self.waiting.defer(&mut gather, &self.tables, range.clone());
            if keeps {
                gather.unlink_empty(range.clone());
            }
            swept
        })
    }

    /// Does the parts of a range one by one. Each returns where the next one begins.
    pub(crate) fn each_part(
        &self,
        mut rest: Range<usize>,
        cut: CutPage,
        mut each: impl FnMut(VirtRange) -> Result<Option<VirtAddr>, paging::Error>,
    ) -> Result<(), paging::Error> {
        while let Some(part) = virt(rest.clone()) {
            match each(part) {
                Ok(Some(next)) => rest.start = next.get() as usize,
                Ok(None) => break,
                Err(paging::Error::Cut(page, size))
                    if cut == CutPage::IsLater && self.huge.may_exist() =>
                {
                    let start = page.get() as usize;
                    match start < rest.start {
                        true => rest.start = start + size.bytes() as usize,
                        false => rest.end = start,
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
