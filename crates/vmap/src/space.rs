//! [`Vmap`]: one range of the kernel's addresses from which areas are made.

use crate::PAGE;
use crate::TlbGrace;
use crate::area::{Guard, List};
use crate::block::{BYTES, Blocks, Orphans};
use crate::check;
use crate::error::Error;
use crate::zone::Zone;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::AtomicU64;
use grace::Concurrent;
use machine::{CpuLocal, Machine, PageSize, PerCpu, VirtAddr, VirtRange};
use paging::{Attrs, Format, Geometry, PageTables};

/// Settings of a [`Vmap`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Attributes of the pages of [`vmalloc`](Vmap::vmalloc).
    pub attrs: Attrs,
    /// The guard pages of an area, unless its request names others.
    pub guard: Guard,
    /// The limit of waiting addresses in the whole space, in bytes per CPU that is not idle. Beyond
    /// it, CPUs are interrupted.
    ///
    /// A CPU also forces a flush when half of its own share waits. To make use of this limit, a
    /// space therefore needs four times as many bytes per CPU, and memory for the page tables of
    /// the waiting addresses (1/512 of them).
    pub bytes_per_interrupt: u64,
}

impl Default for Options {
    /// Kernel data; a guard page above; one interrupt for 10,000 unmappings of 4 pages.
    fn default() -> Self {
        Options {
            attrs: Attrs::KERNEL_RW,
            guard: Guard::Above,
            bytes_per_interrupt: 10_000 * 4 * PAGE,
        }
    }
}

/// Per-CPU state.
#[derive(Default)]
pub(crate) struct Local {
    pub(crate) blocks: Blocks,
    /// Areas that were freed in interrupts.
    pub(crate) pending_free: List,
    /// Unmappings on this CPU; every so many, it tests whether a period has ended.
    pub(crate) unmapped: u64,
    /// The last value of [`Shared::shortage`] that this CPU has seen.
    pub(crate) shortage: u64,
}

/// State that all CPUs share and rarely write, on its own cache lines.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Shared {
    pub(crate) orphans: Orphans,
    /// Counts how often space has run out. A CPU that sees a new value gives back the blocks that
    /// it does not use.
    pub(crate) shortage: AtomicU64,
}

