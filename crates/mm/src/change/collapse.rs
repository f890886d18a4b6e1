//! MADV_COLLAPSE: huge pages in the place of small ones.
//!
//! For each huge page its 2 MiB are busy, so no fault brings a page in
//! ([`vma::CallStep::while_busy`]), and:
//!
//! 1. the pages lose all rights, and the TLBs are flushed: nothing reads or writes them, and a pin
//!    without a lock is refused;
//! 2. if one is pinned, the rights are given back: its holder would lose it;
//! 3. their contents are copied to a block;
//! 4. the block takes the place of their table
//!    ([`PageTables::collapse`](paging::PageTables::collapse)).
//!
//! All allocations come before step 1, so a failure leaves everything as it was (I7).

use alloc::vec::Vec;
use core::ops::Range;

use grace::Concurrent;
use machine::{ENTRIES, Frame, Machine, PageSize, VirtAddr, VirtRange};
use paging::{Format, Mapping, Share};
use vma::{CallStep, VmFlags, Vma};

use crate::{
    Backing, HugePages,
    addresses::{HUGE, virt},
    change::page_host::{PageHost, TableWork},
    change::release::flush_and_release,
    entry_marks::WP,
    error::CollapseError,
    fault::frame_contents::copy,
    fault::frame_ref::{NoFrame, Reference, block_of, is_counted},
    fault::rights,
    fault::zero_page::zero_block,
};

impl<M: Machine, F: Format, G: Concurrent> PageHost<'_, M, F, G> {
    /// Makes the pages of a part of a VMA huge, 2 MiB after 2 MiB, which are busy meanwhile. As in
    /// Linux, a huge page that cannot be made ends the call. But behind pages that are pinned or
    /// write-protected, the rest of the VMA is tried.
    pub(super) fn collapse(
        &mut self,
        range: Range<usize>,
        step: &mut CallStep<'_, '_, Backing<M>, G>,
    ) -> Result<(), vma::Error> {
        let Some(vma) = step.vma() else { return Ok(()) };
        vma.mark_touched_for_call();
        let never = VmFlags::NOHUGEPAGE | VmFlags::SPECIAL | VmFlags::HUGETLB;
        let (start, end) = (range.start.next_multiple_of(HUGE), range.end & !(HUGE - 1));
        let has_large = self.core.tables.paging().largest() >= PageSize::Size2M;
        let allowed = vma.file.is_none()
            && !vma.flags.intersects(never)
            && vma.is_faulted()
            && self.core.huge.policy() != HugePages::Disabled;
        if !allowed || !has_large {
            return Err(self.refuse(CollapseError::NoPages));
        }
        // Whatever the policy: calls that come later know that huge pages exist.
        self.core.huge.note();
        let mut left = None;
        for at in (start..end).step_by(HUGE) {
            if self.is_huge(at) {
                continue;
            }
            self.prepare(at..at + HUGE, TableWork::Protect)?;
            match step.while_busy(at..at + HUGE, |vma| self.collapse_one(at, vma))? {
                Ok(()) => {}
                Err(refused @ (CollapseError::Pinned | CollapseError::WriteProtected)) => {
                    left = Some(refused);
                }
                Err(refused) => return Err(self.refuse(refused)),
            }
        }
        left.map_or(Ok(()), |refused| Err(self.refuse(refused)))
    }

    fn collapse_one(&mut self, at: usize, vma: &Vma<Backing<M>>) -> Result<(), CollapseError> {
        let (machine, order) = (self.core.tables.machine(), PageSize::Size2M.order());
        let Some(range) = virt(at..at + HUGE) else { return Err(CollapseError::NoPages) };
        let mut old = Vec::new();
        old.try_reserve_exact(ENTRIES).map_err(|_| CollapseError::OutOfMemory)?;
        let new =
            Reference::alloc_page(machine, self.core.group(), order).map_err(
                |error| match error {
                    NoFrame::Source(_) => CollapseError::OutOfMemory,
                    NoFrame::Group { .. } => CollapseError::GroupLimit,
                },
            )?;
        zero_block(machine, new.frame(), order).map_err(|_| CollapseError::OutOfMemory)?;
        // A fault that was under way ends before this takes the lock.
        self.take_rights(at..at + HUGE);
        let result = self.collapse_still(range, vma, &new, &mut old);
        match result {
            Ok(true) => drop(new.keep()),
            // The rights come back.
            Ok(false) | Err(_) => self.give_rights(at..at + HUGE, vma),
        }
        result.map(drop)
    }

    /// Also where the huge zero page is.
    fn is_huge(&self, at: usize) -> bool {
        let page = self.core.tables.walk(&G::pin()).get(VirtAddr::new(at as u64));
        page.is_some_and(|page| page.size != PageSize::Size4K)
    }

    /// Collapses pages that no CPU uses. Returns false if they are huge already.
    fn collapse_still(
        &mut self,
        range: VirtRange,
        vma: &Vma<Backing<M>>,
        new: &Reference<'_, M>,
        old: &mut Vec<Frame>,
    ) -> Result<bool, CollapseError> {
        let machine = self.core.tables.machine();
        let (mut any, mut any_special, mut next) = (false, false, 0);
        let watched = vma.flags.contains(VmFlags::UFFD_MISSING);
        {
            let guard = G::pin();
            for page in self.core.tables.walk(&guard).pages(range) {
                if page.size != PageSize::Size4K {
                    return Ok(false);
                }
                // The mark of a VMA that is not registered any more means nothing.
                let protected = vma.flags.contains(VmFlags::UFFD_WP) && page.attrs.soft & WP != 0;
                if protected {
                    return Err(CollapseError::WriteProtected);
                }
                if self.core.is_special(page.frame) {
                    any_special = true;
                    continue;
                }
                let pins = block_of(machine, page.frame).map_or(0, |(_, info)| info.pins());
                if page.attrs.share() == Share::Exclusive && pins != 0 {
                    return Err(CollapseError::Pinned);
                }
                let index = (page.page.get() - range.start().get()) / PageSize::Size4K.bytes();
                let to = new.frame().checked_add(index).ok_or(CollapseError::NoPages)?;
                // The monitor decides what the others hold.
                let follows = page.page.get() == range.start().get() + next;
                if watched && !(follows && is_counted(machine, page.frame)) {
                    return Err(CollapseError::Watched);
                }
                next += PageSize::Size4K.bytes();
                if is_counted(machine, page.frame) {
                    copy(machine, page.frame, to).map_err(|_| CollapseError::NoPages)?;
                }
                any = true;
            }
        }
        if !any || any_special {
            return Err(CollapseError::NoPages);
        }
        if watched && next != range.len() {
            return Err(CollapseError::Watched);
        }
        let attrs = rights::attrs(vma.flags, Share::Exclusive);
        let mut pending = self.core.tables.no_flush();
        let gone = |page: Mapping| old.push(page.frame);
        // SAFETY: the space owns the pages, which no CPU uses. The block is ours, with the same
        // contents; the old frames are given back after the flush.
        let done = unsafe {
            self.core.tables.collapse(range.start(), new.frame(), attrs, &mut pending, gone)
        };
        if let Err(error) = done {
            debug_assert!(false, "{error}");
            return Err(CollapseError::NoPages);
        }
        // SAFETY: the pages were mapped by entries that are gone.
        unsafe { flush_and_release(&self.core.tables, pending, old.drain(..)) };
        Ok(true)
    }
}
