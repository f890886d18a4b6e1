//! The state that all page tables of a machine share.

use crate::fallible_alloc::{try_arc, try_box};
use crate::format::{Decoded, Format, Geometry, entry};
use crate::gup::stats::{GupCounter, GupStats};
use crate::kept_chains::KeptChains;
use crate::quick::{Construct, QuickLists, TableLists, Zeroed, bump};
use crate::swap::Swap;
use crate::tags::Tags;
use alloc::collections::TryReserveError;
use alloc::sync::Arc;
use core::fmt;
use core::marker::PhantomData;
use core::mem;
use core::sync::atomic::{AtomicU64, Ordering};
use machine::{CpuId, Frame, Machine, PageSize, PerCpu, SharedAccess};

/// The frame number of the kernel's top-level table, or [`NONE`] or [`DROPPED`].
#[derive(Debug)]
pub(crate) struct KernelRoot(AtomicU64);

const NONE: u64 = u64::MAX;
/// The kernel's tables were dropped. There can be no others: pages on the quicklists still hold
/// their entries.
const DROPPED: u64 = u64::MAX - 1;

impl KernelRoot {
    /// The kernel's top-level table, if it exists.
    pub(crate) fn get(&self) -> Option<Frame> {
        // Acquire: pairs with `set`.
        Frame::new(self.0.load(Ordering::Acquire))
    }

