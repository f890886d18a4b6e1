//! Which pages were written or read since a moment: soft-dirty and referenced pages
//! (`/proc/PID/clear_refs`), and write-protected ones (userfaultfd's WP, PAGEMAP_SCAN).
//!
//! Software bits of an entry are marks. Each takes the right to write from the page:
//!
//! - [`CLEAN`]: the page was not written since [`AddressSpace::clear_soft_dirty`];
//! - [`WP`]: it was not written since it was write-protected.
//!
//! The next write faults, and gives the page its rights back without marks. So a page is
//! *soft-dirty* if it is present without `CLEAN`, and *written* if it is present without `WP`.
//!
//! # Correctness
//! The marks are set by a sweep, whose flush ends before the call returns: no write by an old
//! translation is missed after it.
//!
//! [`pagemap`](AddressSpace::pagemap) takes no lock. If it finds a clean page while the sweep is
//! under way, it looks again when the call has ended: a page that it shows later is clean, too.
//!
//! Formats with two software bits (RISC-V) have no marks.

use core::{
    ops::Range,
    sync::atomic::{Ordering, fence},
};

use grace::Concurrent;
use machine::Machine;
use paging::{Attrs, Format, Mapping, SweepChange};
use vma::{VmFlags, Vma};

use crate::{
    AddressSpace, Backing, Error,
    change::gather::SweptPages,
    change::locked_call::Calls,
    change::page_host::{PageHost, TableWork},
    change::sweep::CutPage,
    entry_marks::{CLEAN, WP, is_mark, marked},
    fault::rights,
};

/// The marks that a swap entry may get or lose.
const SWAPPED_MARKS: u16 = WP | CLEAN;

/// The software bits that the marks need.
const BITS: u32 = 5;

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// Whether the page tables can tell what was written.
    pub(crate) fn check_marks() -> Result<(), Error> {
        match F::SOFT_BITS >= BITS {
            true => Ok(()),
            false => Err(Error::NotSupported("tracking of writes in these page tables")),
        }
    }

    /// Makes all pages clean: [`pagemap::SOFT_DIRTY`](crate::pagemap::SOFT_DIRTY) says which are
    /// written from now on (`echo 4 > /proc/PID/clear_refs`). A page that comes later is dirty, and
    /// so is each page of a VMA that is made later, or joins one, also where it is absent.
    ///
    /// Cost: that of mprotect of all memory, and a fault for each page that is written.
    ///
    /// # Errors
    /// [`Error::NotSupported`]: the page tables have too few software bits. [`Error::Vma`]: no
    /// memory; a part may be clean.
    pub fn clear_soft_dirty(&self) -> Result<(), Error> {
        Self::check_marks()?;
        // With one right: no call that makes or joins VMAs comes between.
        self.change(|calls| {
            // Relaxed: VMAs and entries that are clean are stored with Release after it.
            self.core.clearing.store(true, Ordering::Relaxed);
            let done = self.clear_with_lock(calls);
            // Release: the call has ended for a reader that finds no clearing.
            self.core.clearing.store(false, Ordering::Release);
            done
        })
    }

    fn clear_with_lock(&self, calls: &mut Calls<'_, '_, '_, M, F, G>) -> Result<(), vma::Error> {
        calls.clear_soft_dirty()?;
        // Release: pairs with the Acquire of `is_new`: the VMAs have lost the flag.
        self.core.tracks_new.store(true, Ordering::Release);
        sweep_areas(calls, 0..usize::MAX, |host, range, _| {
            host.sweep_pages(range, |page| {
                SweepChange::Set(marked(page.attrs, page.attrs.soft | CLEAN))
            });
        })
    }

    /// Whether soft-dirty pages are being cleared. Called after a look that has found a clean page.
    pub(crate) fn is_clearing(&self) -> bool {
        // Acquire: pairs with the Release of the store that made the page clean, which comes after
        // that of the flag.
        fence(Ordering::Acquire);
        // Acquire: pairs with the Release of the call's end, so later looks find all pages clean.
        self.core.clearing.load(Ordering::Acquire)
    }

    /// Whether all pages of a VMA are soft-dirty, also absent ones.
    pub(crate) fn is_new(&self, vma: &Vma<Backing<M>>) -> bool {
        // Acquire: pairs with the Release of `clear_soft_dirty`.
        !self.core.tracks_new.load(Ordering::Acquire) || vma.flags.contains(VmFlags::SOFTDIRTY)
    }

    /// Makes all present pages unreferenced (`echo 1 > /proc/PID/clear_refs`): smaps shows which
    /// are used from now on. A CPU that has a translation of a page may use it for a while without
    /// a trace, as in Linux.
    ///
    /// # Errors
    /// [`Error::Vma`]: no memory; a part may be done.
    pub fn clear_referenced(&self) -> Result<(), Error> {
        // With the mmap lock throughout, so that no page moves past the sweep.
        self.change_with_host(0..usize::MAX, |host, range, _| {
            host.sweep_pages(range, |_| SweepChange::Age);
        })
    }

    /// Calls `change` for the parts of VMAs in a range, with the mmap lock, when the tables are
    /// this space's own.
    pub(crate) fn change_with_host(
        &self,
        range: Range<usize>,
        change: impl FnMut(&mut PageHost<'_, M, F, G>, Range<usize>, &Vma<Backing<M>>),
    ) -> Result<(), Error> {
        self.change(|calls| sweep_areas(calls, range, change))
    }
}

