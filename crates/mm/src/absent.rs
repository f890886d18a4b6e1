//! Marks of absent pages that were write-protected (UFFD_FEATURE_WP_UNPOPULATED).
//!
//! The mark of a present page is a bit of its entry ([`WP`]). An absent page of anonymous memory
//! gets an entry for it: that of a guard page, with the bit. So it moves, forks and goes with its
//! VMA as guard pages do. Otherwise the page is absent: a fault there brings it in, with the mark.
//! Advice that discards pages removes the mark, too. In a VMA that is not registered for
//! write-protection, such as that of a forked child, the entry means nothing.
//!
//! # Correctness
//! The entry is stored with the lock of its table. A fault is before it, and then the page is
//! present and keeps its rights: the call tells of it, or the next one does. Or the fault is after
//! it, and finds the mark.

use core::ops::Range;

use grace::Concurrent;
use machine::{FrameError, Machine, VirtAddr};
use paging::{Attrs, EntryChange, Format, Found};
use vma::{PAGE_SIZE, VmFlags, Vma};

use crate::{
    AddressSpace, Backing, FaultError, UserFaultHandler,
    fault::Step,
    fresh::Fresh,
    guard,
    hook::Hook,
    huge::HUGE,
    rights::Want,
    touch::Look,
    track::{POISON, WP},
};

/// Whether the entry of a guard page is that of an absent page with a mark.
pub(crate) fn is_mark(attrs: Attrs) -> bool {
    attrs.soft & (WP | POISON) == WP
}

impl<M: Machine, F: Format, G: Concurrent> Hook<'_, M, F, G> {
    /// Marks the absent pages of a part of a VMA of anonymous memory, whose tables are the space's
    /// own. Allocates tables. If memory runs out, a part is marked. O(pages).
    pub(crate) fn mark_absent(&mut self, range: Range<usize>, vma: &Vma<Backing<M>>) {
        vma.mark_touched_for_call();
        if self.guard.make().is_err() {
            let error = FrameError::OutOfFrames { order: 0 };
            self.failed.get_or_insert(paging::Error::Frames(error));
            return;
        }
        let mut at = range.start;
        let mut reclaimed = false;
        while at < range.end {
            match self.mark_one(at) {
                // It is a part of a huge page, which has its own mark.
                Err(paging::Error::Occupied(_)) => at = (at & !(HUGE - 1)) + HUGE,
                Err(paging::Error::Frames(_)) if !reclaimed => {
                    reclaimed = true;
                    self.tables.reclaim();
                }
                Err(error) => {
                    self.failed.get_or_insert(error);
                    return;
                }
                Ok(()) => at += PAGE_SIZE,
            }
        }
    }

    fn mark_one(&self, at: usize) -> Result<(), paging::Error> {
        let Some(frame) = self.guard.get() else { return Ok(()) };
        let attrs = guard::attrs();
        let mark = Attrs { soft: attrs.soft | WP, ..attrs };
        // SAFETY: the space owns the page. The frame of guards outlives the tables, and has no
        // references.
        let done = unsafe {
            self.tables.with_entry(&G::pin(), VirtAddr::new(at as u64), |now| match now {
                None => (EntryChange::Set(frame, mark), ()),
                Some(_) => (EntryChange::Keep, ()),
            })
        };
        match done {
            Ok(((), pending)) => {
                pending.flush();
                Ok(())
            }
            Err(failed) => Err(failed.error),
        }
    }
}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// Whether the VMA is anonymous memory, registered with a userfaultfd that marks absent pages.
    pub(crate) fn marks_absent(&self, vma: &Vma<Backing<M>>) -> bool {
        let marks = |handler: &dyn UserFaultHandler, uffd| handler.marks_absent_pages(uffd);
        vma.file.is_none() && self.protects(vma, marks)
    }

    /// The first touch of an absent page with a mark. A write in memory that needs no monitor takes
    /// the mark away; otherwise the page keeps it, and a write faults once more.
    #[cold]
    pub(crate) fn touch_marked(
        &self,
        look: &Look<'_, M, G>,
        place: &Found<'_>,
        want: Want,
        fresh: &Fresh<'_, M>,
    ) -> Result<Step, FaultError> {
        let keeps = look.vma.flags.contains(VmFlags::UFFD_WP)
            && !(want.writes() && self.is_write_protect_async(look.vma));
        let step = self.first_touch(look, place, want, fresh, Some(if keeps { WP } else { 0 }))?;
        if step != Step::MappedFresh || !keeps {
            return Ok(step);
        }
        // A write goes on with the fault of a protected page.
        fresh.mapped();
        Ok(Step::Again)
    }
}
