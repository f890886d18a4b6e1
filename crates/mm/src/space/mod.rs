//! An address space: its VMAs, its page tables, and its life.
//!
//! | module | contents |
//! |---|---|
//! | `change_count` | the count of changes: why the second look of a fault is one load |
//! | `fork`, `huge_state` | fork; huge pages |
//! | `commitment`, `group`, `shortage` | promised memory; a limit of frames; frames that run out |
//! | `shared` | shared values whose allocation can fail |

pub(crate) mod change_count;
pub(crate) mod commitment;
pub(crate) mod fork;
pub(crate) mod group;
pub(crate) mod huge_state;
pub(crate) mod shared;
pub(crate) mod shortage;

use alloc::sync::Arc;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicUsize};

use grace::Concurrent;
use machine::{Frame, Machine};
use maple::RefCounted;
use paging::{Format, Mapping, PageTables, Paging, Tag, Walk};
use spin::Once;
use vma::{Layout, Limits, Profile, Sizes};

use crate::{
    Backing, Error, FrameGroup, GroupError, OnLimit, UserFaultHandler,
    addresses::lower_half,
    change::deferred_unmap::Waiting,
    entry_marks::is_mark,
    fault::zero_page::ZeroFrame,
    object::mappings::{Family, weak_visit},
    pins::pin_counts::PinCounts,
    space::change_count::Changes,
    space::commitment::Commitment,
    space::huge_state::HugeState,
    space::shared::{Shared, SharedRoom},
    thresholds::LOCK_PAUSES,
};

/// The writer of a space's VMAs.
pub(crate) type Writer<'a, M, G> = vma::Writer<'a, Backing<M>, G>;

/// The lock of a space.
pub(crate) type MmapLock<'a, M, G> = vma::MmapLock<'a, Backing<M>, G>;

/// An address space with pages: the memory of a program.
///
/// `F` is the format of its page tables, `G` the engine of grace periods for VMAs and tables. All
/// methods take `&self`, so CPUs call them concurrently.
///
/// When it is dropped, its frames and tables are given back. The host has deactivated it on every
/// CPU by then ([`activate`](Self::activate)).
///
/// # Misuse
/// A call at any address, at any time, on any CPU does what the VMAs allow, or is refused. A
/// forgotten space leaks its frames and tables. A guard of the engine that is held around a call
/// holds grace periods up, so the call may find no memory. Closures of reads may call the space,
/// and must not end it.
pub struct AddressSpace<M: Machine, F: Format, G: Concurrent> {
    pub(crate) core: Shared<Core<M, F, G>>,
    /// Where objects find the spaces that this one was forked from, and its children.
    pub(crate) family: RefCounted<Family>,
    /// The pins for writing, and the forks.
    pub(crate) pins: PinCounts,
    /// The longest that a stack becomes, in bytes (RLIMIT_STACK).
    pub(crate) stack_limit: usize,
}