/// An address space for kernel areas: one instance of everything that this crate does.
///
/// A kernel has one for itself, one for its modules, and so on, in separate ranges. All of them
/// share the [`TlbGrace`] of their machine. The [crate] has an example and the cost of each call.
///
/// # Context
/// - Calls that map or unmap take spin locks that interrupt handlers do not take, and may allocate
///   from the heap. Do not make them in an interrupt handler, except
///   [`vfree_atomic`](Vmap::vfree_atomic).
/// - No call sleeps.
/// - If space runs out or too many addresses wait, a call may broadcast a flush. It then holds no
///   lock that an interrupt handler takes.
/// - A call may run deferred frees of other code, as described at
///   [`PageTables`](PageTables#context), some of them with a lock of this space held. None of these
///   frees may call this space.
/// - Calls that only read may be made in any context.
///
/// # Misuse
/// Dropped with live areas, it leaves them mapped: the caller of `try_new` has promised the
/// addresses for as long. Forgotten, all of it leaks. A call in an interrupt that has come upon the
/// holder of the zone's lock waits without end.
pub struct Vmap<M: Machine, F: Format, G: Concurrent> {
    pub(crate) tables: Arc<PageTables<M, F, G>>,
    pub(crate) tlb_grace: Arc<TlbGrace<M>>,
    pub(crate) space: VirtRange,
    /// The start of the first zone, and the size of each CPU's zone.
    base: VirtAddr,
    share: u64,
    /// One zone per CPU, then the common zone; or the common zone alone.
    pub(crate) zones: Box<[Zone<G>]>,
    pub(crate) local: CpuLocal<Local, M>,
    /// Bytes that wait in each CPU's blocks, as the CPU last published them.
    pub(crate) in_blocks: PerCpu<AtomicU64>,
    pub(crate) shared: Shared,
    pub(crate) options: Options,
}

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// Creates a space from these addresses in the kernel's half. Allocates from the heap.
    ///
    /// It also allocates the kernel's page tables below the top level, which stay even if this call
    /// fails. So create it before the first address space of a program.
    ///
    /// It compiles for formats with a granule of 4 KiB only.
    ///
    /// From the first 2 MiB boundary on, half of the range is divided among the CPUs, in units of 2
    /// MiB. The rest is common.
    ///
    /// # Errors
    /// [`Error::BadSpace`], [`Error::OutOfMemory`], [`Error::Frames`], [`Error::Tables`]; and, for
    /// [`Options::attrs`], [`Error::UserAccess`], [`Error::WritableCode`], [`Error::MemoryType`].
    ///
    /// # Safety
    /// - Nothing is mapped in the range, and nothing was mapped there since all CPUs last flushed.
    /// - No other code maps or prunes in the range while the space exists, except as
    ///   [`reserve`](Vmap::reserve) says, or, after it is dropped,
    ///   while an area that was live at the drop is still in use.
    /// - `tlb_grace` belongs to the machine of `tables`. Every CPU that uses an address of an area
    ///   has called [`TlbGrace::idle_exit`]. (A call that maps an area does this for its CPU.)
    pub unsafe fn try_new(
        tables: Arc<PageTables<M, F, G>>,
        tlb_grace: Arc<TlbGrace<M>>,
        space: VirtRange,
        options: Options,
    ) -> Result<Self, Error> {
        const { assert!(F::PAGE.order() == 0, "`Vmap` needs a format with a granule of 4 KiB") };
        let machine = tables.machine();
        let bad = Error::BadSpace(space);
        let aligned =
            space.start().is_aligned(PageSize::Size4K) && space.len().is_multiple_of(PAGE);
        if tables.space().is_some() || space.is_empty() || !F::is_upper(space.start()) || !aligned {
            return Err(bad);
        }
        check::ram(options.attrs)?;
        tables.reserve(space)?;
        // Shares begin and end at 2 MiB boundaries, so no two zones share a page-table page of
        // PTEs.
        let border = space.start().align_up(PageSize::Size2M).filter(|at| space.contains(*at));
        let base = border.unwrap_or(space.start());
        let len = space.len() - (base.get() - space.start().get());
        let cpus = machine.count() as u64;
        let share = if border.is_some() { len / 2 / cpus / BYTES * BYTES } else { 0 };
        let count = if share == 0 { 1 } else { cpus + 1 };
        let mut zones = Vec::new();
        zones.try_reserve_exact(count as usize).map_err(|_| Error::OutOfMemory)?;
        for number in 0..count {
            let start = base.checked_add(number * share).ok_or(bad)?;
            let len = if number + 1 == count { len - number * share } else { share };
            zones.push(Zone::new(VirtRange::new(start, len).ok_or(bad)?)?);
        }
        let local = CpuLocal::try_new(machine.clone(), |_| Local::default());
        let in_blocks = PerCpu::try_new(machine.count(), |_| AtomicU64::new(0));
        let (Ok(local), Ok(in_blocks)) = (local, in_blocks) else { return Err(Error::OutOfMemory) };
        Ok(Vmap {
            tables,
            tlb_grace,
            space,
            base,
            share,
            zones: zones.into_boxed_slice(),
            local,
            in_blocks,
            shared: Shared::default(),
            options,
        })
    }

    /// The machine.
    pub fn machine(&self) -> &M {
        self.tables.machine()
    }

    /// The addresses.
    pub fn space(&self) -> VirtRange {
        self.space
    }

    /// The kernel's page tables.
    pub fn tables(&self) -> &Arc<PageTables<M, F, G>> {
        &self.tables
    }

    /// The TLB grace periods of the machine.
    pub fn tlb_grace(&self) -> &Arc<TlbGrace<M>> {
        &self.tlb_grace
    }

    /// The zone that contains an address. Cost: a division.
    pub(crate) fn zone_of(&self, at: VirtAddr) -> Option<&Zone<G>> {
        if !self.space.contains(at) {
            return None;
        }
        let number = at.offset_from(self.base)?.checked_div(self.share).unwrap_or(0) as usize;
        self.zones.get(number.min(self.zones.len() - 1))
    }

    /// The index of the zone that this CPU tries first for an area of so many bytes.
    pub(crate) fn first_zone(&self, bytes: u64) -> usize {
        let common = self.zones.len() - 1;
        if bytes > BYTES.max(self.share / 4) {
            return common;
        }
        let _section = self.machine().irqs_off();
        self.machine().current().index().min(common)
    }
}

/// Live areas stay mapped. Areas that were freed in interrupts are given back, and all unmapped
/// addresses are flushed.
impl<M: Machine, F: Format, G: Concurrent> Drop for Vmap<M, F, G> {
    fn drop(&mut self) {
        let mut pending_free = List::default();
        for local in self.local.iter_mut() {
            while let Some(area) = local.pending_free.pop() {
                pending_free.push(area);
            }
        }
        while let Some(area) = pending_free.pop() {
            self.free_claimed(area);
        }
        self.tlb_grace.expedite(self.tlb_grace.target());
    }
}

impl<M: Machine, F: Format, G: Concurrent> fmt::Debug for Vmap<M, F, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vmap").field("space", &self.space).finish_non_exhaustive()
    }
}
