//! Page tables of one address space: their top-level table, the CPUs that use them, and their end.
//!
//! # The kernel's half
//! The upper half of every address space is the kernel's. Each top-level table has copies of the
//! kernel's upper-half entries, which lead to the same lower tables. So a kernel mapping appears in
//! all spaces at once, as long as no *top-level* entry of the kernel changes. Two rules ensure
//! this:
//! - the kernel's tables right below the top level are never unlinked;
//! - once a user space exists, no new top-level entry is added ([`Error::TopLevelFixed`]).
//!   [`PageTables::reserve`] makes these tables beforehand.

mod end;

use crate::error::Error;
use crate::format::{Format, entry};
use crate::quick::{QUICK_ROOT, QUICK_TABLE};
use crate::shared::{Paging, upper_half};
use crate::sync::{AtomicBool, AtomicU64};
use crate::tags::{Tag, Tagged, Whose};
use crate::walk::Walk;
use alloc::sync::Arc;
use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::Ordering;
use grace::Concurrent;
use machine::{
    Asid, AtomicCpuSet, Checker, CpuSet, Flush, Frame, Machine, Owner, PageSize, SharedAccess,
    VirtAddr, VirtRange,
};

/// The page tables of an address space.
///
/// `G` is the grace-period engine: it tells when every walk in software that could reach a table
/// has ended. Dropping a `PageTables` gives its tables back. The frames that are still mapped stay
/// the caller's. See the [crate] for an example.
///
/// A hypervisor has two machines, since a second stage has tags and flushes of its own ([`Asid`]):
/// its own tables are of one, those of its guests of the other. Both may share their frames and
/// CPUs.
///
/// # Context
/// Walks are allowed in any context. Calls that change tables take spin locks and wait for CPUs
/// that hold them, so they must not run in an interrupt. Nothing sleeps.
///
/// Deferred frees of anything that was retired through `G` may run:
/// - in calls that need memory, when there is none: [`kernel`](Self::kernel), [`user`](Self::user),
///   [`map`](Self::map), [`map_with`](Self::map_with), [`map_over`](Self::map_over),
///   [`map_supervisor`](Self::map_supervisor), [`reserve`](Self::reserve), [`split`](Self::split), and in [`reclaim`](Self::reclaim), which they use;
/// - if [`Reclaim::retire`](grace::Reclaim::retire) of `G` may run them (that of `Epoch` may, that
///   of `Quiescent` does not), in calls that retire unlinked tables:
///   [`PendingFlush::flush`](crate::PendingFlush::flush), [`flush_deferred`](Self::flush_deferred), [`flushed_elsewhere`](Self::flushed_elsewhere),
///   and the drop of a [`PendingFlush`](crate::PendingFlush) or
///   [`DeferredFlush`](crate::DeferredFlush).
///
/// The caller of these holds no lock that such a free takes.
///
/// # Misuse
/// Forgotten tables leak, with the kernel's tables that they hold. Walks, pending flushes and pins
/// borrow them, so they are not dropped under these; a deferred flush keeps alive what it needs.
pub struct PageTables<M: Machine, F: Format, G: Concurrent> {
    paging: Arc<Paging<M, F>>,
    root: Frame,
    pub(crate) tagged: Tagged,
    /// The CPUs that may have cached translations of a user space under its tag.
    pub(crate) cpus: AtomicCpuSet,
    /// The CPUs that have entered a space with an assigned tag, and whether there is any.
    entered: AtomicCpuSet,
    has_entered: AtomicBool,
    /// The kernel's tables, whose upper half a user space shares.
    pub(crate) kernel: Option<Arc<Self>>,
    /// In the kernel's tables: set before the first user space makes its final copy of the
    /// top-level entries.
    fixed: AtomicBool,
    /// Counts the beginnings and the ends of the forks that made these tables or shared them: 0 if
    /// there was none, and odd while one is under way.
    pub(crate) forks: AtomicU64,
    /// Set before the first page for the kernel alone is mapped in the lower half of a user space.
    pub(crate) supervisor: AtomicBool,
    engine: PhantomData<fn() -> G>,
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Makes the kernel's tables. A [`Paging`] has one such set, ever. Deferred frees may run: see
    /// [Context](Self#context).
    ///
    /// # Errors
    /// - [`Error::Frames`]: no memory for the top-level table.
    /// - [`Error::SecondKernel`]: this [`Paging`] has, or had, kernel tables.
    /// - [`Error::NotTheKernels`]: the format is a second stage.
    pub fn kernel(paging: &Arc<Paging<M, F>>) -> Result<Self, Error> {
        if F::SECOND_STAGE {
            return Err(Error::NotTheKernels);
        }
        let tables = Self::with_root(paging, Tagged::Kernel, None)?;
        if !paging.kernel().set(tables.root) {
            return Err(Error::SecondKernel);
        }
        Ok(tables)
    }

