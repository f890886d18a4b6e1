//! A space for areas.

use crate::area::List;
use crate::block::{BYTES, Blocks, Orphans};
use crate::check;
use crate::error::Error;
use crate::tlb_grace::TlbGrace;
use crate::zone::Zone;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::AtomicU64;
use grace::Concurrent;
use machine::{CpuLocal, Machine, PageSize, PerCpu, VirtAddr, VirtRange};
use paging::{Attrs, Format, PageTables};

pub(crate) const PAGE: u64 = PageSize::Size4K.bytes();

/// How a space is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// What pages of [`vmalloc`](Vmap::vmalloc) are like.
    pub attrs: Attrs,
    /// Whether areas have a page behind them that is never mapped, unless the call says otherwise.
    pub guard: bool,
    /// As many bytes of addresses wait in the whole space, before CPUs are interrupted, for each
    /// CPU that is not away. A CPU that has half its share waiting does not wait for that: so a
    /// space must have four times as many bytes for each CPU, and page tables for what waits (a
    /// 512th part of it).
    pub bytes_per_interrupt: u64,
}

impl Default for Options {
    /// The kernel's data; guard pages; one interrupt for 10,000 unmappings of 4 pages.
    fn default() -> Self {
        Options { attrs: Attrs::KERNEL_RW, guard: true, bytes_per_interrupt: 10_000 * 4 * PAGE }
    }
}

/// What a CPU has for itself.
#[derive(Default)]
pub(crate) struct Local {
    pub(crate) blocks: Blocks,
    /// Areas that were freed in interrupts.
    pub(crate) pending_free: List,
    /// Unmappings since somebody has looked for the end of a period.
    pub(crate) unmapped: u64,
    /// The last shortage that it has seen.
    pub(crate) shortage: u64,
}

/// What CPUs share that is written now and then, on lines of its own.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Shared {
    pub(crate) orphans: Orphans,
    /// Counts how often space has run out: who sees it for the first time gives back what it does
    /// not use.
    pub(crate) shortage: AtomicU64,
}

/// A space for areas of the kernel: an instance of everything that this crate does.
///
/// A kernel has one for itself, one for its modules, and so on, in ranges of their own; all share
/// the [`TlbGrace`] of their machine. See the [crate] for an example, and for what each call costs.
///
/// # Context
/// Calls that map or unmap take spin locks that interrupt handlers do not take, and may allocate
/// from the heap: not in an interrupt; but for [`vfree_atomic`](Vmap::vfree_atomic). Nothing
/// sleeps. Where space runs out or too much waits they may broadcast a flush: no lock is held that
/// an interrupt handler takes. Deferred frees of others may run, as the text at
/// [`PageTables`](PageTables#context) says, some of them with a lock of this space held: none of
/// them calls it.
///
/// Calls that only read may be made anywhere.
pub struct Vmap<M: Machine, F: Format, G: Concurrent> {
    pub(crate) tables: Arc<PageTables<M, F, G>>,
    pub(crate) flushes: Arc<TlbGrace<M>>,
    pub(crate) space: VirtRange,
    /// Where the first zone begins, and the bytes of each CPU's.
    base: VirtAddr,
    share: u64,
    /// Each CPU's, then the common one; or that alone.
    pub(crate) zones: Box<[Zone<G>]>,
    pub(crate) local: CpuLocal<Local, M>,
    /// Bytes that wait in each CPU's blocks, as it last said.
    pub(crate) in_blocks: PerCpu<AtomicU64>,
    pub(crate) shared: Shared,
    pub(crate) options: Options,
}

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// A space of these addresses in the kernel's half. Allocates from the heap, and the kernel's
    /// tables below the top, which stay also if this fails: so it is made before the first space of
    /// a program.
    ///
    /// From the first border of 2 MiB on, half of it is shared out among the CPUs, in pieces of 2
    /// MiB; the rest is common.
    ///
    /// # Errors
    /// [`Error::BadSpace`], [`Error::OutOfMemory`], [`Error::Frames`], [`Error::Tables`]; and, for
    /// [`Options::attrs`], [`Error::UserAccess`], [`Error::WritableCode`], [`Error::MemoryType`].
    ///
    /// # Safety
    /// The addresses are this space's: nothing is mapped there, or was since all CPUs have last
    /// flushed, and nobody else maps or prunes there as long as it is used, or as an area is live
    /// that it was dropped with. `flushes` are those of the machine of `tables`, on which every CPU
    /// that uses an address of an area is [back](TlbGrace::idle_exit). (A call that maps one brings
    /// its CPU back.)
    pub unsafe fn try_new(
        tables: Arc<PageTables<M, F, G>>,
        flushes: Arc<TlbGrace<M>>,
        space: VirtRange,
        options: Options,
    ) -> Result<Self, Error> {
        let machine = tables.machine();
        let bad = Error::BadSpace(space);
        let aligned =
            space.start().is_aligned(PageSize::Size4K) && space.len().is_multiple_of(PAGE);
        if tables.space().is_some() || space.is_empty() || !F::is_upper(space.start()) || !aligned {
            return Err(bad);
        }
        check::ram(options.attrs)?;
        tables.reserve(space)?;
        // Shares begin and end at a border of 2 MiB, so that none has a page table in common with
        // another.
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
            flushes,
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

    /// The kernel's tables.
    pub fn tables(&self) -> &Arc<PageTables<M, F, G>> {
        &self.tables
    }

    /// The TLB grace periods of the machine.
    pub fn flushes(&self) -> &Arc<TlbGrace<M>> {
        &self.flushes
    }

    /// The zone that an address is of. A division.
    pub(crate) fn zone_of(&self, at: VirtAddr) -> Option<&Zone<G>> {
        if !self.space.contains(at) {
            return None;
        }
        let number = at.offset_from(self.base)?.checked_div(self.share).unwrap_or(0) as usize;
        self.zones.get(number.min(self.zones.len() - 1))
    }

    /// The zone that this CPU takes so many bytes from first, by its number.
    pub(crate) fn first_zone(&self, bytes: u64) -> usize {
        let common = self.zones.len() - 1;
        if bytes > BYTES.max(self.share / 4) {
            return common;
        }
        let _section = self.machine().irqs_off();
        self.machine().current().index().min(common)
    }
}

/// Areas that are live stay mapped. What was freed in interrupts is given back, and all that was
/// unmapped is flushed.
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
        self.flushes.expedite(self.flushes.target());
    }
}

impl<M: Machine, F: Format, G: Concurrent> fmt::Debug for Vmap<M, F, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vmap").field("space", &self.space).finish_non_exhaustive()
    }
}
