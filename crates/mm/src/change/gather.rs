//! The frames and tables that a change of pages has taken, until they may be reused.
//!
//! A cleared entry is only half of the work. Until the TLBs are flushed, a CPU may use the frame
//! that was there. So the frames that a sweep clears go into a [`Gather`], with the flush that is
//! pending and the tables that were unlinked. When the gather is dropped, it flushes, then gives
//! the frames back. It can also [wait](crate::change::deferred_unmap::Waiting) as a whole.
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
    change::release::flush_and_release,
    change::wait_lists::{WaitList, unlink_empty},
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
    pub(super) fn sweep(
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
    pub(super) fn keep_tables(&mut self, keep: bool) {
        if let Some(pending) = &mut self.pending {
            pending.keep_tables(keep);
        }
    }

    /// Unlinks the empty tables of a range that were kept so far, if the flush is still pending.
    pub(super) fn unlink_empty(&mut self, range: Range<usize>) {
        if let Some(pending) = &mut self.pending {
            pending.keep_tables(false);
            unlink_empty(self.tables, range, pending);
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
