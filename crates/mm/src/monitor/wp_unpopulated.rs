//! Marks of absent pages that were write-protected (UFFD_FEATURE_WP_UNPOPULATED).
//!
//! The mark of a present page is a bit of its entry ([`WP`]). An absent page of anonymous memory
//! gets an entry for it: that of a guard page, with the bit. So it moves, forks and goes with its
//! VMA as guard pages do. Otherwise the page is absent: a fault there brings it in, with the mark.
//! In a VMA that is not registered for write-protection, such as that of a forked child, the entry
//! means nothing.
//!
//! Advice that discards pages of anonymous memory removes the mark, too. A page of an object keeps
//! it, as the markers of Linux do: when reclaim, truncation or advice takes a write-protected page
//! from a map of an object, the page leaves the entry of an absent one. Only an unmapping removes
//! the mark. Tables that a fork shares get the entry for all their spaces, so it does not matter
//! which of the VMAs is registered.
//!
//! # Correctness
//! The entry is stored with the lock of its table. A fault is before it, and then the page is
//! present and keeps its rights: the call tells of it, or the next one does. Or the fault is after
//! it, and finds the mark.

use core::ops::Range;

use grace::Concurrent;
use machine::{FrameError, Machine, VirtAddr};
use paging::{EntryChange, Format, Found};
use vma::{PAGE_SIZE, VmFlags, Vma};

use crate::{
    AddressSpace, Backing, FaultError, UserFaultHandler,
    addresses::HUGE,
    change::page_host::PageHost,
    entry_marks::{WP, absent_mark},
    fault::attempt::{FaultStep, FirstLook},
    fault::new_frame::NewFrame,
    fault::rights::WantedAccess,
};

impl<M: Machine, F: Format, G: Concurrent> PageHost<'_, M, F, G> {
    /// Marks the absent pages of a part of a VMA, whose tables are the space's own. Allocates
    /// tables. If memory runs out, a part is marked. Returns whether a page was marked. O(pages).
    pub(crate) fn mark_absent(&mut self, range: Range<usize>, vma: &Vma<Backing<M>>) -> bool {
        vma.mark_touched_for_call();
        if self.core.guard_frame.make().is_err() {
            let error = FrameError::OutOfFrames { order: 0 };
            self.note(Err(paging::Error::Frames(error)));
            return false;
        }
        let mut at = range.start;
        let (mut any, mut reclaimed) = (false, false);
        while at < range.end {
            match self.mark_one(at) {
                // It is a part of a huge page, which has its own mark.
                Err(paging::Error::Occupied(_)) => at = (at & !(HUGE - 1)) + HUGE,
                Err(paging::Error::Frames(_)) if !reclaimed => {
                    reclaimed = true;
                    self.core.tables.reclaim();
                }
                Err(error) => {
                    self.note(Err(error));
                    break;
                }
                Ok(marked) => (any, at) = (any || marked, at + PAGE_SIZE),
            }
        }
        any
    }

    /// Marks a page, if it is absent. Returns whether it was.
    fn mark_one(&self, at: usize) -> Result<bool, paging::Error> {
        let Some(frame) = self.core.guard_frame.get() else { return Ok(false) };
        // SAFETY: the space owns the page. The frame of guards outlives the tables, and has no
        // references.
        let done = unsafe {
            self.core.tables.with_entry(&G::pin(), VirtAddr::new(at as u64), |now| match now {
                None => (EntryChange::Set(frame, absent_mark()), true),
                Some(_) => (EntryChange::Keep, false),
            })
        };
        match done {
            Ok((marked, pending)) => {
                pending.flush();
                Ok(marked)
            }
            Err(failed) => Err(failed.error),
        }
    }
}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// Whether the VMA is registered with a userfaultfd that marks its absent pages. As in Linux,
    /// those of objects are marked always.
    pub(crate) fn marks_absent(&self, vma: &Vma<Backing<M>>) -> bool {
        let marks = |handler: &dyn UserFaultHandler, uffd| handler.marks_absent_pages(uffd);
        self.protects(vma, |handler, uffd| vma.file.is_some() || marks(handler, uffd))
    }

    /// Whether an absent page with a mark keeps it when it comes in.
    pub(crate) fn keeps_mark(&self, vma: &Vma<Backing<M>>, want: WantedAccess) -> bool {
        vma.flags.contains(VmFlags::UFFD_WP) && !(want.writes() && self.is_write_protect_async(vma))
    }

    /// The first touch of an absent page of anonymous memory with a mark. A write in memory that
    /// needs no monitor takes the mark away; otherwise the page keeps it, and a write faults once
    /// more.
    #[cold]
    pub(crate) fn touch_marked(
        &self,
        look: &FirstLook<'_, M, G>,
        place: &Found<'_>,
        want: WantedAccess,
        fresh: &NewFrame<'_, M>,
    ) -> Result<FaultStep, FaultError> {
        let keeps = self.keeps_mark(look.vma, want);
        let step = self.first_touch(look, place, want, fresh, Some(if keeps { WP } else { 0 }))?;
        if step != FaultStep::MappedFresh || !keeps {
            return Ok(step);
        }
        // A write goes on with the fault of a protected page.
        fresh.mapped();
        Ok(FaultStep::Again)
    }
}