/// Calls `change` for the parts of VMAs in a range, when the tables are this space's own.
pub(crate) fn sweep_areas<'a, M: Machine, F: Format, G: Concurrent>(
    calls: &mut Calls<'_, '_, 'a, M, F, G>,
    range: Range<usize>,
    mut change: impl FnMut(&mut PageHost<'a, M, F, G>, Range<usize>, &Vma<Backing<M>>),
) -> Result<(), vma::Error> {
    let mut at = range.start;
    loop {
        let next = calls.areas_from(at).next();
        let Some(area) = next.filter(|area| area.start < range.end) else { return Ok(()) };
        let part = area.start.max(range.start)..area.end.min(range.end);
        at = area.end;
        calls.host().prepare(part.clone(), TableWork::Protect)?;
        change(calls.host(), part, &area.vma);
        // The call fails with a noted error.
        calls.host().noted().map_err(|_| vma::Error::OutOfMemory)?;
    }
}

impl<M: Machine, F: Format, G: Concurrent> PageHost<'_, M, F, G> {
    /// Sweeps the pages of a range whose tables were prepared. The VMAs stay. Guards and swap
    /// entries are shown to `change`, too. Guards keep their attributes, and a swap entry gets
    /// marks only.
    pub(crate) fn sweep_pages(
        &mut self,
        range: Range<usize>,
        mut change: impl FnMut(&Mapping) -> SweepChange,
    ) {
        self.count_change();
        self.split_ends(&range);
        let each = |page: &Mapping| match change(page) {
            SweepChange::Set(new) if self.core.is_swap(page.frame) => {
                let soft = page.attrs.soft & !SWAPPED_MARKS | new.soft & SWAPPED_MARKS;
                SweepChange::Set(Attrs { soft, ..page.attrs })
            }
            SweepChange::Set(_) | SweepChange::Age if self.core.is_special(page.frame) => {
                SweepChange::Keep
            }
            change => change,
        };
        let swept = self.core.sweep(SweptPages::Own, range, CutPage::IsLater, each);
        self.note(swept);
    }

    /// Takes all rights from the pages of a range. After the flush a pin without a lock fails.
    pub(crate) fn take_rights(&mut self, range: Range<usize>) {
        self.sweep_pages(range, |page| {
            SweepChange::Set(Attrs { soft: page.attrs.soft, ..Attrs::default() })
        });
    }

    /// Gives pages the rights that their VMA allows, as far as their marks let it.
    pub(crate) fn give_rights(&mut self, range: Range<usize>, vma: &Vma<Backing<M>>) {
        self.sweep_pages(range, |page| {
            SweepChange::Set(rights::attrs_kept::<M, F>(vma, page.attrs))
        });
    }

    /// Gives the pages of a range the mark of write-protection, or takes it from them.
    pub(crate) fn write_protect(
        &mut self,
        range: Range<usize>,
        vma: &Vma<Backing<M>>,
        protect: bool,
    ) {
        let guard = self.core.guard_frame.get();
        self.sweep_pages(range, |page| {
            if Some(page.frame) == guard && is_mark(page.attrs) {
                return if protect { SweepChange::Keep } else { SweepChange::Clear };
            }
            let soft = if protect { page.attrs.soft | WP } else { page.attrs.soft & !WP };
            SweepChange::Set(marked(rights::attrs_in::<M, F>(vma, page.attrs.share()), soft))
        });
    }
}
