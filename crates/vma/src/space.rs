//! An address space: a range tree of VMAs, limits, a heap, and the lock that serialises changes.
//!
//! Readers find VMAs without a lock, under a guard ([`AddressSpace::pin`], [`AddressSpace::find`]).
//! So a page fault or a listing never waits for a call and never delays one. Only the first reader
//! on another CPU may wait for one write to the tree, in a space that one CPU has used alone
//! ([`maple::SoleTree`]). A change takes
//! [`AddressSpace::write`] and calls the methods of the [`Writer`]. The lock is the tree's own: the
//! [`Writer`] holds the tree's writer, so it reads without a guard and writes without taking
//! another lock. The same lock guards the rest of the state ([`SpaceState`]).
//!
//! Each call is all or nothing (I7), unless its documentation says that it stops half-way, as Linux
//! does.

use core::ops::Range;

use grace::{Concurrent, Reclaim};
use maple::{Nodes, SoleLock, SoleTree};

#[cfg(any(test, fuzzing))]
use crate::vma_counts::VmaCounts;
use crate::{
    Area, Error, Layout, MappedFile, Profile, RefCounted, VmFlags, Vma, host::Host,
    space_state::SpaceState, tree::Tree, tree::VmaRef, tree::Vmas,
};

/// The address space of a program. `F` is the host's file type, `R` the tree's reclamation engine
/// ([`grace::Single`] for one owner).
///
/// ```
/// use vma::{AddressSpace, Layout, MapRequest, NoFile, Profile};
/// let layout = Layout { mmap_base: 0x7fff_0000_0000, ..Layout::default() };
/// let space = AddressSpace::<NoFile, grace::Epoch>::new(Profile::LINUX_6_18, layout);
/// let addr = space.write().mmap(MapRequest::anonymous(0x3000, 3))?;
/// assert_eq!(addr, 0x7ffe_ffff_d000);
///
/// let guard = space.pin();
/// let (range, vma) = space.find(&guard, addr).unwrap();
/// assert_eq!(range, addr..addr + 0x3000);
/// assert_eq!(vma.flags.to_string(), "rd,wr,mr,mw,me,ac");
/// # Ok::<(), vma::Error>(())
/// ```
pub struct AddressSpace<F: MappedFile, R: Reclaim> {
    profile: Profile,
    tree: Tree<F, R>,
    state: SpaceState,
}

impl<F: MappedFile, R: Reclaim> AddressSpace<F, R> {
    /// An empty address space. Allocates nothing.
    pub fn new(profile: Profile, layout: Layout) -> Self {
        AddressSpace { profile, tree: SoleTree::new_in(), state: SpaceState::new(layout) }
    }

    pub(crate) fn from_parts(profile: Profile, tree: Tree<F, R>, state: SpaceState) -> Self {
        AddressSpace { profile, tree, state }
    }

    /// The bytes of VMAs that count as promised memory. Exact while no call is under way, and for
    /// the holder of the lock between two steps.
    pub fn accounted(&self) -> usize {
        self.state.counts().sizes.accounted().unsigned_abs()
    }

    /// A guard for reading VMAs. Cost: that of the engine.
    pub fn pin(&self) -> R::Guard {
        self.tree.pin()
    }

