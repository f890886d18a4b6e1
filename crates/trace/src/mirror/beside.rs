//! Address spaces beside the mirror's, which follow the same steps.
//!
//! The mirror decides what a record means. Another implementation of address spaces, such as one
//! with pages, gets each step after the mirror, with the mirror's result, and compares its own.

use std::ops::{Deref, Range};

use vma::{
    Advice, AttachRequest, Error, Layout, LockAll, MapRequest, Policy, Profile, RemapRequest, Uffd,
    VmFlags, WholeVma, Writer,
};

use super::{
    Engine, File, Step,
    owners::{Before, Owners},
};
use crate::record::{MmId, Record};

/// Address spaces that follow the mirror's. Each method does nothing by default.
///
/// ```
/// use trace::{mirror::{Beside, File, Step}, record::MmId, replay::replay_beside};
///
/// /// Counts steps.
/// #[derive(Default)]
/// struct Count(u64);
///
/// impl Beside for Count {
///     fn step(&mut self, _: MmId, _: &Step<File>, _: Result<usize, vma::Error>) {
///         self.0 += 1;
///     }
/// }
/// let recording = "# vmtrace 1 kernel=6.18\n\
///     X 1 7 vmas=0 brk=0 start_brk=0 start_stack=0 mmap_base=7f0000000000 exe=/bin/x\n\
///     M 1 7 munmap 1000 1000 = 0\nQ 1\n";
/// let (summary, count) = replay_beside(recording.as_bytes(), "example", Count::default())?;
/// assert_eq!((summary.total.calls(), count.0), (1, 1));
/// # Ok::<(), trace::text::Error>(())
/// ```
pub trait Beside {
    /// The next record, which begins in this line of the file.
    fn record(&mut self, line: usize, record: &Record) {
        let _ = (line, record);
    }

    /// A new program has this address space.
    fn exec(&mut self, mm: MmId, profile: Profile, layout: Layout) {
        let _ = (mm, profile, layout);
    }

    /// The mirror has carried out a step, with this result: the address that was chosen, or 0.
    fn step(&mut self, mm: MmId, step: &Step<File>, result: Result<usize, Error>) {
        let _ = (mm, step, result);
    }

    /// `mm` was forked.
    fn fork(&mut self, mm: MmId, child: MmId) {
        let _ = (mm, child);
    }

    /// The address space has ended. Its VMAs are still those of its last step.
    fn end(&mut self, mm: MmId) {
        let _ = mm;
    }

    /// The VMAs of the address space that the record changed, after it.
    fn compare(&mut self, mm: MmId, vmas: &mut dyn Iterator<Item = (Range<usize>, VmFlags)>) {
        let _ = (mm, vmas);
    }
}

/// Nothing follows the mirror.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Beside for Alone {}

/// The right to change a mirrored address space, and what follows it. Every change is a [`Step`].
pub(super) struct Steps<'a> {
    pub(super) mm: MmId,
    pub(super) writer: Writer<'a, File, Engine>,
    pub(super) beside: &'a mut dyn Beside,
    pub(super) owners: Option<&'a mut Owners>,
}

impl<'a> Deref for Steps<'a> {
    type Target = Writer<'a, File, Engine>;

    fn deref(&self) -> &Self::Target {
        &self.writer
    }
}

