//! An address space: a range tree of VMAs, limits, a heap, and the lock that serialises changes.
//!
//! Readers find VMAs without a lock, under a guard ([`AddressSpace::pin`], [`AddressSpace::find`]).
//! So a page fault or a listing never waits for a change and never delays one. A change takes
//! [`AddressSpace::write`] and calls the methods of the [`Writer`]. The tree has no lock of its
//! own: the right to write to it is a token inside the address space's lock, next to the other data
//! that the lock guards.
//!
//! Each call is all or nothing (I7), unless its documentation says that it stops half-way, as Linux
//! does.

use core::ops::Range;

use grace::{Concurrent, Reclaim};
use maple::{MapleTree, NodeAlloc, Nodes, WriteToken};
use spin::{Mutex, MutexGuard};

use crate::{Area, Error, MappedFile, Profile, RefCounted, VmFlags, Vma, tree::Look, tree::Tree};

/// The addresses of a program's parts, in bytes. execve sets them.
///
/// ```
/// use vma::Layout;
/// let mmap_base = 0x7fff_0000_0000;
/// let layout = Layout { start_brk: 0x5000, brk: 0x5000, mmap_base, ..Layout::default() };
/// assert_eq!(layout.start_stack, 0);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Layout {
    /// The start of the heap.
    pub start_brk: usize,
    /// The current end of the heap.
    pub brk: usize,
    /// An address inside the main stack.
    pub start_stack: usize,
    /// The address at which the downward search for free addresses begins.
    pub mmap_base: usize,
}

/// The state that the lock guards besides the VMAs.
#[derive(Clone, Debug)]
pub(crate) struct State {
    pub(crate) layout: Layout,
    /// Flags that every new VMA gets (mlockall with MCL_FUTURE).
    pub(crate) default_flags: VmFlags,
    /// PR_SET_MEMORY_MERGE: new VMAs that qualify get MERGEABLE.
    pub(crate) merge_any: bool,
    /// The personality READ_IMPLIES_EXEC.
    pub(crate) read_implies_exec: bool,
}

/// Counts of VMAs, or the change of these counts by one write.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct VmaCounts {
    /// VMAs in the tree.
    pub(crate) vmas: isize,
    /// VMAs that fork drops or changes ([`Vma::changes_at_fork`]). They include all VMAs that are
    /// linked to an anon_vma.
    pub(crate) unshared: isize,
}

impl VmaCounts {
    /// Adds `sign` times a VMA with these contents.
    pub(crate) fn add<F>(&mut self, vma: &Vma<F>, sign: isize) {
        self.vmas += sign;
        self.unshared += sign * isize::from(vma.changes_at_fork());
    }
}

/// The data that the lock guards.
struct Locked {
    token: WriteToken,
    state: State,
    counts: VmaCounts,
}

/// The address space of a program. `F` is the host's file type, `R` the tree's reclamation engine
/// ([`grace::Single`] for one owner), `A` the allocator of nodes.
///
/// ```
/// use vma::{AddressSpace, Layout, MapFlags, MapRequest, MappedFile, Profile};
/// # #[derive(Clone, PartialEq)] struct File;
/// # impl MappedFile for File {
/// #     fn writable(&self) -> bool { true }
/// #     fn device(&self) -> (u32, u32) { (0, 0) }
/// #     fn inode(&self) -> u64 { 1 }
/// #     fn write_path(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
/// #         out.write_str("/file")
/// #     }
/// # }
/// let layout = Layout { mmap_base: 0x7fff_0000_0000, ..Layout::default() };
/// let space = AddressSpace::<File, grace::Epoch>::new(Profile::LINUX_6_18, layout);
/// let addr = space.write().mmap(MapRequest {
///     addr: 0,
///     len: 0x3000,
///     prot: 3,
///     flags: MapFlags::PRIVATE | MapFlags::ANONYMOUS,
///     file: None,
///     offset: 0,
///     driver_flags: None,
/// })?;
/// assert_eq!(addr, 0x7ffe_ffff_d000);
///
/// let guard = space.pin();
/// let (range, vma) = space.find(&guard, addr).unwrap();
/// assert_eq!(range, addr..addr + 0x3000);
/// assert_eq!(vma.flags.to_string(), "rd,wr,mr,mw,me,ac");
/// # Ok::<(), vma::Error>(())
/// ```
pub struct AddressSpace<F: MappedFile, R: Reclaim, A: NodeAlloc = Nodes> {
    profile: Profile,
    tree: Tree<F, R, A>,
    locked: Mutex<Locked>,
}

impl<F: MappedFile, R: Reclaim, A: NodeAlloc> AddressSpace<F, R, A> {
    /// An empty address space. Allocates nothing.
    pub fn new(profile: Profile, layout: Layout) -> Self {
        let state = State {
            layout,
            default_flags: VmFlags::empty(),
            merge_any: false,
            read_implies_exec: false,
        };
        Self::with_state(profile, state)
    }