    /// Sets it. Returns whether there was none before.
    pub(crate) fn set(&self, root: Frame) -> bool {
        // Release: the table's contents come before its number; pairs with `get`. Relaxed on
        // failure: nothing is read through the number then.
        self.0.compare_exchange(NONE, root.number(), Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// The kernel's tables have been dropped.
    pub(crate) fn mark_dropped(&self) {
        // Release: as in `set`.
        self.0.store(DROPPED, Ordering::Release);
    }
}

/// Constructor of user top-level tables: the upper half is a copy of the kernel's entries.
struct Root<F> {
    kernel: Arc<KernelRoot>,
    format: PhantomData<F>,
}

impl<M: Machine, F: Format> Construct<M> for Root<F> {
    fn construct(&self, machine: &M, page: &mut [u64]) {
        let Some(kernel) = self.kernel.get() else { return };
        // SAFETY: this list is reachable through `Paging` only. `PageTables::user` allocates from
        // it while it holds a reference to the kernel's tables. The caller of `TableLists::alloc`
        // promises that they stay.
        for (index, value) in unsafe { upper_half::<M, F>(machine, kernel) } {
            if let Some(word) = page.get_mut(index) {
                *word = value;
            }
        }
    }
}

/// The entries of the kernel's top-level table that every other top-level table copies, with their
/// indices.
///
/// # Safety
/// `kernel` is the kernel's top-level table, and stays so while the iterator is used.
pub(crate) unsafe fn upper_half<M: Machine, F: Format>(
    machine: &M,
    kernel: Frame,
) -> impl Iterator<Item = (usize, u64)> {
    (F::ENTRIES / 2..F::ENTRIES).filter_map(move |index| {
        // SAFETY: promised by the caller.
        let value = unsafe { entry::<M, F>(machine, kernel, index) }?.load();
        matches!(F::decode(value, F::LEVELS - 1), Decoded::Table(_)).then_some((index, value))
    })
}

/// Counts of tables that one CPU has unlinked, and of tables that came back on it.
#[derive(Default)]
struct TableCounts {
    gone: AtomicU64,
    back: AtomicU64,
    /// Chains of tables that this CPU has retired and that are not back yet, on whichever CPU they
    /// come back: see [`Paging::keep`].
    kept: KeptChains,
}

/// The state that all page tables of a machine share: the quicklists, and counters. There is one
/// for each machine, in an [`Arc`] that the page tables hold.
///
/// ```
/// use machine::PageSize;
/// use paging::{Paging, X86_64L4};
/// use sim::{Config, Sim};
/// let sim = Sim::new(Config::default()).unwrap();
/// let paging = Paging::<Sim, X86_64L4>::try_new(sim, PageSize::Size1G).unwrap();
/// assert_eq!(paging.gup_stats().fast_gup, 0);
/// ```
pub struct Paging<M: Machine, F: Format> {
    quick: QuickLists<M>,
    kernel: Arc<KernelRoot>,
    pub(crate) gup: PerCpu<GupCounter>,
    tables: PerCpu<TableCounts>,
    pub(crate) tags: Tags,
    largest: PageSize,
    pub(crate) swap: Option<Arc<dyn Swap>>,
    format: PhantomData<F>,
}

impl<M: Machine, F: Format> Paging<M, F> {
    /// Makes the shared state for a machine whose pages are at most `largest`. Allocates from the
    /// heap.
    ///
    /// # Errors
    /// There is not enough heap memory.
    pub fn try_new(machine: M, largest: PageSize) -> Result<Arc<Self>, TryReserveError> {
        Self::make(machine, largest, None)
    }

    /// As [`try_new`](Self::try_new), for a host that keeps pages elsewhere, too. It compiles for
    /// formats with a granule of 4 KiB only.
    ///
    /// # Errors
    /// There is not enough heap memory.
    pub fn try_with_swap(
        machine: M,
        largest: PageSize,
        swap: Option<Arc<dyn Swap>>,
    ) -> Result<Arc<Self>, TryReserveError> {
        const { assert!(F::PAGE.order() == 0, "`Swap` keeps pages of 4 KiB: the format's granule") };
        Self::make(machine, largest, swap)
    }

    fn make(
        machine: M,
        largest: PageSize,
        swap: Option<Arc<dyn Swap>>,
    ) -> Result<Arc<Self>, TryReserveError> {
        let kernel = try_arc(KernelRoot(AtomicU64::new(NONE)))?;
        let root = Root::<F> { kernel: Arc::clone(&kernel), format: PhantomData };
        let gup = PerCpu::try_new(machine.count(), |_| GupCounter::default())?;
        let tables = PerCpu::try_new(machine.count(), |_| TableCounts::default())?;
        let tags = Tags::try_new(machine.tags(), machine.count())?;
        let quick = QuickLists::try_with_order(
            machine,
            F::PAGE.order(),
            [try_box(Zeroed)?, try_box(root)?],
        )?;
        let format = PhantomData;
        try_arc(Paging { quick, kernel, gup, tables, tags, largest, swap, format })
    }

    /// The machine.
    #[inline]
    pub fn machine(&self) -> &M {
        self.quick.machine()
    }

    /// The quicklists: to trim them, to drain them, to read their counters.
    #[inline]
    pub fn quick(&self) -> TableLists<'_, M> {
        TableLists::new(&self.quick)
    }

    /// The quicklists, for this crate.
    #[inline]
    pub(crate) fn lists(&self) -> &QuickLists<M> {
        &self.quick
    }

    /// The largest page size that the machine has.
    pub fn largest(&self) -> PageSize {
        self.largest
    }

    /// The generations of assigned tags ([`Tag::Assigned`](crate::Tag)): how often no tag was free,
    /// and all that were not active were taken back. No IPI was sent. One load.
    pub fn tag_generations(&self) -> u64 {
        self.tags.generations()
    }

    /// The uses of the fast path and of the locked path by `get_user_pages_fast`, on all CPUs.
    pub fn gup_stats(&self) -> GupStats {
        self.gup.iter().map(GupCounter::get).sum()
    }

    /// The number of tables that are unlinked and not back on a quicklist. They wait for a pending
    /// flush or for the end of a grace period; a CPU that passes no quiescent state holds that up.
    /// Exact only while nothing changes. Reads one cache line of each CPU.
    pub fn waiting(&self) -> u64 {
        // Relaxed: statistics. `back` is read before `gone`, so that it does not exceed `gone`.
        let sum = |of: fn(&TableCounts) -> &AtomicU64| -> u64 {
            self.tables.iter().map(|passed| of(passed).load(Ordering::Relaxed)).sum()
        };
        let back = sum(|passed| &passed.back);
        sum(|passed| &passed.gone).saturating_sub(back)
    }

    /// Counts a table that was unlinked on this CPU.
    pub(crate) fn went(&self) {
        self.pass(|passed| &passed.gone);
    }

    /// Counts a table whose grace period is over.
    pub(crate) fn came_back(&self) {
        self.pass(|passed| &passed.back);
    }

    fn pass(&self, of: impl Fn(&TableCounts) -> &AtomicU64) {
        let machine = self.machine();
        let _section = machine.irqs_off();
        if let Some(passed) = self.tables.get(machine.current()) {
            bump(of(passed));
        }
    }

    /// Keeps the `Paging` alive for a chain of tables that is about to be retired, until
    /// [`release`](Self::release) is called with the CPU that this returns.
    ///
    /// One reference for each chain would need a locked instruction on a cache line that all CPUs
    /// share. So a CPU has one reference for all its chains. The CPU clones it when it adds its
    /// first chain; the CPU that takes the last chain away drops it. The count may rise again
    /// between the two steps. Then there are two references for a moment, but never none.
    pub(crate) fn keep(self: &Arc<Self>) -> Option<CpuId> {
        let machine = self.machine();
        let _section = machine.irqs_off();
        let cpu = machine.current();
        machine.step(SharedAccess::Other);
        if self.tables.get(cpu)?.kept.add() {
            machine.step(SharedAccess::Other);
            mem::forget(Arc::clone(self));
        }
        Some(cpu)
    }

    /// A chain that was kept on `cpu` is back.
    ///
    /// # Safety
    /// [`keep`](Self::keep) returned `cpu` for this chain, and this is the only call for it. `this`
    /// comes from [`Arc::as_ptr`] of the `Paging` on which `keep` was called, and is not used
    /// afterwards.
    pub(crate) unsafe fn release(this: *const Self, cpu: CpuId) {
        // SAFETY: a chain of this CPU is kept, so a reference exists.
        let paging = unsafe { &*this };
        paging.machine().step(SharedAccess::Other);
        let passed = paging.tables.get(cpu);
        if passed.is_some_and(|passed| passed.kept.sub()) {
            // SAFETY: `keep` forgot this reference when the first of these chains came. Only the
            // call that takes the last chain away drops it.
            unsafe { Arc::decrement_strong_count(this) }
        }
    }

    pub(crate) fn kernel(&self) -> &KernelRoot {
        &self.kernel
    }
}

impl<M: Machine, F: Format> fmt::Debug for Paging<M, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paging").field("largest", &self.largest).finish_non_exhaustive()
    }
}