    /// Makes the tables of a user space. `tag` is an [`Asid`], which it keeps, or
    /// [`Tag::Assigned`]: then there may be more spaces than tags. On a machine with one tag it
    /// gets that tag, whatever `tag` is. The upper half is that of `kernel`, whose top-level
    /// entries are fixed from now on; without `kernel` it stays empty. Deferred frees may run: see
    /// [Context](Self#context).
    ///
    /// ```
    /// use machine::{Asid, PageSize, VirtAddr, VirtRange};
    /// use paging::{PageTables, Paging, X86_64L4};
    /// use sim::{Config, Grace, Sim};
    /// use std::sync::Arc;
    ///
    /// let sim = Sim::new(Config::default())?;
    /// let paging = Paging::<Sim, X86_64L4>::try_new(sim.clone(), PageSize::Size1G)?;
    /// sim.on_cpu(0, || {
    ///     let kernel = Arc::new(PageTables::<_, _, Grace>::kernel(&paging)?);
    ///     // All spaces share the tables for this range.
    ///     let range = VirtRange::new(VirtAddr::new(0xffff_8000_0000_0000), 0x1000).unwrap();
    ///     kernel.reserve(range)?;
    ///     let program = PageTables::user(&paging, Asid(1), Some(Arc::clone(&kernel)))?;
    ///     assert_ne!(program.root(), kernel.root());
    ///     drop(program);
    ///     // The next space gets the same top-level table, from the quicklist.
    ///     PageTables::user(&paging, Asid(1), Some(kernel)).map(drop)
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Tag`]: the machine has no such tag, or it is 0, the kernel's; or a space with an
    ///   assigned tag exists, or did, and no space has had this one as a fixed tag before.
    /// - [`Error::NoTag`]: all tags are fixed.
    /// - [`Error::NotTheKernels`]: `kernel` is not the set of kernel tables of this [`Paging`].
    /// - [`Error::Frames`]: no memory for the top-level table.
    ///
    /// The kernel's tables have not changed then.
    pub fn user(
        paging: &Arc<Paging<M, F>>,
        tag: impl Into<Tag>,
        kernel: Option<Arc<Self>>,
    ) -> Result<Self, Error> {
        let machine = paging.machine();
        let tagged = match tag.into() {
            _ if machine.tags() == 1 => Tagged::Shared(Asid(0)),
            Tag::Fixed(asid) if asid == Asid(0) || !paging.tags.fix(machine, asid) => {
                return Err(Error::Tag(asid));
            }
            Tag::Fixed(asid) => Tagged::Fixed(asid),
            Tag::Assigned => paging.tags.open(machine).ok_or(Error::NoTag)?,
        };
        let Some(kernel) = kernel else { return Self::with_root(paging, tagged, None) };
        // User tables must not be passed as the kernel's: compare with the root that the `Paging`
        // knows.
        if !Arc::ptr_eq(paging, &kernel.paging) || paging.kernel().get() != Some(kernel.root) {
            return Err(Error::NotTheKernels);
        }
        machine.step(SharedAccess::Other);
        // Acquire: pairs with the Release of `fix`. A top-level table that is constructed after
        // this load sees all entries.
        let was_fixed = kernel.fixed.load(Ordering::Acquire);
        let tables = Self::with_root(paging, tagged, Some(Arc::clone(&kernel)))?;
        if !was_fixed {
            kernel.fix(tables.root)?;
        }
        Ok(tables)
    }

    /// Fixes the kernel's top-level entries, now that a user top-level table exists. Copies the
    /// entries that were added since `root` was made into it.
    fn fix(&self, root: Frame) -> Result<(), Error> {
        let machine = self.machine();
        let _locked = crate::lock::lock::<M, F>(machine, self.root, VirtAddr::new(0))?;
        machine.step(SharedAccess::Other);
        // Release: pairs with the Acquire of `user`. A CPU that adds an entry holds the lock.
        // Either it came before, and its entry is copied here, or it comes later, and sees this
        // flag.
        self.fixed.store(true, Ordering::Release);
        // SAFETY: `self` owns it.
        for (index, value) in unsafe { upper_half::<M, F>(machine, self.root) } {
            // SAFETY: a user top-level table that no other CPU knows yet.
            if let Some(entry) = unsafe { entry::<M, F>(machine, root, index) } {
                entry.store(value);
            }
        }
        machine.checker().note_constructed(root, QUICK_ROOT);
        Ok(())
    }

    fn with_root(
        paging: &Arc<Paging<M, F>>,
        tagged: Tagged,
        kernel: Option<Arc<Self>>,
    ) -> Result<Self, Error> {
        let list = if kernel.is_some() { QUICK_ROOT } else { QUICK_TABLE };
        let root =
            // A user top-level table is constructed from the kernel's, which `kernel` keeps alive.
            crate::reclaim::with_memory::<M, F, G, _>(paging, || Ok(paging.lists().alloc(list)?))?;
        let tables = Self::of_root(paging, root, tagged, kernel);
        // SAFETY: it came from a quicklist, so it is ours, and a valid table of its level.
        unsafe { paging.machine().set_owner(root, Owner::Table(F::LEVELS - 1)) }?;
        Ok(tables)
    }

    pub(crate) fn of_root(
        paging: &Arc<Paging<M, F>>,
        root: Frame,
        tagged: Tagged,
        kernel: Option<Arc<Self>>,
    ) -> Self {
        PageTables {
            paging: Arc::clone(paging),
            root,
            tagged,
            cpus: AtomicCpuSet::new(),
            entered: AtomicCpuSet::new(),
            has_entered: AtomicBool::new(false),
            kernel,
            fixed: AtomicBool::new(false),
            forks: AtomicU64::new(0),
            supervisor: AtomicBool::new(false),
            engine: PhantomData,
        }
    }

    /// The machine.
    #[inline]
    pub fn machine(&self) -> &M {
        self.paging.machine()
    }

    /// The state that it shares with other page tables.
    #[inline]
    pub fn paging(&self) -> &Arc<Paging<M, F>> {
        &self.paging
    }

    /// The frame of the top-level table.
    #[inline]
    pub fn root(&self) -> Frame {
        self.root
    }

    /// The tag of a user space; `None` for the kernel's tables. If it is
    /// [assigned](Tag::Assigned), the tag stays while the space is active on a CPU; else another
    /// space may have it by now, and it is 0 before the first activation.
    #[inline]
    pub fn space(&self) -> Option<Asid> {
        self.tagged.last()
    }

    /// The CPUs that may use translations of a user space that they have cached: those to which
    /// flushes go. [Idle](Self::idle) CPUs are not among them, and none is if the space has lost an
    /// assigned tag. A snapshot, which is not enough for a flush: one passes over idle CPUs, which
    /// must know it.
    #[inline]
    pub fn cpus(&self) -> CpuSet {
        self.under_tag(self.cpus.load()).0
    }

    /// The CPUs of a set that use the tag of a user space, and the tag, if it has one. The fence of
    /// the set's method comes before all loads here.
    fn under_tag(&self, mut cpus: CpuSet) -> (CpuSet, Option<Asid>) {
        let Tagged::Own(space) = &self.tagged else { return (cpus, self.tagged.last()) };
        let tag = self.paging.tags.get(space);
        if tag.is_none() {
            cpus = CpuSet::EMPTY;
        }
        // Relaxed: the fences of `load` and of `insert` order it.
        if self.has_entered.load(Ordering::Relaxed) {
            self.entered.load().iter().for_each(|cpu| cpus.insert(cpu));
        }
        (cpus, tag)
    }

    /// The CPUs to which a flush goes that the caller performs now, and how it names these tables.
    /// One fence, which comes after the caller's changes of entries. Idle CPUs lose their marks.
    pub(crate) fn users(&self) -> (CpuSet, Option<Asid>) {
        match self.tagged {
            Tagged::Kernel => (self.machine().online(), None),
            _ => {
                let (cpus, idle) = self.cpus.targets();
                let (cpus, tag) = self.under_tag(cpus);
                if let Some(tag) = tag {
                    self.machine().checker().check_passed_over(&idle, tag);
                }
                (cpus, tag.or(self.tagged.last()))
            }
        }
    }

    /// Whether a flush would go to another CPU than this one. A snapshot.
    pub(crate) fn has_other_users(&self) -> bool {
        let mut others = match self.tagged {
            Tagged::Kernel => self.machine().online(),
            _ => self.cpus(),
        };
        others.remove(self.machine().current());
        !others.is_empty()
    }

    /// Which tables these are.
    pub(crate) fn whose(&self) -> Whose {
        self.tagged.whose()
    }

    /// Flushes a page, and the upper-level entries that lead to it, on all CPUs that use the
    /// tables. Context and cost as for [`PendingFlush::flush`](crate::PendingFlush::flush).
    pub fn flush_page(&self, at: VirtAddr, size: PageSize) {
        if let Some(range) = VirtRange::new(at.align_down(size), size.bytes()) {
            let (cpus, space) = self.users();
            let what = Flush::Range { space, range, stride: size, tables: true };
            self.machine().flush_on(&cpus, what);
        }
    }

    /// As [`flush_page`](Self::flush_page), on this CPU only. Another space's translations may be
    /// flushed instead if these tables are not active here. A page-fault handler that finds the
    /// page there calls this, and the access is made again: the CPU may have cached an absent
    /// entry.
    pub fn flush_page_here(&self, at: VirtAddr, size: PageSize) {
        if let Some(range) = VirtRange::new(at.align_down(size), size.bytes()) {
            let space = self.space();
            self.machine().flush(Flush::Range { space, range, stride: size, tables: true });
        }
    }

    /// Debug hook: addresses that were mapped before are reused ([`Checker::check_reuse`]).
    /// Of a space with an assigned tag nothing is checked, since the tag may change meanwhile.
    pub fn check_reuse(&self, range: VirtRange) {
        if !matches!(self.tagged, Tagged::Own(_)) {
            self.machine().checker().check_reuse(self.space(), range);
        }
    }

    /// Makes this CPU take part in the flushes of these tables, as [`activate`](Self::activate)
    /// does, until it [leaves](Self::leave). For a CPU that uses the tables in another way than by
    /// translating. Costs
    /// a locked instruction and a fence if the CPU does not take part yet.
    ///
    /// # Misuse
    /// It only adds this CPU, which costs flushes. To remove one is [`leave`](PageTables::leave),
    /// which is unsafe.
    pub fn enter(&self) {
        let machine = self.machine();
        let _section = machine.irqs_off();
        if matches!(self.tagged, Tagged::Own(_)) {
            // Relaxed: the fence of `insert` orders it.
            self.has_entered.store(true, Ordering::Relaxed);
            self.entered.insert(machine.current());
        } else {
            self.cpus.insert(machine.current());
        }
    }

    /// A view of the tables that is valid while the guard is held. Takes no lock; allowed in any
    /// context.
    #[inline]
    pub fn walk<'g>(&'g self, _guard: &'g G::Guard) -> Walk<'g, M, F> {
        // SAFETY: unlinked tables are retired through `G`, so they stay while the guard exists. The
        // top-level table stays while `self` is borrowed.
        unsafe { Walk::new(self.machine(), self.root) }.with_forks(&self.forks)
    }

    /// Whether an entry may be added to the top-level table. Called with its lock held, under which
    /// `fix` sets the flag.
    pub(crate) fn may_grow(&self) -> bool {
        // Relaxed: the lock orders it.
        !self.fixed.load(Ordering::Relaxed)
    }

    /// Makes this CPU translate by these tables. The kernel's tables have tag 0, which no other
    /// tables have unless the machine has only one tag.
    ///
    /// The CPU enters the set of flush targets before its first walk. If it was in the set already,
    /// or is [idle](Self::idle) and no flush has passed over it, its cached translations are still
    /// right and are kept, unless the machine has one tag for all
    /// spaces. A space whose [assigned](Tag::Assigned) tag was taken back gets another one.
    ///
    /// Cost: if the CPU is in the set, a load; with an assigned tag that the space still has, also
    /// a fence and two stores in this CPU's line. Else a locked instruction and a fence more; for a
    /// new tag, a lock, and sometimes a pass over all tags and CPUs.
    ///
    /// # Safety
    /// - `F` is the machine's format.
    /// - The tables map everything that the kernel needs in order to go on.
    /// - No other tables have the same [fixed](Tag::Fixed) tag, unless the machine has one tag for
    ///   all spaces.
    /// - On this CPU, all tables are activated by this method, not by [`machine::Tlb::activate`].
    /// - The host deactivates the tables on every other CPU before they are dropped. (Where they
    ///   are dropped, they may be active, if they have the kernel's half: the kernel's tables
    ///   become active instead.)
    pub unsafe fn activate(&self) {
        let machine = self.machine();
        let _section = machine.irqs_off();
        let here = machine.current();
        let tags = &self.paging.tags;
        let (asid, slot) = match &self.tagged {
            Tagged::Own(space) => {
                let (asid, slot) = tags.hold(machine, here, space, &self.cpus);
                (asid, Some(slot))
            }
            tagged => (tagged.last().unwrap_or_default(), None),
        };
        let was_in = self.cpus.insert(here);
        let keep = was_in && !matches!(self.tagged, Tagged::Shared(_)) && machine.tags() != 1;
        // SAFETY: passed on. With `keep`, all flushes since the last use have come here, and the
        // space has had the tag since then. `hold` keeps the tag until other tables are active.
        unsafe { machine.activate(self.root, asid, keep) }
        tags.activated(here, slot);
    }

    /// Removes this CPU from the targets of flushes of these tables, and drops its cached
    /// translations of them. Other tables are active on the CPU.
    ///
    /// # Safety
    /// These tables are not active on this CPU. It activates them again only by
    /// [`activate`](Self::activate). No code on this CPU relies on an earlier
    /// [`enter`](Self::enter).
    pub unsafe fn leave(&self) {
        let machine = self.machine();
        let _section = machine.irqs_off();
        match &self.tagged {
            Tagged::Kernel => {}
            // Without a tag, there is nothing to flush. A tag that the space loses meanwhile is
            // another space's then, which loses time.
            Tagged::Own(space) => {
                if let Some(tag) = self.paging.tags.get(space) {
                    machine.flush(Flush::Space(tag));
                }
            }
            Tagged::Fixed(asid) | Tagged::Shared(asid) => machine.flush(Flush::Space(*asid)),
        }
        self.forget_entered();
        self.cpus.remove(machine.current());
    }

    /// Undoes [`enter`](Self::enter) of a space with an assigned tag on this CPU. Interrupts are
    /// disabled.
    pub(crate) fn forget_entered(&self) {
        // Relaxed: this CPU has stored it, if it has entered.
        if self.has_entered.load(Ordering::Relaxed) {
            self.entered.remove(self.machine().current());
        }
    }
}

impl<M: Machine, F: Format, G: Concurrent> fmt::Debug for PageTables<M, F, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageTables")
            .field("root", &self.root)
            .field("space", &self.space())
            .finish_non_exhaustive()
    }
}
