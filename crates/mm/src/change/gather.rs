//! The frames and tables that a change of pages has taken, until they may be reused: the one place
//! of this crate that gives them back.
//!
//! A cleared entry is only half of the work. Until the TLBs are flushed, a CPU may use the frame
//! that was there. So what a sweep clears goes into a [`Gather`], with the flush that is pending
//! and the tables that were unlinked. When the gather is dropped, it flushes, then gives the frames
//! back. It can also [wait](crate::change::deferred_unmap::Waiting) as a whole.
//!
//! A gather needs no memory, so unmapping cannot run out of it. It has room for [`GATHER_FRAMES`];
//! a sweep that finds more has more gathers.

use core::ops::Range;

use arrayvec::ArrayVec;
use grace::Concurrent;
use machine::{Frame, Machine, VirtAddr, VirtRange};
use paging::{Format, Mapping, PageTables, PendingFlush, SweepChange};
use vma::PAGE_SIZE;

use crate::{
    change::page_host::virt,
    change::wait_lists::{WaitList, unlink_empty},
    space::Core,
    thresholds::GATHER_FRAMES,
};

/// The frames and tables of one flush, and the flush.
pub(crate) struct Gather<'p, M: Machine, F: Format, G: Concurrent> {
    tables: &'p PageTables<M, F, G>,
    /// `None` once it waits elsewhere.
    pending: Option<PendingFlush<'p, M, F, G>>,
    frames: ArrayVec<Frame, GATHER_FRAMES>,
    /// The pages of 4 KiB that were cleared.
    pages: usize,
}

/// Whose pages a sweep changes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SweptPages {
    /// Those of this space, by tables of its own.
    Own,
    /// Those of an object, also where other spaces share the tables. The object stores none until
    /// the sweep has ended.
    OfAll,
}

/// The pages that a change takes out of a range.
pub(crate) enum TakenPages<C> {
    All,
    /// Those for which it says so.
    Those(C),
}

/// A page that the range of a sweep cuts in two.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CutPage {
    /// The VMAs allow none.
    Fails,
    /// It is left as it is: a fault has brought it in since the ends of the range were split, as if
    /// it came after the call; or nothing of it is to change.
    IsLater,
}

impl<'p, M: Machine, F: Format, G: Concurrent> Gather<'p, M, F, G> {
    pub(crate) fn new(tables: &'p PageTables<M, F, G>) -> Self {
        Gather { tables, pending: Some(tables.no_flush()), frames: ArrayVec::new(), pages: 0 }
    }

    /// As [`sweep`](Self::sweep) of this space's own pages, which may clear all without a question.
    pub(crate) fn take_out(
        &mut self,
        range: VirtRange,
        clears: &mut TakenPages<impl FnMut(&Mapping) -> SweepChange>,
    ) -> Result<Option<VirtAddr>, paging::Error> {
        if let TakenPages::Those(clear) = clears {
            return self.sweep(SweptPages::Own, range, clear);
        }
        let Gather { tables, pending, frames, pages } = self;
        let Some(pending) = pending else { return Ok(None) };
        // SAFETY: as in `sweep`.
        unsafe {
            tables.sweep_clear(range, pending, |frame, size| {
                let holds = tables.paging().holds(frame);
                let has_room = !holds || !frames.is_full();
                if has_room {
                    *pages += size.bytes() as usize / PAGE_SIZE;
                    frames.extend(holds.then_some(frame));
                }
                has_room
            })
        }
    }

