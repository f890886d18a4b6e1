//! Per-CPU data: an area for each CPU, which a register of the CPU points to.
//!
//! Interrupts are off exactly while the depth of interrupt-free sections is not 0. A section
//! increments it after it has turned interrupts off, and turns them on when it has decremented it
//! to 0. A handler of an interrupt or a fault increments it at its beginning, because the CPU has
//! turned interrupts off by itself. `arch::section` has the instructions.

use super::job::Job;
use crate::arch::section::Own;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::Cell;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use machine::{AtomicCpuSet, CpuId, CpuSet};
use spin::Once;

pub(crate) use crate::arch::section::{
    HardwareId, handler_begins, handler_ends, index, irq_enter, irq_leave, sleep,
};

/// The data of one CPU. Single instructions reach some of the fields.
#[repr(C, align(128))]
pub(crate) struct Area {
    /// The CPU's number.
    pub(crate) index: usize,
    /// The open interrupt-free sections and handlers.
    pub(crate) depth: Cell<u32>,
    /// The CPU is in its timer interrupt.
    pub(crate) ticking: Cell<bool>,
    /// The root of the active tables, and their tag.
    pub(crate) active: Cell<Option<(machine::Frame, machine::Asid)>>,
    /// The process whose thread the CPU runs, or has run last; 0 for none.
    #[cfg(target_arch = "x86_64")]
    pub(crate) process: Cell<u32>,
    pub(crate) stats: CpuStats,
    /// The job that the CPU runs next.
    pub(crate) job: AtomicPtr<Job>,
    /// The part of the architecture.
    pub(crate) own: Own,
}

/// Statistics of one CPU. Only that CPU writes them.
#[derive(Default)]
pub(crate) struct CpuStats {
    pub(crate) ticks: AtomicU64,
    /// IPIs sent to request a flush.
    pub(crate) shootdowns: AtomicU64,
    /// Flushes of its own TLB.
    pub(crate) flushes: AtomicU64,
}

/// Adds to a statistic of this CPU, with interrupts off.
pub(crate) fn bump(count: &AtomicU64, by: u64) {
    // Relaxed, both: a statistic that only this CPU writes.
    count.store(count.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

/// The sum over all CPUs. It is out of date when it is returned, unless the CPUs do nothing that
/// counts.
pub(crate) fn total(of: fn(&CpuStats) -> &AtomicU64) -> u64 {
    // Relaxed: statistics.
    areas().iter().map(|area| of(&area.stats).load(Ordering::Relaxed)).sum()
}

// SAFETY: only the CPU that owns the area uses its cells; everything else is atomic.
unsafe impl Sync for Area {}
// SAFETY: as above.
unsafe impl Send for Area {}

static AREAS: Once<Box<[Area]>> = Once::new();

/// The boot CPU's area until the heap works.
static FIRST: Area = Area::new(0, 0);

impl Area {
    const fn new(index: usize, id: HardwareId) -> Area {
        Area {
            index,
            depth: Cell::new(1),
            ticking: Cell::new(false),
            active: Cell::new(None),
            #[cfg(target_arch = "x86_64")]
            process: Cell::new(0),
            stats: CpuStats {
                ticks: AtomicU64::new(0),
                shootdowns: AtomicU64::new(0),
                flushes: AtomicU64::new(0),
            },
            job: AtomicPtr::new(ptr::null_mut()),
            own: Own::new(id),
        }
    }

    /// The open interrupt-free sections, including handlers.
    pub(crate) fn depth(&self) -> u32 {
        self.depth.get()
    }

    /// Makes it the area of the calling CPU.
    ///
    /// # Safety
    /// No other CPU uses it, and interrupts are off.
    pub(crate) unsafe fn take(&'static self) {
        // SAFETY: the caller's promise is passed on.
        unsafe { crate::arch::section::take(self) };
    }
}

/// Gives this CPU an area until the heap works.
///
/// # Safety
/// Call it once, before anything else, on the boot CPU.
pub(crate) unsafe fn start() {
    // SAFETY: the caller's promise is passed on.
    unsafe { FIRST.take() };
}

/// Makes the areas of all CPUs, which have these hardware numbers, and takes the first for this
/// CPU.
///
/// # Safety
/// Call it once, on the boot CPU, which is the first of them. Interrupts have never been on.
pub(crate) unsafe fn start_all(ids: &[HardwareId]) {
    let make = || {
        let areas: Vec<Area> = ids.iter().enumerate().map(|(at, id)| Area::new(at, *id)).collect();
        areas.into_boxed_slice()
    };
    let areas = AREAS.call_once(make);
    areas[0].depth.set(FIRST.depth.get());
    // SAFETY: the caller's promise is passed on.
    unsafe { areas[0].take() };
}

/// The areas of all CPUs; empty before [`start_all`].
pub(crate) fn areas() -> &'static [Area] {
    AREAS.get().map_or(core::slice::from_ref(&FIRST), |areas| areas)
}

static ONLINE: AtomicCpuSet = AtomicCpuSet::new();

/// CPUs that have started.
pub(crate) fn online() -> CpuSet {
    ONLINE.load()
}

/// This CPU has started.
pub(crate) fn set_online() {
    ONLINE.insert(cpu());
}

/// This CPU's area.
#[inline]
pub(crate) fn here() -> &'static Area {
    // SAFETY: the CPU has had an area since the start, so the number has one.
    unsafe { areas().get_unchecked(index()) }
}

/// This CPU.
#[inline(always)]
pub(crate) fn cpu() -> CpuId {
    // Numbers are below MAX_CPUS, because `CpuList` has no more.
    CpuId::new(index()).unwrap_or_default()
}
