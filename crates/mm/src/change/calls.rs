//! The calls of a program.

use alloc::vec::Vec;
use core::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use grace::Concurrent;
use machine::{Frame, Machine, PageSize, VirtAddr};
use paging::{Format, Share};
use vma::{AttachRequest, Layout, MapFlags, MapRequest, PAGE_SIZE, VmFlags};

use crate::{
    Access, AddressSpace, Backing, Calls, Commitment, Error, FaultError, ObjectError, Shared,
    Shmem, ShmemKind, addresses::pages_of, fault::rights, object::text,
};

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// mmap(2) of anonymous memory: `len` bytes at `addr`, which is a hint unless `flags` say
    /// FIXED, with the rights `prot`: the sum of PROT_READ (1), PROT_WRITE (2) and PROT_EXEC (4).
    /// Returns the address. Shared memory is a [`Shmem`] of its own.
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
            return Err(Error::NotSupported("mapping a file without mmap_object"));
        }
        // The type is SHARED or SHARED_VALIDATE.
        let file = match flags.bits() & 0xf {
            1 | 3 => Some(self.shared_memory(len, flags)?),
            _ => None,
        };
        self.map(MapRequest { addr, len, prot, flags, file, offset: 0, driver_flags: None })
    }

    /// mmap(2) of an object, from the byte `offset` on; see [`mmap`](Self::mmap). A private map
    /// gets copies of the pages to which it writes.
    ///
    /// # Errors
    /// As in the manual page of mmap; nothing has changed. [`vma::Error::Sealed`]: a seal of the
    /// object forbids a writable shared map. One for reading never becomes writable then.
    pub fn mmap_object(
        &self,
        addr: usize,
        len: usize,
        prot: u32,
        flags: MapFlags,
        file: Backing<M>,
        offset: usize,
    ) -> Result<usize, Error> {
        if flags.intersects(MapFlags::HUGETLB) {
            return Err(Error::NotSupported("MAP_HUGETLB"));
        }
        self.check_home(&file)?;
        let shared = flags.bits() & 1 != 0;
        if !shared && file.object().info().device_memory.is_some() {
            return Err(Error::NotSupported("a private map of the memory of a device"));
        }
        let file = Some(file);
        self.map(MapRequest { addr, len, prot, flags, file, offset, driver_flags: None })
    }

    fn map(&self, request: MapRequest<Backing<M>>) -> Result<usize, Error> {
        let (flags, len, writes) = (request.flags, request.len, request.prot & 2 != 0);
        let replaced = pages_of(request.addr, len);
        let replaces =
            flags.contains(MapFlags::FIXED) && !flags.contains(MapFlags::FIXED_NOREPLACE);
        let at = self.change_and_tell(
            |_, events| if replaces { self.add_unmap(replaced, events) } else { Ok(()) },
            |calls, _| match calls.mmap(request.clone()) {
                // A seal has come since the flags were chosen: now they forbid writing.
                Err(vma::Error::Sealed) if !writes => calls.mmap(request),
                mapped => mapped,
            },
        )?;
        let now = flags.contains(MapFlags::POPULATE) && !flags.contains(MapFlags::NONBLOCK);
        self.populate_new(at, len, now);
        Ok(at)
    }

    /// Brings in the pages of a new map, if they are wanted `now`, or if it is locked: mlockall may
    /// have asked for that.
    fn populate_new(&self, at: usize, len: usize, now: bool) {
        let range = at..at + len.next_multiple_of(PAGE_SIZE);
        match now {
            // As in Linux, a page that cannot be brought in is not the call's failure.
            true => _ = self.bring_in(range),
            false => self.bring_in_locked(range),
        }
    }

    /// Checks that the object's frames are of this machine.
    fn check_home(&self, file: &Backing<M>) -> Result<(), Error> {
        match file.is_at_home(self.core.tables.paging()) {
            true => Ok(()),
            false => Err(ObjectError::Foreign.into()),
        }
    }

    /// The object of a shared anonymous map.
    fn shared_memory(&self, len: usize, flags: MapFlags) -> Result<Backing<M>, Error> {
        /// The inode numbers of these objects, which have no other name.
        static INODES: AtomicU64 = AtomicU64::new(1);
        let kind = ShmemKind {
            path: text(format_args!("/dev/zero (deleted)"))?,
            // Relaxed: only the number counts.
            inode: INODES.fetch_add(1, Ordering::Relaxed),
            device: (0, 1),
            segment: false,
        };
        let memory = Shmem::try_new(self.core.tables.paging(), kind)?;
        // A length that is too large for an object is too large for an address space.
        let pages = len.checked_next_multiple_of(PAGE_SIZE).ok_or(vma::Error::TooLong)?;
        memory.set_size(pages as u64).map_err(|_| vma::Error::NoSpace)?;
        if let Some(group) = self.core.group.get() {
            let ours = memory.set_group(group);
            debug_assert!(ours.is_ok(), "the group of a space is of its machine");
        }
        let reserves = |commitment: &&Shared<Commitment<M>>| {
            !flags.contains(MapFlags::NORESERVE) || !commitment.honours_noreserve()
        };
        if let Some(commitment) = self.core.commitment.get().filter(reserves) {
            memory.set_commitment(commitment).map_err(|_| vma::Error::Overcommit)?;
        }
        Ok(Backing::open(memory, true)?)
    }

    /// shmat(2). Returns the address.
    ///
    /// # Errors
    /// As [`vma::Writer::shmat`].
    pub fn shmat(&self, request: AttachRequest<Backing<M>>) -> Result<usize, Error> {
        self.check_home(&request.segment)?;
        let len = request.len;
        let at = self.change(|calls| calls.shmat(request))?;
        self.populate_new(at, len, false);
        Ok(at)
    }

    /// Calls `work` with the mmap lock held, and with the pages behind them: for the
    /// calls of [`vma::Writer`] that have no method here, such as mseal, mbind, `adopt` for a VMA
    /// that execve makes, `set_layout`.
    ///
    /// ```
    /// # use machine::{Asid, PageSize};
    /// # use mm::*;
    /// # use paging::{Paging, X86_64L4};
    /// # use sim::{Config, Grace, Sim};
    /// # let sim = Sim::new(Config::default()).unwrap();
    /// # let paging = Paging::<Sim, X86_64L4>::try_new(sim.clone(), PageSize::Size1G).unwrap();
    /// # sim.on_cpu(0, || {
    /// # let layout = Layout { mmap_base: 0x7000_0000, ..Layout::default() };
    /// # let profile = Profile::LINUX_6_18;
    /// # let tag = Asid(1);
    /// # let space = AddressSpace::<_, _, Grace>::try_new(&paging, tag, None, profile, layout)?;
    /// let at = space.mmap(0, 0x2000, 1, MapFlags::PRIVATE | MapFlags::ANONYMOUS)?;
    /// space.with_vmas(|calls| calls.mseal(at, 0x2000))?;
    /// assert_eq!(space.munmap(at, 0x2000).unwrap_err().errno(), 1);
    /// # Ok::<(), Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Context
    /// `work` must not call this space: the mmap lock is held.
    ///
    /// # Errors
    /// Those of `work`; [`Error::Tables`] if the page tables are corrupt.
    ///
    /// # Misuse
    /// A panic in `work` keeps what its calls have done, and settles what was promised. A writer
    /// cannot be exchanged for another one, by its lifetime; its host refuses steps of other VMAs,
    /// such as a copy's.
    pub fn with_vmas<T>(
        &self,
        work: impl FnOnce(&mut Calls<'_, '_, '_, M, F, G>) -> Result<T, vma::Error>,
    ) -> Result<T, Error> {
        // Not `change`, which takes a step of the machine: `work` may only look, on any thread.
        self.change_with(work, |_| ())
    }

    /// shmdt(2).
    ///
    /// # Errors
    /// As [`vma::Writer::shmdt`].
    pub fn shmdt(&self, addr: usize) -> Result<(), Error> {
        self.change(|calls| calls.shmdt(addr))
    }

    /// munmap(2). When it returns, no CPU has a translation of the range, and its frames are given
    /// back; [`UnmapPolicy::Grace`](crate::UnmapPolicy::Grace) lets private anonymous memory wait
    /// instead. Needs no memory but that of the VMAs.
    ///
    /// # Errors
    /// As in the manual page of munmap; nothing has changed.
    pub fn munmap(&self, addr: usize, len: usize) -> Result<(), Error> {
        self.change_and_tell(
            |_, events| self.add_unmap(pages_of(addr, len), events),
            |calls, _| {
                calls.munmap(addr, len)?;
                calls.host().check_unmapped(pages_of(addr, len));
                Ok(())
            },
        )
    }

    /// The effect of execve(2) on the memory of a program: unmaps everything, sealed or not, and
    /// begins with these addresses. The host activates the space as before, and maps the new
    /// program.
    ///
    /// # Errors
    /// [`Error::Vma`] with [`vma::Error::OutOfMemory`]; nothing has changed.
    pub fn exec(&self, layout: Layout) -> Result<(), Error> {
        self.change(|calls| calls.exec(layout))
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
            |host| to_bring_in = core::mem::take(&mut host.to_bring_in),
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
        let page = |at: usize| at.checked_next_multiple_of(PAGE_SIZE).unwrap_or(usize::MAX);
        let (old, end) = self.change_and_tell(
            |calls, events| self.add_unmap(page(to)..page(calls.layout().brk), events),
            |calls, events| {
                let old = calls.layout().brk;
                let end = calls.brk(to);
                if end == old {
                    events.clear();
                }
                calls.host().check_unmapped(page(end)..page(old));
                Ok((old, end))
            },
        )?;
        // After mlockall with MCL_FUTURE the heap is locked.
        self.bring_in_locked(page(old)..page(end));
        Ok(end)
    }

    pub(crate) fn flags_at(&self, at: usize) -> Option<VmFlags> {
        self.vma_at(at, |_, vma| vma.flags)
    }

    /// Brings in the pages of a range; a huge page in one step. A page that is there, with the
    /// right, is left alone: a fault would flush its translation.
    pub(super) fn touch_all(&self, range: Range<usize>, access: Access) -> Result<(), Error> {
        let page_at = |at: usize| {
            let guard = G::pin();
            self.core.tables.walk(&guard).get(VirtAddr::new(at as u64))
        };
        let is_there = |page: &paging::Mapping| {
            rights::suffices(page.attrs, access) && !self.core.is_special(page.frame)
        };
        let mut at = range.start;
        while at < range.end {
            let mut page = page_at(at);
            if !page.as_ref().is_some_and(is_there) {
                self.touch(at, access)?;
                page = page_at(at);
            }
            let huge = page.filter(|page| page.size != PageSize::Size4K);
            at = huge.map_or(at + PAGE_SIZE, |page| (page.page.get() + page.size.bytes()) as usize);
        }
        Ok(())
    }

    pub(super) fn touch(&self, at: usize, access: Access) -> Result<(), Error> {
        match self.handle_fault(VirtAddr::new(at as u64), access) {
            Ok(_) => Ok(()),
            Err(FaultError::Denied(..)) => Err(Error::Vma(vma::Error::WrongKind)),
            Err(error) => Err(error.into()),
        }
    }
}