    fn with_state(profile: Profile, state: State) -> Self {
        Self::from_parts(profile, state, MapleTree::with_token_in(), VmaCounts::default())
    }

    pub(crate) fn from_parts(
        profile: Profile,
        state: State,
        (tree, token): (Tree<F, R, A>, WriteToken),
        counts: VmaCounts,
    ) -> Self {
        AddressSpace { profile, tree, locked: Mutex::new(Locked { token, state, counts }) }
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

    /// The VMAs in order, with their ranges, from the first that ends above `addr`. Each appears as
    /// it was at some moment under the guard. Takes no lock, allocates nothing (I2).
    pub fn iter<'g>(
        &'g self,
        guard: &'g R::Guard,
        addr: usize,
    ) -> impl Iterator<Item = (Range<usize>, &'g Vma<F>)> {
        let all = self.tree.iter(guard, addr..=usize::MAX);
        all.map(|(range, vma)| (*range.start()..range.end() + 1, vma.get()))
    }

    /// The right to change VMAs of a shared address space. Spins for the lock. Not for interrupts.
    pub fn write(&self) -> Writer<'_, F, R, A>
    where
        R: Concurrent,
    {
        let open: Open<F, R, A> = |tree, token| tree.writer(token);
        let access = Access::Shared { tree: &self.tree, locked: self.locked.lock(), open };
        Writer { profile: &self.profile, access, guard: R::pin() }
    }

    /// The right to change VMAs for the only owner. Takes no lock, and frees replaced VMAs at once.
    pub fn get_mut(&mut self) -> Writer<'_, F, R, A> {
        let access = Access::Alone { tree: &mut self.tree, locked: self.locked.get_mut() };
        Writer { profile: &self.profile, access, guard: R::pin() }
    }
}

/// Unlinks its VMAs from their anon_vmas. Other address spaces may share these, and fork's reuse of
/// an anon_vma depends on the counts (rule 3).
impl<F: MappedFile, R: Reclaim, A: NodeAlloc> Drop for AddressSpace<F, R, A> {
    fn drop(&mut self) {
        // `unshared` includes all VMAs that are linked to an anon_vma.
        if self.locked.get_mut().counts.unshared == 0 {
            return;
        }
        let guard = self.tree.pin();
        for (_, vma) in self.tree.iter(&guard, 0..=usize::MAX) {
            vma.get().anon.unlink();
        }
    }
}

/// The source of the right to write.
enum Access<'a, F: MappedFile, R: Reclaim, A: NodeAlloc> {
    /// The lock. `open` exists only for engines whose guards protect readers.
    Shared { tree: &'a Tree<F, R, A>, locked: MutexGuard<'a, Locked>, open: Open<F, R, A> },
    /// Exclusive ownership.
    Alone { tree: &'a mut Tree<F, R, A>, locked: &'a mut Locked },
}

pub(crate) type TreeWriter<'t, F, R, A> = maple::Writer<'t, RefCounted<Vma<F>>, R, A>;
type Open<F, R, A> = for<'t> fn(
    &'t Tree<F, R, A>,
    &'t mut WriteToken,
) -> Result<TreeWriter<'t, F, R, A>, maple::Error>;

/// The right to change an address space. The system calls are its methods.
///
/// Holds the lock of a shared address space until dropped. Calls may allocate, so they are not for
/// interrupts.
///
/// ```
/// # use vma::*;
/// # #[derive(Clone, PartialEq)]
/// # struct File;
/// # impl MappedFile for File {
/// #     fn writable(&self) -> bool { true }
/// #     fn segment_size(&self) -> Option<usize> { Some(0x4000) }
/// #     fn device(&self) -> (u32, u32) { (8, 1) }
/// #     fn inode(&self) -> u64 { 1 }
/// #     fn write_path(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
/// #         out.write_str("/file")
/// #     }
/// # }
/// # let layout = Layout { mmap_base: 0x7fff_0000_0000, ..Layout::default() };
/// # let mut space = AddressSpace::<File, grace::Single>::new(Profile::LINUX_6_18, layout);
/// # let mut writer = space.get_mut();
/// # let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS;
/// # let request = MapRequest {
/// #     addr: 0, len: 0x4000, prot: 3, flags, file: None, offset: 0, driver_flags: None,
/// # };
/// # let at = writer.mmap(request.clone())?;
/// writer.mprotect(at, 0x1000, 1, None)?;
/// writer.munmap(at + 0x3000, 0x1000)?;
/// let shape: Vec<_> = writer.areas().map(|area| (area.start - at, area.end - at)).collect();
/// assert_eq!(shape, [(0, 0x1000), (0x1000, 0x3000)]);
/// # Ok::<(), vma::Error>(())
/// ```
pub struct Writer<'a, F: MappedFile, R: Reclaim, A: NodeAlloc = Nodes> {
    pub(crate) profile: &'a Profile,
    access: Access<'a, F, R, A>,
    guard: R::Guard,
}