impl Steps<'_> {
    fn step(&mut self, step: Step<File>) -> Result<usize, Error> {
        let before = self.owners.as_ref().map(|_| Before::of(&self.writer));
        let result = step.carry_out(&mut self.writer);
        if let (Some(owners), Some(before)) = (&mut self.owners, before) {
            owners.step(&step, result, &self.writer, before);
        }
        self.beside.step(self.mm, &step, result);
        result
    }

    fn done(&mut self, step: Step<File>) -> Result<(), Error> {
        self.step(step).map(drop)
    }

    pub(super) fn mmap(&mut self, request: MapRequest<File>) -> Result<usize, Error> {
        self.step(Step::Mmap(request))
    }

    pub(super) fn mremap(&mut self, request: RemapRequest) -> Result<usize, Error> {
        self.step(Step::Mremap(request))
    }

    pub(super) fn shmat(&mut self, request: AttachRequest<File>) -> Result<usize, Error> {
        self.step(Step::Shmat(request))
    }

    pub(super) fn brk(&mut self, to: usize) -> usize {
        self.step(Step::Brk(to)).unwrap_or_else(|_| self.layout().brk)
    }

    pub(super) fn munmap(&mut self, addr: usize, len: usize) -> Result<(), Error> {
        self.done(Step::Munmap { addr, len })
    }

    pub(super) fn mprotect(
        &mut self,
        addr: usize,
        len: usize,
        prot: u32,
        pkey: Option<u8>,
    ) -> Result<(), Error> {
        self.done(Step::Mprotect { addr, len, prot, pkey })
    }

    pub(super) fn madvise(&mut self, addr: usize, len: usize, advice: Advice) -> Result<(), Error> {
        self.done(Step::Madvise { addr, len, advice })
    }

    pub(super) fn mlock(&mut self, addr: usize, len: usize, on_fault: bool) -> Result<(), Error> {
        self.done(Step::Mlock { addr, len, on_fault })
    }

    pub(super) fn munlock(&mut self, addr: usize, len: usize) -> Result<(), Error> {
        self.done(Step::Munlock { addr, len })
    }

    pub(super) fn mlockall(&mut self, what: LockAll) -> Result<(), Error> {
        self.done(Step::Mlockall(what))
    }

    pub(super) fn munlockall(&mut self) -> Result<(), Error> {
        self.done(Step::Munlockall)
    }

    pub(super) fn mbind(
        &mut self,
        addr: usize,
        len: usize,
        policy: Option<Policy>,
    ) -> Result<(), Error> {
        self.done(Step::Mbind { addr, len, policy })
    }

    pub(super) fn set_home_node(
        &mut self,
        addr: usize,
        len: usize,
        node: u32,
    ) -> Result<(), Error> {
        self.done(Step::SetHomeNode { addr, len, node })
    }

    pub(super) fn remap_file_pages(
        &mut self,
        addr: usize,
        len: usize,
        pgoff: usize,
    ) -> Result<(), Error> {
        self.done(Step::RemapFilePages { addr, len, pgoff })
    }

    pub(super) fn mseal(&mut self, addr: usize, len: usize) -> Result<(), Error> {
        self.done(Step::Mseal { addr, len })
    }

    pub(super) fn shmdt(&mut self, addr: usize) -> Result<(), Error> {
        self.done(Step::Shmdt(addr))
    }

    pub(super) fn set_memory_merge(&mut self, on: bool) -> Result<(), Error> {
        self.done(Step::SetMemoryMerge(on))
    }

    pub(super) fn set_layout(&mut self, layout: Layout) {
        // It cannot fail.
        let _ = self.step(Step::SetLayout(layout));
    }

    pub(super) fn set_read_implies_exec(&mut self, on: bool) {
        // It cannot fail.
        let _ = self.step(Step::SetReadImpliesExec(on));
    }

    pub(super) fn adopt_pkey(&mut self, key: u8, exec_only: bool) {
        // It fails if the recorded kernel has no such key. Then nothing depends on it.
        let _ = self.step(Step::AdoptPkey { key, exec_only });
    }

    pub(super) fn pkey_free(&mut self, key: u8) -> Result<(), Error> {
        self.done(Step::PkeyFree(key))
    }

    pub(super) fn watch(
        &mut self,
        addr: usize,
        len: usize,
        modes: VmFlags,
        uffd: Uffd,
    ) -> Result<(), Error> {
        self.done(Step::Watch { addr, len, modes, uffd })
    }

    pub(super) fn unwatch(&mut self, addr: usize, len: usize) -> Result<(), Error> {
        self.done(Step::Unwatch { addr, len })
    }

    pub(super) fn close_watch(&mut self, id: u64) -> Result<(), Error> {
        self.done(Step::CloseWatch(id))
    }

    pub(super) fn adopt(&mut self, whole: WholeVma<File>) -> Result<(), Error> {
        self.done(Step::Adopt(whole))
    }

    pub(super) fn first_write(&mut self, addr: usize) -> Result<(), Error> {
        self.done(Step::FirstWrite(addr))
    }

    pub(super) fn grow_down(&mut self, end: usize, start: usize) -> Result<(), Error> {
        self.done(Step::GrowDown { end, start })
    }

    pub(super) fn settle(
        &mut self,
        start: usize,
        end: usize,
        flags: Option<VmFlags>,
    ) -> Result<(), Error> {
        self.done(Step::Settle { start, end, flags })
    }
}