    /// Changes the pages of a range, up to the first one whose frame has no room here. Returns its
    /// address.
    fn sweep(
        &mut self,
        whose: SweptPages,
        range: VirtRange,
        change: &mut impl FnMut(&Mapping) -> SweepChange,
    ) -> Result<Option<VirtAddr>, paging::Error> {
        let Gather { tables, pending, frames, pages } = self;
        let Some(pending) = pending else { return Ok(None) };
        let each = |page: Mapping| {
            let holds = tables.paging().holds(page.frame);
            // Before `change` is asked: it is asked once for each page, and may note its answer.
            if holds && frames.is_full() {
                return SweepChange::Stop;
            }
            let change = change(&page);
            if matches!(change, SweepChange::Clear | SweepChange::Replace(..)) {
                *pages += page.size.bytes() as usize / PAGE_SIZE;
                if holds {
                    frames.push(page.frame);
                }
            }
            change
        };
        // SAFETY: the space, or the object, owns the pages, as the callers of `Core::sweep` see to:
        // they give a page at most the rights of its VMA, with the mmap lock held. A frame that
        // was there is given back after the flush, by `drop` or by `Waiting`. Until then the range
        // is not mapped again where it gets other contents: its VMA is a hole, or busy; a hole may
        // wait longer. Where the VMA stays, a fault may bring in zeros, or the object's page again:
        // the program can have seen both before the call.
        unsafe {
            match whose {
                SweptPages::Own => tables.sweep(range, pending, each),
                SweptPages::OfAll => tables.take_back(range, pending, each),
            }
        }
    }

    /// See [`PendingFlush::keep_tables`].
    fn keep_tables(&mut self, keep: bool) {
        if let Some(pending) = &mut self.pending {
            pending.keep_tables(keep);
        }
    }

    /// Whether the flush interrupts another CPU; see [`PendingFlush::interrupts_others`].
    pub(crate) fn interrupts_others(&self) -> bool {
        self.pending.as_ref().is_some_and(PendingFlush::interrupts_others)
    }

    /// The pages of 4 KiB that were cleared.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// The number of frames.
    pub(crate) fn frames(&self) -> usize {
        self.frames.len()
    }

    /// Moves everything to what waits for a period. The list has room for the frames. This CPU
    /// flushes now: the program that has made the call sees its effect.
    pub(crate) fn wait_in(&mut self, list: &mut WaitList<M, F, G>) {
        if let Some(pending) = &self.pending {
            pending.flush_here();
        }
        list.frames.extend(self.frames.drain(..));
        // Not 0: a table alone waits, too.
        list.pages += self.pages.max(1);
        if let Some(pending) = self.pending.take() {
            pending.defer_to(&mut list.flush);
        }
    }
}

impl<M: Machine, F: Format, G: Concurrent> Drop for Gather<'_, M, F, G> {
    fn drop(&mut self) {
        if let Some(pending) = self.pending.take() {
            // SAFETY: the sweep that took a frame has cleared its entry, and its flush is this one.
            unsafe { flush_and_release(self.tables, pending, self.frames.drain(..)) };
        }
    }
}

/// Flushes, and then gives back what changed entries led to. A lock-free pin may hold a reference
/// for a moment, so frames are released, not freed.
///
/// # Safety
/// The flush is that of the entries, and each frame or slot is that of one entry, whose reference
/// it is.
pub(crate) unsafe fn flush_and_release<M: Machine, F: Format, G: Concurrent>(
    tables: &PageTables<M, F, G>,
    pending: PendingFlush<'_, M, F, G>,
    frames: impl IntoIterator<Item = Frame>,
) {
    pending.flush();
    // SAFETY: the caller's promise.
    unsafe { release(tables, frames) }
}

/// Gives back what entries led to.
///
/// # Safety
/// No CPU has a translation of the frames any more. Each is that of one entry, whose reference it
/// is.
pub(crate) unsafe fn release<M: Machine, F: Format, G: Concurrent>(
    tables: &PageTables<M, F, G>,
    frames: impl IntoIterator<Item = Frame>,
) {
    for frame in frames {
        // SAFETY: the caller's promise.
        unsafe { tables.paging().release_entry(frame) };
    }
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
            if keeps && let Some(pending) = &mut gather.pending {
                pending.keep_tables(false);
                unlink_empty(&self.tables, range.clone(), pending);
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