/// The part of a space that objects find. The end of the space waits for their visits.
pub(crate) struct Core<M: Machine, F: Format, G: Concurrent> {
    pub(crate) vmas: vma::AddressSpace<Backing<M>, G>,
    pub(crate) tables: PageTables<M, F, G>,
    pub(crate) changes: Changes,
    /// Where memory is promised, if the host counts.
    pub(crate) commitment: Once<Shared<Commitment<M>>>,
    /// Whose limit the pages count for, if any.
    pub(crate) group: Once<Shared<FrameGroup<M>>>,
    /// The address at which reclaim goes on.
    pub(crate) hand: AtomicUsize,
    /// Whether the flush of entries that have become swap entries is pending (`swap`).
    pub(crate) swapping: AtomicBool,
    /// Whether soft-dirty pages were cleared ever; before, all are dirty.
    pub(crate) tracks_new: AtomicBool,
    /// Whether a call clears soft-dirty pages at this moment.
    pub(crate) clearing: AtomicBool,
    /// Whether memory of the space or of a parent was ever registered for write-protection.
    pub(crate) had_marks: AtomicBool,
    /// Whether memory of the space or of a parent was ever registered with a userfaultfd that wants
    /// events.
    pub(crate) has_events: AtomicBool,
    pub(crate) huge: HugeState<M, F>,
    /// The unmappings that wait for a grace period.
    pub(crate) waiting: Waiting<M, F, G>,
    /// The host's part of userfaultfd, if it has any.
    pub(crate) userfaults: Once<Arc<dyn UserFaultHandler>>,
    /// The host's part when the frame source has no frame left.
    pub(crate) shortage: Once<Arc<dyn OnLimit>>,
    /// Dropped after the tables, which lead to it.
    pub(crate) zero_frame: RefCounted<ZeroFrame<M, F>>,
    /// The frame of guard pages (`guard_pages`).
    pub(crate) guard_frame: RefCounted<ZeroFrame<M, F>>,
}

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// An empty address space. Allocates its top-level table. It compiles for formats with a
    /// granule of 4 KiB only.
    ///
    /// # Errors
    /// [`Error::Tables`], as [`PageTables::user`]; [`Error::NotSupported`] if the addresses of
    /// `profile` are more than the tables can have.
    pub fn try_new(
        paging: &Arc<Paging<M, F>>,
        tag: impl Into<Tag>,
        kernel: Option<Arc<PageTables<M, F, G>>>,
        profile: Profile,
        layout: Layout,
    ) -> Result<Self, Error> {
        const { assert!(F::PAGE.order() == 0, "`mm` needs a format with a granule of 4 KiB") };
        if profile.task_size > lower_half::<F>() {
            return Err(Error::NotSupported("a larger lower half than the page tables have"));
        }
        // Execute-only memory gets a key, and a page with it must be possible.
        let protection_keys = profile.protection_keys && F::KEYS > 1;
        let profile = Profile { protection_keys, ..profile };
        let tables = PageTables::user(paging, tag, kernel)?;
        let vmas = vma::AddressSpace::new(profile, layout);
        let (room, huge, family) =
            (SharedRoom::try_new()?, HugeState::try_new()?, Family::try_new()?);
        let counted = || {
            let frame = ZeroFrame::new(Arc::clone(paging));
            RefCounted::new(frame).map_err(|_| vma::Error::OutOfMemory)
        };
        let core = Core::new(vmas, tables, huge, [counted()?, counted()?]);
        AddressSpace::from_core(room.put(core), family, 8 << 20)
    }

    pub(crate) fn from_core(
        core: Shared<Core<M, F, G>>,
        family: RefCounted<Family>,
        stack_limit: usize,
    ) -> Result<Self, Error> {
        let space = AddressSpace { core, family, pins: PinCounts::new(), stack_limit };
        space.family.add(space.core.tables.machine(), weak_visit(&space.core))?;
        Ok(space)
    }

    /// Makes this space's private writable memory count, from now on and with what it has. Children
    /// count there, too. Later calls change nothing.
    pub fn set_commitment(&mut self, commitment: &Shared<Commitment<M>>) {
        if self.core.commitment.get().is_none() {
            let accounted = self.sizes().accounted;
            self.core.commitment.call_once(|| commitment.clone()).settle(accounted as isize);
        }
    }

    /// Makes the pages that this space brings in from now on count for a group, and those of its
    /// children. Later calls change nothing.
    ///
    /// # Errors
    /// [`GroupError::Foreign`].
    pub fn set_group(&mut self, group: &Shared<FrameGroup<M>>) -> Result<(), GroupError> {
        group.check_home(self.core.tables.machine())?;
        self.core.group.call_once(|| group.clone());
        Ok(())
    }

    /// The sizes of the VMAs. Constant time, with the mmap lock.
    pub fn sizes(&self) -> Sizes {
        self.core.writer().sizes()
    }

    /// The limits of the space: setrlimit(2).
    pub fn limits(&self) -> Limits {
        self.core.writer().limits()
    }

    /// Sets the limits. Maps beyond them stay.
    pub fn set_limits(&self, limits: Limits) {
        self.core.writer().set_limits(limits);
    }

    /// Sets the length in bytes beyond which stacks do not grow. At first it is 8 MiB.
    pub fn set_stack_limit(&mut self, bytes: usize) {
        self.stack_limit = bytes;
    }

    /// Makes this the address space of this CPU. Under
    /// [`UnmapPolicy::Grace`](crate::UnmapPolicy::Grace) the CPU takes part in the grace periods
    /// from now on ([`TlbGrace::idle_exit`](paging::TlbGrace::idle_exit)).
    ///
    /// # Safety
    /// As for [`PageTables::activate`].
    pub unsafe fn activate(&self) {
        self.take_part();
        // SAFETY: passed on.
        unsafe { self.core.tables.activate() }
    }

    /// Makes this CPU take part in the flushes of the space until it [leaves](Self::leave), for a
    /// host that uses the pages in another way than by translating.
    pub fn enter(&self) {
        self.take_part();
        self.core.tables.enter();
    }

    /// Before this CPU can cache a translation of the space.
    fn take_part(&self) {
        if let Some(periods) = self.core.waiting.periods() {
            periods.idle_exit();
        }
    }

    /// The pages as the processor finds them: a walk without a lock, valid while the guard is held.
    pub fn walk<'g>(&'g self, guard: &'g G::Guard) -> Walk<'g, M, F> {
        self.core.tables.walk(guard)
    }

    /// Removes this CPU from those that have the space active.
    ///
    /// # Safety
    /// As for [`PageTables::leave`].
    pub unsafe fn leave(&self) {
        // SAFETY: passed on.
        unsafe { self.core.tables.leave() }
    }

    /// As [`leave`](Self::leave), for a CPU that may come back: it keeps its translations if no
    /// flush has passed over it until then.
    ///
    /// # Safety
    /// As for [`PageTables::idle`].
    pub unsafe fn idle(&self) {
        // SAFETY: passed on.
        unsafe { self.core.tables.idle() }
    }
}