    /// The first VMA that ends above `addr`, with its range. This is the lookup of a page fault.
    ///
    /// Takes no lock, allocates nothing, and writes no shared memory (I2). O(height of the tree),
    /// two to three cache lines per level.
    pub fn find<'g>(
        &'g self,
        guard: &'g R::Guard,
        addr: usize,
    ) -> Option<(Range<usize>, &'g Vma<F>)> {
        let (range, vma) = self.tree.find(guard, addr..=usize::MAX)?;
        Some((*range.start()..range.end() + 1, vma.get()))
    }

    /// The VMA that contains `addr`, with its range. Cost and context: as [`find`](Self::find).
    pub fn lookup<'g>(
        &'g self,
        guard: &'g R::Guard,
        addr: usize,
    ) -> Option<(Range<usize>, &'g Vma<F>)> {
        let (range, vma) = self.tree.lookup(guard, addr)?;
        Some((*range.start()..range.end() + 1, vma.get()))
    }

    /// Whether `addr` is still in the VMA `seen`, which was found under this guard: in that very
    /// VMA, not in an equal one. Its range may have changed. A page fault asks this again when it
    /// holds the lock of the page's table.
    ///
    /// The guard keeps the VMA allocated, so no other VMA can have its address: the comparison of
    /// addresses is exact. Cost: one descent of the tree. Context: as [`find`](Self::find).
    pub fn is_current<'g>(&'g self, guard: &'g R::Guard, addr: usize, seen: &'g Vma<F>) -> bool {
        self.tree.load(guard, addr).is_some_and(|now| core::ptr::eq(now.get(), seen))
    }

    /// The VMAs in order, with their ranges, from the first that ends above `addr`. Each appears as
    /// it was at some moment under the guard; one that has grown downwards meanwhile begins where
    /// the one before ends. Takes no lock, allocates nothing.
    pub fn iter<'g>(
        &'g self,
        guard: &'g R::Guard,
        addr: usize,
    ) -> impl Iterator<Item = (Range<usize>, &'g Vma<F>)> {
        let all = self.tree.iter(guard, addr..=usize::MAX);
        all.map(|(range, vma)| (*range.start()..range.end() + 1, vma.get()))
    }

    /// A writer of the VMAs of a shared address space. Takes the mmap lock, and waits for it. Not
    /// for interrupts.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub fn write(&self) -> Writer<'_, F, R>
    where
        R: Concurrent,
    {
        let AddressSpace { profile, tree, state } = self;
        Writer { vmas: Vmas { profile, tree: tree.lock(), state }, host: () }
    }

    /// As [`write`](Self::write), but returns `None` instead of waiting. For code that must do
    /// something while it waits, such as answering requests of other CPUs. The writer comes later,
    /// in its place ([`MmapLock::writer`]): it is large, and should not be moved.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub fn try_write(&self) -> Option<MmapLock<'_, F, R>>
    where
        R: Concurrent,
    {
        Some(MmapLock { space: self, lock: self.tree.try_lock()? })
    }

    pub(crate) fn state(&self) -> &SpaceState {
        &self.state
    }

    /// A writer of the VMAs for the only owner. Takes no lock, and frees replaced VMAs at once.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub fn get_mut(&mut self) -> Writer<'_, F, R> {
        let (profile, tree) = (&self.profile, self.tree.get_mut());
        Writer { vmas: Vmas { profile, tree, state: &self.state }, host: () }
    }
}

/// The lock of an address space, held until this or its writer is dropped.
#[must_use = "the lock is released when it is dropped"]
pub struct MmapLock<'a, F: MappedFile, R: Reclaim> {
    space: &'a AddressSpace<F, R>,
    lock: SoleLock<'a, RefCounted<Vma<F>>, R, Nodes>,
}

impl<'a, F: MappedFile, R: Reclaim> MmapLock<'a, F, R> {
    /// A writer of the VMAs. Each step of a call goes through the host.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub fn writer<H: Host<F, R>>(self, host: H) -> Writer<'a, F, R, H> {
        let AddressSpace { profile, state, .. } = self.space;
        Writer { vmas: Vmas { profile, tree: self.lock.writer(), state }, host }
    }
}

/// Writes what follows the line of a VMA, in [`Writer::write_maps_from`]. Returns whether the
/// listing goes on.
pub type MoreLines<'a, F> = dyn FnMut(&mut dyn core::fmt::Write, Range<usize>, &Vma<F>) -> Result<bool, core::fmt::Error>
    + 'a;

/// The writer of an address space. The system calls are its methods.
///
/// Holds the lock of a shared address space until dropped. Calls may allocate, so they are not for
/// interrupts.
///
/// ```
/// # use vma::*;
/// # let layout = Layout { mmap_base: 0x7fff_0000_0000, ..Layout::default() };
/// # let mut space = AddressSpace::<NoFile, grace::Single>::new(Profile::LINUX_6_18, layout);
/// # let mut writer = space.get_mut();
/// # let at = writer.mmap(MapRequest::anonymous(0x4000, 3))?;
/// writer.mprotect(at, 0x1000, 1, None)?;
/// writer.munmap(at + 0x3000, 0x1000)?;
/// let shape: Vec<_> = writer.areas().map(|area| (area.start - at, area.end - at)).collect();
/// assert_eq!(shape, [(0, 0x1000), (0x1000, 0x3000)]);
/// # Ok::<(), vma::Error>(())
/// ```
///
/// `H` applies the steps of its calls to the pages behind the VMAs ([`Host`]); `()` has no pages.
pub struct Writer<'a, F: MappedFile, R: Reclaim, H = ()> {
    pub(crate) vmas: Vmas<'a, F, R>,
    pub(crate) host: H,
}

