//! Page tables of one address space: their top, who uses them, their end.
//!
//! # The kernel's half
//! The upper half of every space is the kernel's: each top-level table has the kernel's entries
//! there, which lead to the same tables. So what the kernel maps is mapped everywhere at once, as
//! long as no *top-level* entry of it changes. Therefore: the kernel's tables right below the top
//! are never taken out; and once a space for programs has been made, no new one comes in
//! ([`Error::TopLevelFixed`]). [`PageTables::reserve`] makes them before.

use crate::cursor::Error;
use crate::format::{Decoded, Format};
use crate::paging::{Paging, upper_half};
use crate::quick::{QUICK_ROOT, QUICK_TABLE};
use crate::walk::Walk;
use alloc::sync::Arc;
use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, Ordering};
use grace::Concurrent;
use machine::{
    Access, Asid, AtomicCpuSet, CpuSet, ENTRIES, Flush, Frame, Machine, Owner, VirtAddr,
};

/// The page tables of an address space.
///
/// `G` is the engine that tells when no walk in software is under way any more. Dropping them gives
/// the tables back; what is still mapped is the caller's as it was before. See the [crate] for an
/// example.
///
/// # Context
/// Walks may be made anywhere. What changes tables takes spin locks and waits for CPUs that hold
/// them: not in an interrupt. Nothing sleeps.
///
/// Deferred frees of others, of all that was retired through `G`, may run:
/// - where memory gives out, in what needs it: [`kernel`](Self::kernel), [`user`](Self::user),
///   [`map`](Self::map), [`map_with`](Self::map_with), [`reserve`](Self::reserve),
///   [`split`](Self::split), and in [`reclaim`](Self::reclaim), which they call;
/// - if [`Reclaim::retire`](grace::Reclaim::retire) of `G` may run them (that of `Epoch` may, that
///   of `Quiescent` does not), wherever tables that were unlinked are retired: in
///   [`PendingFlush::flush`](crate::PendingFlush::flush), [`pay`](Self::pay), [`paid`](Self::paid),
///   and where an [`PendingFlush`](crate::PendingFlush) or a
///   [`DeferredFlush`](crate::DeferredFlush) is dropped.
///
/// There the caller holds no lock that such a free takes.
pub struct PageTables<M: Machine, F: Format, G: Concurrent> {
    paging: Arc<Paging<M, F>>,
    root: Frame,
    /// The tag of a program's space; `None` for the kernel's.
    space: Option<Asid>,
    /// The CPUs that may have translations of a program's space.
    cpus: AtomicCpuSet,
    /// Those of the kernel, which a program's share the upper half of.
    kernel: Option<Arc<Self>>,
    /// The kernel's: set before the first program's space copies the top-level entries for good.
    fixed: AtomicBool,
    engine: PhantomData<fn() -> G>,
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// The kernel's. A [`Paging`] has them once. Deferred frees may run: see
    /// [Context](Self#context).
    ///
    /// # Errors
    /// [`Error::Frames`]; [`Error::SecondKernel`].
    pub fn kernel(paging: &Arc<Paging<M, F>>) -> Result<Self, Error> {
        let tables = Self::with_root(paging, None, None)?;
        if !paging.kernel().set(tables.root) {
            return Err(Error::SecondKernel);
        }
        Ok(tables)
    }

