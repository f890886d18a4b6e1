//! The calls of a program.

use alloc::vec::Vec;

use grace::Concurrent;
use machine::{Frame, Machine, PageSize, VirtAddr};
use paging::{Format, Share};
use vma::{Advice, MapFlags, MapRequest, PAGE_SIZE, VmFlags};

use crate::{Access, AddressSpace, Error, FaultError, NoFile, rights};

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// mmap(2) of private anonymous memory: `len` bytes at `addr`, which is a hint unless `flags`
    /// say FIXED, with the rights `prot`. Returns the address.
    ///
    /// A fixed map over another one removes its pages. With POPULATE or LOCKED the pages are
    /// brought in, as far as there is memory.
    ///
    /// # Errors
    /// As in the manual page of mmap; nothing has changed.
    pub fn mmap(
        &self,
        addr: usize,
        len: usize,
        prot: u32,
        flags: MapFlags,
    ) -> Result<usize, Error> {
        if flags.contains(MapFlags::HUGETLB) {
            return Err(Error::NotSupported("MAP_HUGETLB"));
        }
        if !flags.contains(MapFlags::ANONYMOUS) {
            return Err(Error::NotSupported("mapping a file"));
        }
        if flags.contains(MapFlags::SHARED) {
            return Err(Error::NotSupported("shared memory"));
        }
        let request = MapRequest::<NoFile> {
            addr,
            len,
            prot,
            flags,
            file: None,
            offset: 0,
            driver_flags: None,
        };
        let at = self.change(|calls| calls.mmap(request))?;
        // mlockall may have asked for all future memory to be locked.
        let locked = self.flags_at(at).is_some_and(|flags| flags.contains(VmFlags::LOCKED));
        let now = flags.contains(MapFlags::POPULATE) && !flags.contains(MapFlags::NONBLOCK);
        if now || locked {
            // As in Linux, a page that cannot be brought in is not the call's failure.
            let _later = self.bring_in(at..at + len.next_multiple_of(PAGE_SIZE));
        }
        Ok(at)
    }

    /// munmap(2). When it returns, no CPU has a translation of the range, and its frames are given
    /// back. Needs no memory but that of the VMAs.
    ///
    /// # Errors
    /// As in the manual page of munmap; nothing has changed.
    pub fn munmap(&self, addr: usize, len: usize) -> Result<(), Error> {
        self.change(|calls| calls.munmap(addr, len))
    }

    /// mprotect(2), and pkey_mprotect(2) with `pkey`. When it returns, no CPU has a translation
    /// with a right that was taken.
    ///
    /// # Errors
    /// As [`vma::Writer::mprotect`], which says what has changed then. [`Error::NotSupported`] if
    /// the page tables have no such protection key.
    pub fn mprotect(
        &self,
        addr: usize,
        len: usize,
        prot: u32,
        pkey: Option<u8>,
    ) -> Result<(), Error> {
        let flags = VmFlags::READ.with_pkey(pkey.unwrap_or(0));
        if F::page(PageSize::Size4K, Frame::default(), rights::attrs(flags, Share::CopyOnWrite))
            .is_err()
        {
            return Err(Error::NotSupported("a protection key in these page tables"));
        }
        let mut to_bring_in = Vec::new();
        let outcome = self.change_with(
            |calls| calls.mprotect(addr, len, prot, pkey),
            |hook| to_bring_in = core::mem::take(&mut hook.to_bring_in),
        );
        for range in to_bring_in {
            // As in Linux, a page that cannot be brought in is not the call's failure.
            let _later = self.bring_in(range);
        }
        outcome
    }

    /// brk(2) as the system call has it: moves the end of the heap if it can, and returns the end
    /// in force.
    ///
    /// # Errors
    /// [`Error::Tables`] if the page tables are corrupt.
    pub fn brk(&self, to: usize) -> Result<usize, Error> {
        let (old, end) =
            self.change(|calls| Ok::<_, vma::Error>((calls.layout().brk, calls.brk(to))))?;
        // After mlockall with MCL_FUTURE the heap is locked.
        let grown = old.next_multiple_of(PAGE_SIZE)..end.next_multiple_of(PAGE_SIZE);
        if !grown.is_empty()
            && self.flags_at(grown.start).is_some_and(|flags| flags.contains(VmFlags::LOCKED))
        {
            let _later = self.bring_in(grown);
        }
        Ok(end)
    }

    /// madvise(2). DONTNEED and FREE remove the pages; the next touch finds zeros. POPULATE_READ
    /// and POPULATE_WRITE bring pages in.
    ///
    /// # Errors
    /// As in the manual page of madvise. Advice about huge pages and guards is
    /// [`Error::NotSupported`].
    pub fn madvise(&self, addr: usize, len: usize, advice: Advice) -> Result<(), Error> {
        match advice {
            Advice::Collapse => return Err(Error::NotSupported("MADV_COLLAPSE")),
            Advice::GuardInstall | Advice::GuardRemove => {
                return Err(Error::NotSupported("guard pages"));
            }
            _ => {}
        }
        let done = self.change(|calls| calls.madvise(addr, len, advice));
        let (access, right) = match advice {
            Advice::PopulateRead => (Access::Read, VmFlags::READ),
            Advice::PopulateWrite => (Access::Write, VmFlags::WRITE),
            _ => return done,
        };
        // A hole, or a VMA without the right, ends it there; the pages before it are brought in.
        if !matches!(done, Ok(()) | Err(Error::Vma(vma::Error::Unmapped | vma::Error::WrongKind))) {
            return done;
        }
        let end = addr + len.next_multiple_of(PAGE_SIZE);
        let may = |at: &usize| self.flags_at(*at).is_some_and(|flags| flags.contains(right));
        let mut pages = (addr..end).step_by(PAGE_SIZE).take_while(may);
        let touched = pages.try_for_each(|at| self.touch(at, access));
        done.and(touched)
    }

    fn flags_at(&self, at: usize) -> Option<VmFlags> {
        self.vmas.lookup(&G::pin(), at).map(|(_, vma)| vma.flags)
    }

    pub(crate) fn touch(&self, at: usize, access: Access) -> Result<(), Error> {
        match self.handle_fault(VirtAddr::new(at as u64), access) {
            Ok(_) => Ok(()),
            Err(FaultError::Denied(..)) => Err(Error::Vma(vma::Error::WrongKind)),
            Err(error) => Err(error.into()),
        }
    }
}