impl<M: Machine, F: Format, G: Concurrent> Core<M, F, G> {
    pub(crate) fn new(
        vmas: vma::AddressSpace<Backing<M>, G>,
        tables: PageTables<M, F, G>,
        huge: HugeState<M, F>,
        [zero, guard]: [RefCounted<ZeroFrame<M, F>>; 2],
    ) -> Self {
        let (commitment, group) = (Once::new(), Once::new());
        let changes = Changes::new();
        let (userfaults, shortage) = (Once::new(), Once::new());
        let (hand, waiting) = (AtomicUsize::new(0), Waiting::new());
        let (swapping, tracks_new) = (AtomicBool::new(false), AtomicBool::new(false));
        let (had_marks, has_events) = (AtomicBool::new(false), AtomicBool::new(false));
        let clearing = AtomicBool::new(false);
        Core {
            vmas,
            tables,
            changes,
            commitment,
            group,
            hand,
            swapping,
            tracks_new,
            clearing,
            had_marks,
            has_events,
            huge,
            waiting,
            userfaults,
            shortage,
            zero_frame: zero,
            guard_frame: guard,
        }
    }

    /// The group of the space.
    pub(crate) fn group(&self) -> Option<&FrameGroup<M>> {
        self.group.get().map(|group| &**group)
    }

    /// Whether the frame is that of guard pages. Asked each time: the first guard may be installed
    /// at any moment.
    pub(crate) fn is_guard(&self, frame: Frame) -> bool {
        self.guard_frame.get() == Some(frame)
    }

    /// Whether the page is absent, and has a mark of write-protection.
    pub(crate) fn is_mark(&self, page: &Mapping) -> bool {
        is_mark(page.attrs) && self.is_guard(page.frame)
    }

    /// Whether the frame of an entry is that of guard pages, or stands for a slot of swap: no
    /// contents are there.
    pub(crate) fn is_special(&self, frame: Frame) -> bool {
        self.is_swap(frame) || self.is_guard(frame)
    }

    /// Whether the frame of an entry stands for a slot of swap.
    pub(crate) fn is_swap(&self, frame: Frame) -> bool {
        self.tables.paging().slot_of(frame).is_some()
    }

    /// The mmap lock. Most calls hold it for less than a microsecond, so this CPU tries again a
    /// few times, each time later: a try writes the line of the lock. Then it performs the requests
    /// of others between two tries ([`Step::relax`](machine::Step::relax)): the holder may wait for
    /// this CPU's flush.
    pub(crate) fn lock(&self) -> MmapLock<'_, M, G> {
        let mut pauses = 1;
        loop {
            if let Some(lock) = self.vmas.try_write() {
                return lock;
            }
            if pauses > LOCK_PAUSES {
                self.tables.machine().relax();
            } else {
                (0..pauses).for_each(|_| core::hint::spin_loop());
                pauses *= 2;
            }
        }
    }

    /// Takes the mmap lock, for changes that need no pages.
    pub(crate) fn writer(&self) -> Writer<'_, M, G> {
        self.lock().writer(())
    }
}

impl<M: Machine, F: Format, G: Concurrent> fmt::Debug for AddressSpace<M, F, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressSpace")
            .field("space", &self.core.tables.space())
            .finish_non_exhaustive()
    }
}