    /// A program's, with the tag `asid`; on a machine with one tag it has that, whatever `asid`
    /// says. The upper half is `kernel`'s, whose top-level entries are fixed from now on; without
    /// it, it stays empty. Deferred frees may run: see [Context](Self#context).
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
    /// [`Error::Tag`]: the machine has no such tag, or it is 0, the kernel's.
    /// [`Error::NotTheKernels`]. [`Error::Frames`]. The kernel's tables are as they were then.
    pub fn user(
        paging: &Arc<Paging<M, F>>,
        asid: Asid,
        kernel: Option<Arc<Self>>,
    ) -> Result<Self, Error> {
        let tags = paging.machine().tags();
        let tag = if tags == 1 { Asid(0) } else { asid };
        if tags != 1 && (asid == Asid(0) || u32::from(asid.0) >= tags) {
            return Err(Error::Tag(asid));
        }
        let Some(kernel) = kernel else { return Self::with_root(paging, Some(tag), None) };
        // The tables that a `Paging` knows as the kernel's are not a program's.
        if !Arc::ptr_eq(paging, &kernel.paging) || paging.kernel().get() != Some(kernel.root) {
            return Err(Error::NotTheKernels);
        }
        paging.machine().step(Access::Shared);
        // Acquire: pairs with the Release of `fix`: who makes a table for the top from now on sees
        // all entries.
        let was_fixed = kernel.fixed.load(Ordering::Acquire);
        let tables = Self::with_root(paging, Some(tag), Some(Arc::clone(&kernel)))?;
        if !was_fixed {
            kernel.fix(tables.root)?;
        }
        Ok(tables)
    }

    /// The kernel's: its top-level entries are fixed, now that a program's top-level table is
    /// there; it is given those that have come since it was made.
    fn fix(&self, root: Frame) -> Result<(), Error> {
        let machine = self.machine();
        let _locked = crate::lock::lock(machine, self.root, VirtAddr::new(0))?;
        machine.step(Access::Shared);
        // Release: pairs with the Acquire of `user`. Who adds an entry has the lock: he came
        // before, and it is copied here, or comes later, and sees this.
        self.fixed.store(true, Ordering::Release);
        // SAFETY: this has it.
        for (index, value) in unsafe { upper_half::<M, F>(machine, self.root) } {
            // SAFETY: a program's top-level table, which nobody knows yet.
            if let Some(entry) = unsafe { machine.entry(root, index) } {
                entry.store(value);
            }
        }
        machine.note_constructed(root, QUICK_ROOT);
        Ok(())
    }

    fn with_root(
        paging: &Arc<Paging<M, F>>,
        space: Option<Asid>,
        kernel: Option<Arc<Self>>,
    ) -> Result<Self, Error> {
        let list = if kernel.is_some() { QUICK_ROOT } else { QUICK_TABLE };
        let root =
            // A top-level table is made from the kernel's, which `kernel` keeps.
            crate::reclaim::with_memory::<M, F, G, _>(paging, || Ok(paging.lists().alloc(list)?))?;
        let tables = PageTables {
            paging: Arc::clone(paging),
            root,
            space,
            cpus: AtomicCpuSet::new(),
            kernel,
            fixed: AtomicBool::new(false),
            engine: PhantomData,
        };
        // SAFETY: it came from a quicklist, so it is ours, and a valid table of its level.
        unsafe { paging.machine().set_owner(root, Owner::Table(F::LEVELS - 1)) }?;
        Ok(tables)
    }

    /// The machine.
    #[inline]
    pub fn machine(&self) -> &M {
        self.paging.machine()
    }

    /// What it shares with others.
    #[inline]
    pub fn paging(&self) -> &Arc<Paging<M, F>> {
        &self.paging
    }

    /// The top-level table.
    #[inline]
    pub fn root(&self) -> Frame {
        self.root
    }

    /// The tag of a program's space; `None` for the kernel's.
    #[inline]
    pub fn space(&self) -> Option<Asid> {
        self.space
    }

    /// The CPUs that may hold translations of a program's space: those that flushes go to. A
    /// snapshot.
    #[inline]
    pub fn cpus(&self) -> CpuSet {
        self.cpus.load()
    }

    /// Has this CPU take part in the flushes of these tables from now on, as
    /// [`activate`](Self::activate) does, until it [leaves](Self::leave). For a CPU that uses the
    /// tables otherwise than by translating. A locked instruction and a fence if it does not take
    /// part yet.
    pub fn enter(&self) {
        let machine = self.machine();
        let _section = machine.irqs_off();
        self.cpus.insert(machine.current());
    }

    /// A view, for as long as the guard is held. Takes no lock; any context.
    #[inline]
    pub fn walk<'g>(&'g self, _guard: &'g G::Guard) -> Walk<'g, M, F> {
        // SAFETY: tables that are unlinked are retired through `G`, so they stay while the guard is
        // there; the top stays while `self` is borrowed.
        unsafe { Walk::new(self.machine(), self.root) }
    }

