//! The work of calls on pages: removes and protects them, as [`vma::Pages`] says.

use core::ops::Range;

use grace::Concurrent;
use machine::{Machine, VirtAddr, VirtRange};
use paging::{Format, PageTables, SweepChange};
use vma::{Advice, Pages, VmFlags, Vma};

use crate::{batch::FrameBatch, rights, rights::EXCLUSIVE};

/// Carries out what a call of the [`vma::Writer`] says.
pub(crate) struct Hook<'a, M: Machine, F: Format, G: Concurrent> {
    pub(crate) tables: &'a PageTables<M, F, G>,
    /// The first failure. Only corrupt tables fail.
    pub(crate) failed: Option<paging::Error>,
}

/// The addresses of a range of bytes; `None` if it is empty.
pub(crate) fn virt(range: Range<usize>) -> Option<VirtRange> {
    VirtRange::new(VirtAddr::new(range.start as u64), (range.end - range.start) as u64)
}

impl<'a, M: Machine, F: Format, G: Concurrent> Hook<'a, M, F, G> {
    pub(crate) fn new(tables: &'a PageTables<M, F, G>) -> Self {
        Hook { tables, failed: None }
    }

    /// Removes all pages of the range and gives their frames back, a batch for each flush.
    pub(crate) fn remove(&mut self, range: Range<usize>) {
        let mut rest = range;
        while let Some(range) = virt(rest.clone()) {
            let mut batch = FrameBatch::new();
            let mut pending = self.tables.no_flush();
            let clear = |page: paging::Mapping| match batch.push(page.frame) {
                true => SweepChange::Clear,
                false => SweepChange::Stop,
            };
            // SAFETY: the address space owns the range and its pages, and no VMA promises them any
            // more. The frames are given back after the flush, and the range is not mapped again
            // before it: its VMA is a hole, or busy, until this call ends (`protocol`).
            let swept = unsafe { self.tables.sweep(range, &mut pending, |_| true, clear) };
            pending.flush();
            // SAFETY: they are unmapped and flushed. Each mapping had a reference.
            unsafe { batch.release(self.tables.machine()) };
            match swept {
                Ok(Some(next)) => rest.start = next.get() as usize,
                Ok(None) => return,
                Err(error) => {
                    self.failed.get_or_insert(error);
                    return;
                }
            }
        }
    }
}

impl<M: Machine, F: Format, G: Concurrent, B> Pages<B> for Hook<'_, M, F, G> {
    fn empty(&mut self, range: Range<usize>) {
        self.remove(range);
    }

    fn protect(&mut self, range: Range<usize>, now: &Vma<B>, _old: VmFlags) {
        let Some(range) = virt(range) else { return };
        let mut pending = self.tables.no_flush();
        let change = |page: paging::Mapping| {
            // A page that is not exclusive stays read-only: its first write must fault.
            let attrs = rights::attrs(now.flags, page.attrs.soft & EXCLUSIVE != 0);
            SweepChange::Set(attrs)
        };
        // SAFETY: the address space owns the pages and their frames. The flush is done when this
        // returns.
        let swept = unsafe { self.tables.sweep(range, &mut pending, |_| true, change) };
        pending.flush();
        if let Err(error) = swept {
            self.failed.get_or_insert(error);
        }
    }

    fn advise(
        &mut self,
        range: Range<usize>,
        vma: &Vma<B>,
        advice: Advice,
    ) -> Result<(), vma::Error> {
        let kept = VmFlags::LOCKED | VmFlags::PFNMAP | VmFlags::HUGETLB;
        match advice {
            Advice::DontNeed | Advice::Free if vma.flags.intersects(kept) => {
                Err(vma::Error::WrongKind)
            }
            Advice::DontNeed | Advice::DontNeedLocked | Advice::Free => {
                self.remove(range);
                Ok(())
            }
            // Only for shared memory.
            Advice::Remove => Err(vma::Error::WrongKind),
            _ => Ok(()),
        }
    }

    fn prepare_move(&mut self, _: Range<usize>, _: usize) -> Result<(), vma::Error> {
        // There is no mremap yet.
        Err(vma::Error::WrongKind)
    }

    fn move_pages(&mut self, _: Range<usize>, _: usize) {}
}
