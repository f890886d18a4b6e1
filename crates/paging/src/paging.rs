//! What all page tables of a machine share.

use crate::format::{Decoded, Format};
use crate::gup::{GupCounter, GupStats};
use crate::kept::Kept;
use crate::quick::{Construct, QuickLists, TableLists, Zeroed, bump};
use alloc::boxed::Box;
use alloc::collections::TryReserveError;
use alloc::sync::Arc;
use core::fmt;
use core::marker::PhantomData;
use core::mem;
use core::sync::atomic::{AtomicU64, Ordering};
use machine::{Access, CpuId, ENTRIES, Frame, Machine, PageSize, PerCpu};

/// The frame number of the kernel's top-level table, once there is one.
#[derive(Debug)]
pub(crate) struct KernelRoot(AtomicU64);

const NONE: u64 = u64::MAX;
/// It is gone, and there will be no other: pages on the lists have its entries.
const GONE: u64 = u64::MAX - 1;

impl KernelRoot {
    pub(crate) fn get(&self) -> Option<Frame> {
        // Acquire: pairs with `set`.
        Frame::new(self.0.load(Ordering::Acquire))
    }

    /// Returns whether there was none.
    pub(crate) fn set(&self, root: Frame) -> bool {
        // Release: the table is in place; pairs with `get`. Relaxed on failure: nothing is looked
        // at.
        self.0.compare_exchange(NONE, root.number(), Ordering::Release, Ordering::Relaxed).is_ok()
    }

    pub(crate) fn gone(&self) {
        // Release: as `set`.
        self.0.store(GONE, Ordering::Release);
    }
}

/// Top-level tables of programs: the upper half is the kernel's.
struct Root<F> {
    kernel: Arc<KernelRoot>,
    format: PhantomData<F>,
}

impl<M: Machine, F: Format> Construct<M> for Root<F> {
    fn construct(&self, machine: &M, page: &mut [u64; ENTRIES]) {
        let Some(kernel) = self.kernel.get() else { return };
        // SAFETY: the list is private to `Paging`. `PageTables::user` allocates from it with a
        // reference to the kernel's tables, and `TableLists::alloc` by its caller's promise that
        // they stay.
        for (index, value) in unsafe { upper_half::<M, F>(machine, kernel) } {
            page[index] = value;
        }
    }
}

/// The entries of the kernel's top-level table that all others have, with their places.
///
/// # Safety
/// It is the kernel's top-level table, and stays while this is used.
pub(crate) unsafe fn upper_half<M: Machine, F: Format>(
    machine: &M,
    kernel: Frame,
) -> impl Iterator<Item = (usize, u64)> {
    (ENTRIES / 2..ENTRIES).filter_map(move |index| {
        // SAFETY: the caller's promise.
        let value = unsafe { machine.entry(kernel, index) }?.load();
        matches!(F::decode(value, F::LEVELS - 1), Decoded::Table(_)).then_some((index, value))
    })
}

/// Tables that one CPU has unlinked, and that came back there.
#[derive(Default)]
struct TableCounts {
    gone: AtomicU64,
    back: AtomicU64,
    /// Chains of tables that this CPU has retired and that are not back, wherever that will be: see
    /// [`Paging::keep`].
    kept: Kept,
}

/// What all page tables of a machine share: the quicklists that tables come from and go to, and
/// counters. One for each machine, behind an [`Arc`], which page tables hold.
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
    largest: PageSize,
    format: PhantomData<F>,
}

impl<M: Machine, F: Format> Paging<M, F> {
    /// For a machine that has pages up to this size. Allocates from the heap.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn try_new(machine: M, largest: PageSize) -> Result<Arc<Self>, TryReserveError> {
        let kernel = Arc::new(KernelRoot(AtomicU64::new(NONE)));
        let root = Root::<F> { kernel: Arc::clone(&kernel), format: PhantomData };
        let gup = PerCpu::try_new(machine.count(), |_| GupCounter::default())?;
        let tables = PerCpu::try_new(machine.count(), |_| TableCounts::default())?;
        let quick = QuickLists::try_new(machine, [Box::new(Zeroed), Box::new(root)])?;
        Ok(Arc::new(Paging { quick, kernel, gup, tables, largest, format: PhantomData }))
    }

    /// The machine.
    #[inline]
    pub fn machine(&self) -> &M {
        self.quick.machine()
    }

    /// The quicklists: to trim them, to drain them, for their counters.
    #[inline]
    pub fn quick(&self) -> TableLists<'_, M> {
        TableLists::new(&self.quick)
    }

    /// The quicklists themselves.
    #[inline]
    pub(crate) fn lists(&self) -> &QuickLists<M> {
        &self.quick
    }

    /// The largest page that the machine has.
    pub fn largest(&self) -> PageSize {
        self.largest
    }

    /// How often pages were taken with and without the locked path, on all CPUs.
    pub fn gup_stats(&self) -> GupStats {
        self.gup.iter().map(GupCounter::get).sum()
    }

    /// Tables that have been unlinked and are not back on a list: they wait for a flush that is
    /// owed, or for the end of a grace period, which a CPU that does not announce holds up. Exact
    /// only while nothing changes; it reads a line of each CPU.
    pub fn waiting(&self) -> u64 {
        // Relaxed: statistics. What came back is read first, so that it is never more than what
        // went.
        let sum = |of: fn(&TableCounts) -> &AtomicU64| -> u64 {
            self.tables.iter().map(|passed| of(passed).load(Ordering::Relaxed)).sum()
        };
        let back = sum(|passed| &passed.back);
        sum(|passed| &passed.gone).saturating_sub(back)
    }

    /// A table was unlinked, on this CPU.
    pub(crate) fn went(&self) {
        self.pass(|passed| &passed.gone);
    }

    /// A table that was unlinked is not used by anybody any more.
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

    /// A chain of tables will be retired, which needs the `Paging` when it comes back: it stays
    /// until [`let_go`](Self::let_go) is called with the CPU that this returns.
    ///
    /// A reference for each chain would be a locked instruction on a line that all CPUs share. So a
    /// CPU has one reference for all its chains, from the first until none is left: whoever adds
    /// the first clones it, whoever takes the last away drops it. Both may be under way at once,
    /// for the count may have risen again; then there are two for a moment, never none.
    pub(crate) fn keep(self: &Arc<Self>) -> Option<CpuId> {
        let machine = self.machine();
        let _section = machine.irqs_off();
        let cpu = machine.current();
        machine.step(Access::Shared);
        if self.tables.get(cpu)?.kept.add() {
            machine.step(Access::Shared);
            mem::forget(Arc::clone(self));
        }
        Some(cpu)
    }

    /// A chain that was kept on `cpu` is back.
    ///
    /// # Safety
    /// [`keep`](Self::keep) returned `cpu` for it, and this is its only call for that. `this` is
    /// from [`Arc::as_ptr`] of what it was called on, and is not used any more.
    pub(crate) unsafe fn let_go(this: *const Self, cpu: CpuId) {
        // SAFETY: a chain of this CPU is kept, so there is a reference.
        let paging = unsafe { &*this };
        paging.machine().step(Access::Shared);
        let passed = paging.tables.get(cpu);
        if passed.is_some_and(|passed| passed.kept.sub()) {
            // SAFETY: `keep` has forgotten it when the first of these chains came, and nobody else
            // drops it.
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
