//! The changes of address spaces to which the mirror breaks down the records.
//!
//! A change is complete in itself, so it can be carried out on any address space with the same
//! rules. A call whose effect the rules do not determine is no [`SpaceChange`], or is another one:
//! a fixed map that a driver refused is the unmapping of its target.

use vma::{
    AttachRequest, Error, Host, Layout, LockAll, MapRequest, MappedFile, Policy, RemapRequest,
    Uffd, VmFlags, WholeVma, Writer,
};

/// A change of one address space, which maps files of type `F`.
///
/// ```
/// use trace::mirror::SpaceChange;
/// use vma::{AddressSpace, Layout, Profile};
/// # #[derive(Clone, PartialEq, Debug)]
/// # struct File;
/// # impl vma::MappedFile for File {
/// #     fn writable(&self) -> bool { true }
/// #     fn device(&self) -> (u32, u32) { (8, 1) }
/// #     fn inode(&self) -> u64 { 1 }
/// #     fn write_path(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result { Ok(()) }
/// # }
///
/// let mut space: AddressSpace<File, grace::Single> =
///     AddressSpace::new(Profile::LINUX_6_18, Layout::default());
/// let change: SpaceChange<File> = SpaceChange::Munmap { addr: 0x1001, len: 0x1000 };
/// assert_eq!(change.carry_out(&mut space.get_mut()), Err(vma::Error::Unaligned));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields are the arguments of the calls")]
pub enum SpaceChange<F> {
    /// mmap.
    Mmap(MapRequest<F>),
    /// munmap.
    Munmap { addr: usize, len: usize },
    /// mprotect, pkey_mprotect.
    Mprotect { addr: usize, len: usize, prot: u32, pkey: Option<u8> },
    /// mremap.
    Mremap(RemapRequest),
    /// brk.
    Brk(usize),
    /// madvise.
    Madvise { addr: usize, len: usize, advice: vma::Advice },
    /// mlock, mlock2.
    Mlock { addr: usize, len: usize, on_fault: bool },
    /// munlock.
    Munlock { addr: usize, len: usize },
    /// mlockall.
    Mlockall(LockAll),
    /// munlockall.
    Munlockall,
    /// mbind.
    Mbind { addr: usize, len: usize, policy: Option<Policy> },
    /// set_mempolicy_home_node.
    SetHomeNode { addr: usize, len: usize, node: u32 },
    /// remap_file_pages.
    RemapFilePages { addr: usize, len: usize, pgoff: usize },
    /// mseal.
    Mseal { addr: usize, len: usize },
    /// shmat.
    Shmat(AttachRequest<F>),
    /// shmdt.
    Shmdt(usize),
    /// PR_SET_MEMORY_MERGE.
    SetMemoryMerge(bool),
    /// PR_SET_MM.
    SetLayout(Layout),
    /// Whether the thread that makes the next calls has READ_IMPLIES_EXEC.
    SetReadImpliesExec(bool),
    /// pkey_alloc has returned this key, or, with `exec_only`, execute-only memory has it.
    AdoptPkey { key: u8, exec_only: bool },
    /// pkey_free.
    PkeyFree(u8),
    /// UFFDIO_REGISTER.
    Watch { addr: usize, len: usize, modes: VmFlags, uffd: Uffd },
    /// UFFDIO_UNREGISTER.
    Unwatch { addr: usize, len: usize },
    /// The userfaultfd with this number was closed.
    CloseWatch(u64),
    /// A VMA that execve or a driver makes.
    Adopt(WholeVma<F>),
    /// The first write to the VMA that contains this address.
    FirstWrite(usize),
    /// The stack that ends at `end` grew down to `start`.
    GrowDown { end: usize, start: usize },
    /// The kernel's state of a range after a call that failed half-way.
    Settle { start: usize, end: usize, flags: Option<VmFlags> },
}

