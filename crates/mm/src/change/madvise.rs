//! madvise(2): the effects of an advice on the pages.
//!
//! `vma` changes the flags of VMAs. The work on pages has two parts: that of the call's step, under
//! the mmap lock ([`PageHost::advise`]), and work that may wait, such as bringing pages in, with
//! nothing held ([`AddressSpace::madvise_announced`]).

use alloc::vec::Vec;
use core::ops::Range;

use grace::Concurrent;
use machine::Machine;
use paging::Format;
use vma::{Advice, PAGE_SIZE, VmFlags, Vma};

use crate::{
    Access, AddressSpace, Backing, Error, ObjectError,
    addresses::{pages_of, virt},
    change::page_host::{PageHost, TableWork},
};

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// madvise(2). DONTNEED and FREE remove the pages; the next touch finds zeros, or the object's
    /// page. REMOVE frees the pages in their object. GUARD_INSTALL replaces pages by guard pages,
    /// and GUARD_REMOVE removes these. COLLAPSE makes pages huge. POPULATE_READ and POPULATE_WRITE
    /// bring pages in. WILLNEED lets files read theirs
    /// ([`CachedPages::will_need`](crate::CachedPages::will_need)).
    ///
    /// # Errors
    /// As in the manual page of madvise; a part may have changed. [`Error::Collapse`]: the last
    /// huge page that could not be made.
    pub fn madvise(&self, addr: usize, len: usize, advice: Advice) -> Result<(), Error> {
        self.announce_removal(addr, len, advice)?;
        self.madvise_announced(addr, len, advice)
    }

    /// As [`madvise`](Self::madvise), without events of removals: the host has
    /// [announced](Self::announce_removal) them.
    ///
    /// # Errors
    /// As [`madvise`](Self::madvise).
    pub fn madvise_announced(&self, addr: usize, len: usize, advice: Advice) -> Result<(), Error> {
        let mut to_remove = Vec::new();
        let bring_in = || self.bring_in_swapped(pages_of(addr, len));
        let done = loop {
            let done = self.change_with(
                |calls| {
                    let done = calls.madvise(addr, len, advice);
                    // A fault that has looked before brings in no huge page, and no block, any
                    // more.
                    if advice == Advice::NoHugePage && self.core.huge.may_come() {
                        self.core.settle_faults(pages_of(addr, len));
                    }
                    done
                },
                |host| to_remove = core::mem::take(&mut host.to_remove),
            );
            match &done {
                // Pages in swap are brought in, also if reclaim is faster than the next attempt.
                Err(Error::Collapse(_)) if bring_in() => {}
                Err(error) if self.ends_wait(error) => {}
                _ => break done,
            }
        };
        // Without the mmap lock: an object takes it in each space that maps the pages.
        for (file, pages) in to_remove {
            file.object().in_memory().ok_or(ObjectError::NotSupported)?.remove(pages)?;
        }
        let (access, right) = match advice {
            Advice::PopulateRead => (Access::Read, VmFlags::READ),
            Advice::PopulateWrite => (Access::Write, VmFlags::WRITE),
            Advice::WillNeed => {
                self.will_need(addr..addr.saturating_add(len));
                return done;
            }
            _ => return done,
        };
        // A hole, or a VMA without the right, ends it there; the pages before it are brought in.
        if !matches!(done, Ok(()) | Err(Error::Vma(vma::Error::Unmapped | vma::Error::WrongKind))) {
            return done;
        }
        let end = addr + len.next_multiple_of(PAGE_SIZE);
        let (mut at, mut touched) = (addr, Ok(()));
        while at < end && touched.is_ok() {
            let Some((vma, flags)) = self.vma_at(at, |range, vma| (range.clone(), vma.flags))
            else {
                touched = Err(vma::Error::Unmapped.into());
                break;
            };
            // As in Linux, the memory of a device ends it, too.
            if !flags.contains(right) || flags.intersects(VmFlags::IO | VmFlags::PFNMAP) {
                touched = Err(vma::Error::WrongKind.into());
                break;
            }
            touched = self.touch_all(at..vma.end.min(end), access);
            at = vma.end;
        }
        // A page that cannot be brought in comes before the hole.
        touched.and(done)
    }

    /// Lets the objects of a range bring pages in. Nothing is held meanwhile.
    fn will_need(&self, range: Range<usize>) {
        let mut at = range.start;
        while at < range.end {
            let found = self.core.vmas.find(&G::pin(), at).map(|(vma, data)| {
                let start = vma.start.max(at);
                (vma.end, start, data.offset_at(start) as u64, data.file.clone())
            });
            let Some((end, start, first, file)) = found.filter(|found| found.1 < range.end) else {
                return;
            };
            let pages = (end.min(range.end) - start).div_ceil(PAGE_SIZE) as u64;
            if let Some(cached) = file.as_ref().and_then(|file| file.object().cached()) {
                cached.will_need(first..first.saturating_add(pages));
            }
            at = end;
        }
    }

    /// Brings pages in from swap, as far as that is possible. Returns whether there were any.
    pub(crate) fn bring_in_swapped(&self, range: Range<usize>) -> bool {
        let (mut rest, mut any) = (range, false);
        while let Some(pages) = virt(rest.clone()) {
            let guard = G::pin();
            let mut pages = self.core.tables.walk(&guard).pages(pages);
            let Some(page) = pages.find(|page| self.core.is_swap(page.frame)) else { break };
            let at = page.page.get() as usize;
            drop(guard);
            any |= self.touch(at, Access::Read).is_ok();
            rest.start = at + PAGE_SIZE;
        }
        any
    }
}