impl<F: MappedFile, R: Reclaim, A: NodeAlloc> Writer<'_, F, R, A> {
    pub(crate) fn tree(&self) -> &Tree<F, R, A> {
        match &self.access {
            Access::Shared { tree, .. } => tree,
            Access::Alone { tree, .. } => tree,
        }
    }

    pub(crate) fn guard(&self) -> &R::Guard {
        &self.guard
    }

    /// One write to the tree.
    pub(crate) fn with_tree<T, E: Into<Error>>(
        &mut self,
        write: impl FnOnce(&mut TreeWriter<'_, F, R, A>) -> Result<T, E>,
    ) -> Result<T, Error> {
        match &mut self.access {
            Access::Shared { tree, locked, open } => {
                // The token was made together with this tree, so it fits.
                let mut writer = open(tree, &mut locked.token)?;
                write(&mut writer).map_err(Into::into)
            }
            Access::Alone { tree, .. } => write(&mut tree.get_mut()).map_err(Into::into),
        }
    }

    fn locked(&self) -> &Locked {
        match &self.access {
            Access::Shared { locked, .. } => locked,
            Access::Alone { locked, .. } => locked,
        }
    }

    fn locked_mut(&mut self) -> &mut Locked {
        match &mut self.access {
            Access::Shared { locked, .. } => locked,
            Access::Alone { locked, .. } => locked,
        }
    }

    pub(crate) fn state(&self) -> &State {
        &self.locked().state
    }

    pub(crate) fn state_mut(&mut self) -> &mut State {
        &mut self.locked_mut().state
    }

    pub(crate) fn counts(&self) -> VmaCounts {
        self.locked().counts
    }

    pub(crate) fn count_more(&mut self, more: VmaCounts) {
        let counts = &mut self.locked_mut().counts;
        counts.vmas += more.vmas;
        counts.unshared += more.unshared;
    }

    /// Checks that `more` VMAs fit below the limit.
    pub(crate) fn room_for(&self, more: usize) -> Result<(), Error> {
        if more > 0 && self.count() + more > self.profile.max_map_count {
            return Err(Error::TooManyMaps);
        }
        Ok(())
    }

    /// The number of VMAs. Constant time.
    pub fn count(&self) -> usize {
        self.counts().vmas.unsigned_abs()
    }

    /// The VMA that contains `addr`.
    pub fn area_at(&self, addr: usize) -> Option<Area<F>> {
        self.covering(addr)
    }

    /// All VMAs in order.
    pub fn areas(&self) -> impl Iterator<Item = Area<F>> + '_ {
        self.areas_from(0)
    }

    /// The VMAs in order, from the first that ends above `addr`.
    pub fn areas_from(&self, addr: usize) -> impl Iterator<Item = Area<F>> + '_ {
        self.tree().iter(&self.guard, addr..=usize::MAX).map(|found| Look::of(found).keep())
    }

    /// The addresses of the program's parts.
    pub fn layout(&self) -> Layout {
        self.state().layout
    }

    /// Changes the addresses of the program's parts (PR_SET_MM). No VMA changes.
    pub fn set_layout(&mut self, layout: Layout) {
        self.state_mut().layout = layout;
    }

    /// Sets whether the thread that makes the next calls has the personality READ_IMPLIES_EXEC. If
    /// so, readable maps, readable protections and the heap are also executable, where that is
    /// allowed. A forked child starts with its parent's setting.
    pub fn set_read_implies_exec(&mut self, on: bool) {
        self.state_mut().read_implies_exec = on;
    }

    /// The levels, nodes and bytes of the tree. O(nodes).
    pub fn tree_stats(&self) -> maple::Stats {
        self.tree().stats(&self.guard)
    }

    /// Checks the tree's invariants, and that it holds whole pages in order.
    #[cfg(any(test, fuzzing))]
    pub(crate) fn validate(&mut self) {
        if let Err(error) =
            self.with_tree(|tree| Ok::<_, Error>(tree.validate().map_err(|v| panic!("{v}"))))
        {
            panic!("{error}");
        }
        let mut end = 0;
        let mut counts = VmaCounts::default();
        for area in self.areas() {
            counts.add(&*area.vma, 1);
            assert!(end <= area.start && area.start < area.end);
            assert!(
                area.start.is_multiple_of(crate::PAGE_SIZE)
                    && area.end.is_multiple_of(crate::PAGE_SIZE)
            );
            end = area.end;
        }
        let VmaCounts { vmas, unshared } = self.counts();
        assert_eq!(
            (vmas, unshared),
            (counts.vmas, counts.unshared),
            "the counts of VMAs differ from the tree"
        );
    }

    /// Writes the listing of `/proc/PID/maps`, without the vsyscall page, which is no VMA. O(VMAs).
    ///
    /// # Errors
    /// Those of `out`.
    pub fn write_maps(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result {
        let layout = self.layout();
        self.tree().iter(&self.guard, 0..=usize::MAX).try_for_each(|(range, vma)| {
            crate::maps::write_line(out, *range.start()..range.end() + 1, vma.get(), &layout)
        })
    }
}
