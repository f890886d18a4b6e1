//! Steps: the changes of an address space to which the mirror breaks down the records.
//!
//! A step has all that the change needs, so it can be carried out on any address space with the
//! same rules. A call whose effect the rules do not determine is no step, or is another one: a
//! fixed map that a driver refused is the unmapping of its target.

use vma::{
    AttachRequest, Error, Host, Layout, LockAll, MapRequest, MappedFile, Policy, RemapRequest,
    Uffd, VmFlags, WholeVma, Writer,
};

/// A change of one address space, which maps files of type `F`.
///
/// ```
/// use trace::mirror::Step;
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
/// let step: Step<File> = Step::Munmap { addr: 0x1001, len: 0x1000 };
/// assert_eq!(step.carry_out(&mut space.get_mut()), Err(vma::Error::Unaligned));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the fields are the arguments of the calls")]
pub enum Step<F> {
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

impl<F: MappedFile> Step<F> {
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
            Step::Mmap(request) => return space.mmap(request),
            Step::Mremap(request) => return space.mremap(request),
            Step::Shmat(request) => return space.shmat(request),
            Step::Brk(to) => return Ok(space.brk(to)),
            Step::Munmap { addr, len } => space.munmap(addr, len),
            Step::Mprotect { addr, len, prot, pkey } => space.mprotect(addr, len, prot, pkey),
            Step::Madvise { addr, len, advice } => space.madvise(addr, len, advice),
            Step::Mlock { addr, len, on_fault } => space.mlock(addr, len, on_fault),
            Step::Munlock { addr, len } => space.munlock(addr, len),
            Step::Mlockall(what) => space.mlockall(what),
            Step::Munlockall => space.munlockall(),
            Step::Mbind { addr, len, policy } => space.mbind(addr, len, policy),
            Step::SetHomeNode { addr, len, node } => space.set_home_node(addr, len, node),
            Step::RemapFilePages { addr, len, pgoff } => space.remap_file_pages(addr, len, pgoff),
            Step::Mseal { addr, len } => space.mseal(addr, len),
            Step::Shmdt(addr) => space.shmdt(addr),
            Step::SetMemoryMerge(on) => space.set_memory_merge(on),
            Step::SetLayout(layout) => {
                space.set_layout(layout);
                Ok(())
            }
            Step::SetReadImpliesExec(on) => {
                space.set_read_implies_exec(on);
                Ok(())
            }
            Step::AdoptPkey { key, exec_only } => space.adopt_pkey(key, exec_only),
            Step::PkeyFree(key) => space.pkey_free(key),
            Step::Watch { addr, len, modes, uffd } => space.watch(addr, len, modes, uffd),
            Step::Unwatch { addr, len } => space.unwatch(addr, len),
            Step::CloseWatch(id) => space.close_watch(id),
            Step::Adopt(whole) => space.adopt(whole),
            Step::FirstWrite(addr) => space.first_write(addr),
            Step::GrowDown { end, start } => space.grow_down(end, start),
            Step::Settle { start, end, flags } => space.settle(start, end, flags),
        };
        done.map(|()| 0)
    }
}

impl<F> Step<F> {
    /// The same step with the files of another address space.
    pub fn with_files<G>(self, file: impl FnOnce(F) -> G) -> Step<G> {
        match self {
            Step::Mmap(MapRequest { addr, len, prot, flags, file: old, offset, driver_flags }) => {
                let file = old.map(file);
                Step::Mmap(MapRequest { addr, len, prot, flags, file, offset, driver_flags })
            }
            Step::Shmat(request) => {
                let AttachRequest { segment, len, addr, read_only, exec, replace, round } = request;
                let segment = file(segment);
                Step::Shmat(AttachRequest { segment, len, addr, read_only, exec, replace, round })
            }
            Step::Adopt(WholeVma { start, end, flags, pgoff, file: old, name }) => {
                Step::Adopt(WholeVma { start, end, flags, pgoff, file: old.map(file), name })
            }
            Step::Munmap { addr, len } => Step::Munmap { addr, len },
            Step::Mprotect { addr, len, prot, pkey } => Step::Mprotect { addr, len, prot, pkey },
            Step::Mremap(request) => Step::Mremap(request),
            Step::Brk(to) => Step::Brk(to),
            Step::Madvise { addr, len, advice } => Step::Madvise { addr, len, advice },
            Step::Mlock { addr, len, on_fault } => Step::Mlock { addr, len, on_fault },
            Step::Munlock { addr, len } => Step::Munlock { addr, len },
            Step::Mlockall(what) => Step::Mlockall(what),
            Step::Munlockall => Step::Munlockall,
            Step::Mbind { addr, len, policy } => Step::Mbind { addr, len, policy },
            Step::SetHomeNode { addr, len, node } => Step::SetHomeNode { addr, len, node },
            Step::RemapFilePages { addr, len, pgoff } => Step::RemapFilePages { addr, len, pgoff },
            Step::Mseal { addr, len } => Step::Mseal { addr, len },
            Step::Shmdt(addr) => Step::Shmdt(addr),
            Step::SetMemoryMerge(on) => Step::SetMemoryMerge(on),
            Step::SetLayout(layout) => Step::SetLayout(layout),
            Step::SetReadImpliesExec(on) => Step::SetReadImpliesExec(on),
            Step::AdoptPkey { key, exec_only } => Step::AdoptPkey { key, exec_only },
            Step::PkeyFree(key) => Step::PkeyFree(key),
            Step::Watch { addr, len, modes, uffd } => Step::Watch { addr, len, modes, uffd },
            Step::Unwatch { addr, len } => Step::Unwatch { addr, len },
            Step::CloseWatch(id) => Step::CloseWatch(id),
            Step::FirstWrite(addr) => Step::FirstWrite(addr),
            Step::GrowDown { end, start } => Step::GrowDown { end, start },
            Step::Settle { start, end, flags } => Step::Settle { start, end, flags },
        }
    }
}