    /// Whether an entry may be added to the top-level table. With its lock held: `fix` sets the
    /// flag with it.
    pub(crate) fn may_grow(&self) -> bool {
        // Relaxed: the lock orders it.
        !self.fixed.load(Ordering::Relaxed)
    }

    /// Makes this CPU translate by these tables. The kernel's have the tag 0, to themselves unless
    /// the machine has no others.
    ///
    /// The CPU is in the set of those that flushes go to from before its first walk. If it was
    /// already, what it has cached is still right, and is kept, unless the machine has one tag for
    /// all.
    ///
    /// # Safety
    /// `F` is the machine's format. They map what the kernel needs in order to go on. No other
    /// tables have the same tag, unless the machine has one tag for all; the host has them inactive
    /// on every CPU before they are dropped.
    pub unsafe fn activate(&self) {
        let machine = self.machine();
        let _section = machine.irqs_off();
        let here = machine.current();
        let shared = machine.tags() == 1;
        let keep = !shared && self.cpus.load().contains(here);
        self.cpus.insert(here);
        // SAFETY: passed on. With `keep`, all flushes since have come here.
        unsafe { machine.activate(self.root, self.space.unwrap_or_default(), keep) }
    }

    /// This CPU has other tables active, and is to get no more flushes for these: it drops what it
    /// has cached of them.
    ///
    /// # Safety
    /// These tables are not active on this CPU, and it makes them active again only by
    /// [`activate`](Self::activate). No code on this CPU relies on an [`enter`](Self::enter) that
    /// came before.
    pub unsafe fn leave(&self) {
        let machine = self.machine();
        let _section = machine.irqs_off();
        if let Some(space) = self.space {
            machine.flush(Flush::Space(space));
        }
        self.cpus.remove(machine.current());
    }

    /// Gives up the tables below `table`.
    fn take_down(&self, table: Frame, level: u8) {
        let machine = self.machine();
        let shared = level == F::LEVELS - 1 && self.kernel.is_some();
        let own = if shared { ENTRIES / 2 } else { ENTRIES };
        let mut left = machine.info(table).map_or(0, |info| {
            // SAFETY: a table of ours: its count. Relaxed: nobody else uses the tables any more.
            unsafe { info.word() }.load(Ordering::Relaxed)
        });
        for index in 0..own {
            if left == 0 {
                break;
            }
            // SAFETY: a table of ours, which nobody walks.
            let Some(entry) = (unsafe { machine.entry(table, index) }) else { return };
            let value = entry.load();
            if value == 0 {
                continue;
            }
            left -= 1;
            entry.store(0);
            if let Decoded::Table(below) = F::decode(value, level) {
                self.take_down(below, level - 1);
                // SAFETY: it is empty, and unlinked; no CPU walks it: `drop` has flushed, and
                // nobody else has `self`.
                let _ = unsafe { self.paging.lists().free(QUICK_TABLE, below) };
            }
        }
    }
}

impl<M: Machine, F: Format, G: Concurrent> Drop for PageTables<M, F, G> {
    fn drop(&mut self) {
        let machine = self.machine();
        let what = self.space.map_or(Flush::All, Flush::Space);
        let list = if self.kernel.is_some() { QUICK_ROOT } else { QUICK_TABLE };
        // No walk in software is under way: nobody borrows `self`. Hardware has it inactive
        // (`activate`), and after this no cached upper-level entries.
        machine.flush_on(&self.users(), what);
        if self.space.is_none() && self.paging.kernel().get() == Some(self.root) {
            self.paging.kernel().gone();
        }
        self.take_down(self.root, F::LEVELS - 1);
        // SAFETY: it is as it was made: its own entries are gone, and those of the kernel do not
        // change.
        let _ = unsafe { self.paging.lists().free(list, self.root) };
    }
}

impl<M: Machine, F: Format, G: Concurrent> fmt::Debug for PageTables<M, F, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageTables")
            .field("root", &self.root)
            .field("space", &self.space)
            .finish_non_exhaustive()
    }
}
