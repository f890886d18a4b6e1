//! Guard pages: MADV_GUARD_INSTALL and MADV_GUARD_REMOVE.
//!
//! A guard page is an entry without rights that leads to a frame kept for that, of the space and
//! its forks. So it moves, forks and goes with its VMA as other pages do. It differs from them in
//! four ways: a fault there is SIGSEGV, whatever the VMA allows; mprotect gives it no rights;
//! advice that discards pages, and truncation, leave it; the listings do not show it as present.
//!
//! A *poisoned* page (UFFDIO_POISON) is such an entry with a mark. It stands for contents that are
//! lost: a fault there is SIGBUS, and advice that discards pages removes it.

use core::ops::Range;

use grace::Concurrent;
use machine::{Frame, Machine, PageSize, VirtAddr};
use paging::{EntryChange, Format, Mapping, SweepChange};
use vma::PAGE_SIZE;

use crate::{
    AddressSpace, FaultError,
    change::gather::SweptPages,
    change::page_host::{PageHost, TableWork},
    change::release::flush_and_release,
    change::sweep::CutPage,
    entry_marks::{guard_attrs, is_guard, is_mark, is_poison},
    error::no_memory,
};

impl<M: Machine, F: Format, G: Concurrent> PageHost<'_, M, F, G> {
    /// Replaces the pages of a range by guard pages. If memory runs out, a part has become guards.
    /// With `marks`, pages of an object keep their marks until then: a fault that comes first finds
    /// them.
    pub(super) fn install_guards(
        &mut self,
        range: Range<usize>,
        marks: bool,
    ) -> Result<(), vma::Error> {
        self.core.guard_frame.make().map_err(|_| vma::Error::OutOfMemory)?;
        let Some(guard) = self.core.guard_frame.get() else { return Err(vma::Error::OutOfMemory) };
        self.prepare(range.clone(), TableWork::Protect)?;
        self.remove_but(range.clone(), Some(guard), marks);
        range.step_by(PAGE_SIZE).try_for_each(|at| self.install_guard(at, guard))
    }

    fn install_guard(&mut self, at: usize, guard: Frame) -> Result<(), vma::Error> {
        let (tables, page) = (&self.core.tables, VirtAddr::new(at as u64));
        let install = || {
            // SAFETY: the space owns the page. A frame that a fault brought in meanwhile is given
            // back after the flush: it was the entry's.
            unsafe {
                let done = tables.with_entry(&G::pin(), page, |now| match now {
                    Some(page) if is_guard(&page, guard) => (EntryChange::Keep, None),
                    Some(page) => (EntryChange::Replace(guard, guard_attrs()), Some(page.frame)),
                    None => (EntryChange::Set(guard, guard_attrs()), None),
                });
                let (old, pending) = done.map_err(|failed| failed.error)?;
                flush_and_release(tables, pending, old);
            }
            Ok(())
        };
        let mut reclaimed = false;
        let done = loop {
            match install() {
                // A fault was faster.
                Err(paging::Error::Occupied(_)) => {
                    // SAFETY: the space owns the page, and its entries hold references.
                    match unsafe { tables.split_counted(page, PageSize::Size4K) } {
                        Ok(pending) => pending.flush(),
                        Err(failed) => break Err(failed.error),
                    }
                }
                Err(paging::Error::Frames(_)) if !reclaimed => {
                    reclaimed = true;
                    tables.reclaim();
                }
                done => break done,
            }
        };
        done.map_err(no_memory)
    }

    /// Removes the guard pages of a range. Other pages stay.
    pub(super) fn remove_guards(&mut self, range: Range<usize>) -> Result<(), vma::Error> {
        let Some(guard) = self.core.guard_frame.get() else { return Ok(()) };
        self.prepare(range.clone(), TableWork::Protect)?;
        // A huge page that the range cuts has no guards: it stays whole.
        let change = |page: &Mapping| match is_guard(page, guard) {
            true => SweepChange::Clear,
            false => SweepChange::Keep,
        };
        let swept = self.core.sweep(SweptPages::Own, range, CutPage::IsLater, change);
        self.note(swept);
        Ok(())
    }
}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// Fails if the page is a guard page, or poisoned.
    pub(crate) fn refuse_guard(
        &self,
        page: Option<Mapping>,
        at: VirtAddr,
    ) -> Result<(), FaultError> {
        match page.filter(|page| self.core.is_guard(page.frame)) {
            Some(page) if is_poison(page.attrs) => Err(FaultError::Poisoned(at)),
            Some(page) if is_mark(page.attrs) => Ok(()),
            Some(_) => Err(FaultError::Guard(at)),
            None => Ok(()),
        }
    }
}