impl<F: MappedFile> SpaceChange<F> {
    /// Carries it out on VMAs. Returns the address that mmap, mremap and shmat choose, the end of
    /// the heap for brk, and 0 otherwise.
    ///
    /// # Errors
    /// Those of the call.
    pub fn carry_out<R: grace::Reclaim, H: Host<F, R>>(
        &self,
        space: &mut Writer<'_, F, R, H>,
    ) -> Result<usize, Error> {
        let done = match self.clone() {
            SpaceChange::Mmap(request) => return space.mmap(request),
            SpaceChange::Mremap(request) => return space.mremap(request),
            SpaceChange::Shmat(request) => return space.shmat(request),
            SpaceChange::Brk(to) => return Ok(space.brk(to)),
            SpaceChange::Munmap { addr, len } => space.munmap(addr, len),
            SpaceChange::Mprotect { addr, len, prot, pkey } => {
                space.mprotect(addr, len, prot, pkey)
            }
            SpaceChange::Madvise { addr, len, advice } => space.madvise(addr, len, advice),
            SpaceChange::Mlock { addr, len, on_fault } => space.mlock(addr, len, on_fault),
            SpaceChange::Munlock { addr, len } => space.munlock(addr, len),
            SpaceChange::Mlockall(what) => space.mlockall(what),
            SpaceChange::Munlockall => space.munlockall(),
            SpaceChange::Mbind { addr, len, policy } => space.mbind(addr, len, policy),
            SpaceChange::SetHomeNode { addr, len, node } => space.set_home_node(addr, len, node),
            SpaceChange::RemapFilePages { addr, len, pgoff } => {
                space.remap_file_pages(addr, len, pgoff)
            }
            SpaceChange::Mseal { addr, len } => space.mseal(addr, len),
            SpaceChange::Shmdt(addr) => space.shmdt(addr),
            SpaceChange::SetMemoryMerge(on) => space.set_memory_merge(on),
            SpaceChange::SetLayout(layout) => {
                space.set_layout(layout);
                Ok(())
            }
            SpaceChange::SetReadImpliesExec(on) => {
                space.set_read_implies_exec(on);
                Ok(())
            }
            SpaceChange::AdoptPkey { key, exec_only } => space.adopt_pkey(key, exec_only),
            SpaceChange::PkeyFree(key) => space.pkey_free(key),
            SpaceChange::Watch { addr, len, modes, uffd } => space.watch(addr, len, modes, uffd),
            SpaceChange::Unwatch { addr, len } => space.unwatch(addr, len),
            SpaceChange::CloseWatch(id) => space.close_watch(id),
            SpaceChange::Adopt(whole) => space.adopt(whole),
            SpaceChange::FirstWrite(addr) => space.first_write(addr),
            SpaceChange::GrowDown { end, start } => space.grow_down(end, start),
            SpaceChange::Settle { start, end, flags } => space.settle(start, end, flags),
        };
        done.map(|()| 0)
    }
}

impl<F> SpaceChange<F> {
    /// The same change with the files of another address space.
    pub fn with_files<G>(self, file: impl FnOnce(F) -> G) -> SpaceChange<G> {
        match self {
            SpaceChange::Mmap(MapRequest {
                addr,
                len,
                prot,
                flags,
                file: old,
                offset,
                driver_flags,
            }) => {
                let file = old.map(file);
                SpaceChange::Mmap(MapRequest { addr, len, prot, flags, file, offset, driver_flags })
            }
            SpaceChange::Shmat(request) => {
                let AttachRequest { segment, len, addr, read_only, exec, replace, round } = request;
                let segment = file(segment);
                SpaceChange::Shmat(AttachRequest {
                    segment,
                    len,
                    addr,
                    read_only,
                    exec,
                    replace,
                    round,
                })
            }
            SpaceChange::Adopt(WholeVma { start, end, flags, pgoff, file: old, name }) => {
                SpaceChange::Adopt(WholeVma { start, end, flags, pgoff, file: old.map(file), name })
            }
            SpaceChange::Munmap { addr, len } => SpaceChange::Munmap { addr, len },
            SpaceChange::Mprotect { addr, len, prot, pkey } => {
                SpaceChange::Mprotect { addr, len, prot, pkey }
            }
            SpaceChange::Mremap(request) => SpaceChange::Mremap(request),
            SpaceChange::Brk(to) => SpaceChange::Brk(to),
            SpaceChange::Madvise { addr, len, advice } => {
                SpaceChange::Madvise { addr, len, advice }
            }
            SpaceChange::Mlock { addr, len, on_fault } => {
                SpaceChange::Mlock { addr, len, on_fault }
            }
            SpaceChange::Munlock { addr, len } => SpaceChange::Munlock { addr, len },
            SpaceChange::Mlockall(what) => SpaceChange::Mlockall(what),
            SpaceChange::Munlockall => SpaceChange::Munlockall,
            SpaceChange::Mbind { addr, len, policy } => SpaceChange::Mbind { addr, len, policy },
            SpaceChange::SetHomeNode { addr, len, node } => {
                SpaceChange::SetHomeNode { addr, len, node }
            }
            SpaceChange::RemapFilePages { addr, len, pgoff } => {
                SpaceChange::RemapFilePages { addr, len, pgoff }
            }
            SpaceChange::Mseal { addr, len } => SpaceChange::Mseal { addr, len },
            SpaceChange::Shmdt(addr) => SpaceChange::Shmdt(addr),
            SpaceChange::SetMemoryMerge(on) => SpaceChange::SetMemoryMerge(on),
            SpaceChange::SetLayout(layout) => SpaceChange::SetLayout(layout),
            SpaceChange::SetReadImpliesExec(on) => SpaceChange::SetReadImpliesExec(on),
            SpaceChange::AdoptPkey { key, exec_only } => SpaceChange::AdoptPkey { key, exec_only },
            SpaceChange::PkeyFree(key) => SpaceChange::PkeyFree(key),
            SpaceChange::Watch { addr, len, modes, uffd } => {
                SpaceChange::Watch { addr, len, modes, uffd }
            }
            SpaceChange::Unwatch { addr, len } => SpaceChange::Unwatch { addr, len },
            SpaceChange::CloseWatch(id) => SpaceChange::CloseWatch(id),
            SpaceChange::FirstWrite(addr) => SpaceChange::FirstWrite(addr),
            SpaceChange::GrowDown { end, start } => SpaceChange::GrowDown { end, start },
            SpaceChange::Settle { start, end, flags } => SpaceChange::Settle { start, end, flags },
        }
    }
}