impl<F: MappedFile, R: Reclaim, H: Host<F, R>> Writer<'_, F, R, H> {
    /// Checks that `more` VMAs fit below the limit.
    pub(crate) fn room_for(&self, more: usize) -> Result<(), Error> {
        if more > 0 && self.count() + more > self.vmas.profile.max_map_count {
            return Err(Error::TooManyMaps);
        }
        Ok(())
    }

    /// The number of VMAs. Constant time.
    pub fn count(&self) -> usize {
        self.vmas.state.counts().vmas.unsigned_abs()
    }

    /// The VMA that contains `addr`.
    pub fn area_at(&self, addr: usize) -> Option<Area<F>> {
        self.vmas.covering(addr)
    }

    /// All VMAs in order.
    pub fn areas(&self) -> impl Iterator<Item = Area<F>> + '_ {
        self.areas_from(0)
    }

    /// The VMAs in order, from the first that ends above `addr`.
    pub fn areas_from(&self, addr: usize) -> impl Iterator<Item = Area<F>> + '_ {
        self.vmas.tree.iter(addr..=usize::MAX).map(|found| VmaRef::of(found).keep())
    }

    /// The addresses of the program's parts.
    pub fn layout(&self) -> Layout {
        self.vmas.state.layout()
    }

    /// Changes the addresses of the program's parts (PR_SET_MM). No VMA changes.
    pub fn set_layout(&mut self, layout: Layout) {
        self.vmas.state.set_layout(layout);
    }

    /// Sets whether the thread that makes the next calls has the personality READ_IMPLIES_EXEC. If
    /// so, readable maps, readable protections and the heap are also executable, where that is
    /// allowed. A forked child starts with its parent's setting.
    pub fn set_read_implies_exec(&mut self, on: bool) {
        self.vmas.state.set_read_implies_exec(on);
    }

    /// PR_SET_MDWE: from now on no memory becomes executable, and none is writable and executable.
    /// The bits are those of the call: 1 denies, and with 2 a forked child does not inherit it.
    ///
    /// # Errors
    /// [`Error::BadFlags`]: unknown bits, or 2 without 1. [`Error::DenyExecSet`]: other bits are
    /// set already.
    pub fn set_deny_exec(&mut self, bits: usize) -> Result<(), Error> {
        if !matches!(bits, 0 | 1 | 3) {
            return Err(Error::BadFlags);
        }
        let now = self.vmas.state.deny_exec();
        if now != 0 && now != bits {
            return Err(Error::DenyExecSet);
        }
        self.vmas.state.set_deny_exec(bits);
        Ok(())
    }

    /// PR_GET_MDWE: the bits of [`set_deny_exec`](Self::set_deny_exec); 0 if it was never called.
    pub fn deny_exec(&self) -> usize {
        self.vmas.state.deny_exec()
    }

    /// The bits that a forked child, or the next program of execve(2), begins with.
    pub fn inherited_deny_exec(&self) -> usize {
        self.vmas.state.inherited_deny_exec()
    }

    /// Whether PR_SET_MDWE denies a VMA with the flags `old` to get the flags `new`.
    pub(crate) fn denies_exec(&self, old: VmFlags, new: VmFlags) -> bool {
        self.vmas.state.deny_exec() != 0
            && new.contains(VmFlags::EXEC)
            && (new.contains(VmFlags::WRITE) || !old.contains(VmFlags::EXEC))
    }

    /// The levels, nodes and bytes of the tree. O(nodes).
    pub fn tree_stats(&self) -> maple::Stats {
        self.vmas.tree.stats()
    }

    /// Checks the tree's invariants, and that it holds whole pages in order.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn validate(&mut self) {
        if let Err(violation) = self.vmas.tree.validate() {
            panic!("{violation}");
        }
        let mut end = 0;
        let mut counts = VmaCounts::default();
        for area in self.areas() {
            counts.count(&*area.vma, 1);
            counts = counts.size(area.vma.flags, area.end - area.start, 1);
            assert!(end <= area.start && area.start < area.end);
            assert!(
                area.start.is_multiple_of(crate::PAGE_SIZE)
                    && area.end.is_multiple_of(crate::PAGE_SIZE)
            );
            end = area.end;
        }
        assert_eq!(self.vmas.state.counts(), counts, "the counts of VMAs differ from the tree");
    }

    /// Writes the listing of `/proc/PID/maps`, without the vsyscall page, which is no VMA. O(VMAs).
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_maps(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
        self.write_maps_from(0, out, &mut |_, _, _| Ok(true)).map(|_| ())
    }

    /// As [`write_maps`](Self::write_maps), of the VMAs that end above `from`. Calls `more` after
    /// each line, as `/proc/PID/smaps` has more lines there, until it says to stop. Returns the end
    /// of the last VMA then, from which a later call goes on; `None` at the end.
    ///
    /// # Errors
    /// Those of `out` and of `more`.
    pub fn write_maps_from(
        &self,
        from: usize,
        out: &mut dyn core::fmt::Write,
        more: &mut MoreLines<'_, F>,
    ) -> Result<Option<usize>, core::fmt::Error> {
        let layout = self.layout();
        for (range, vma) in self.vmas.tree.iter(from..=usize::MAX) {
            let range = *range.start()..range.end() + 1;
            let end = range.end;
            crate::proc_maps::write_line(out, range.clone(), vma.get(), &layout)?;
            if !more(out, range, vma.get())? {
                return Ok(Some(end));
            }
        }
        Ok(None)
    }
}