impl<M: Machine, F: Format, G: Concurrent> PageHost<'_, M, F, G> {
    /// The effect of an advice on the pages of a part of one VMA, as the VMA is now.
    pub(super) fn advise(
        &mut self,
        range: Range<usize>,
        vma: &Vma<Backing<M>>,
        advice: Advice,
    ) -> Result<(), vma::Error> {
        let kept = VmFlags::LOCKED | VmFlags::PFNMAP | VmFlags::HUGETLB;
        match advice {
            Advice::DontNeed | Advice::Free if vma.flags.intersects(kept) => {
                Err(vma::Error::WrongKind)
            }
            Advice::DontNeed | Advice::DontNeedLocked | Advice::Free => {
                // Guard pages stay, also in tables that a fork shares.
                let guard = self.core.guard_frame.get();
                let work = if guard.is_some() { TableWork::Protect } else { TableWork::Empty };
                self.prepare(range.clone(), work)?;
                let marks = vma.file.is_some() && vma.flags.contains(VmFlags::UFFD_WP);
                self.remove_but(range, guard, marks);
                Ok(())
            }
            Advice::GuardInstall => {
                let marks = vma.file.is_some() && vma.flags.contains(VmFlags::UFFD_WP);
                vma.mark_touched_for_call();
                self.install_guards(range, marks)
            }
            Advice::GuardRemove => self.remove_guards(range),
            Advice::Remove => {
                let file = vma.file.clone().ok_or(vma::Error::WrongKind)?;
                let first = vma.offset_at(range.start) as u64;
                let pages = first..first + (range.len() / PAGE_SIZE) as u64;
                self.to_remove.try_reserve(1).map_err(|_| vma::Error::OutOfMemory)?;
                self.to_remove.push((file, pages));
                Ok(())
            }
            // A host that reclaims finds cold pages by itself. The others follow the call.
            Advice::Cold
            | Advice::PageOut
            | Advice::WillNeed
            | Advice::PopulateRead
            | Advice::PopulateWrite => Ok(()),
            // Its pages change 2 MiB after 2 MiB (`collapse`).
            Advice::Collapse => Ok(()),
            // Only VMAs change.
            Advice::Normal
            | Advice::Random
            | Advice::Sequential
            | Advice::DontFork
            | Advice::DoFork
            | Advice::WipeOnFork
            | Advice::KeepOnFork
            | Advice::Mergeable
            | Advice::Unmergeable
            | Advice::HugePage
            | Advice::NoHugePage
            | Advice::DontDump
            | Advice::DoDump => Ok(()),
        }
    }
}
