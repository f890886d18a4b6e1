//! What a CPU knows of itself: an area for each, which its GS register leads to.
//!
//! The number of the CPU and the depth of sections without interrupts are read and written by
//! single instructions relative to GS, so they are right wherever the code runs, and an interrupt
//! between two of them finds and leaves them as they are.
//!
//! Interrupts are off exactly while the depth is not 0: a section counts up after it has turned
//! them off, and turns them on when it has counted down to 0; a handler of an interrupt or a fault
//! counts up as it begins, since the CPU has turned them off by itself.

use crate::apic;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::arch::asm;
use core::cell::{Cell, UnsafeCell};
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use machine::CpuId;
use spin::Once;

/// What belongs to one CPU. The first two are reached by single instructions.
#[repr(C, align(128))]
pub(crate) struct Area {
    index: usize,
    /// Sections without interrupts that are open, and handlers.
    depth: Cell<u32>,
    /// How its APIC is named by who interrupts it.
    pub(crate) destination: u32,
    /// The root of the tables that are active, and their tag.
    pub(crate) active: Cell<Option<(machine::Frame, machine::Asid)>>,
    /// It is in its timer interrupt.
    pub(crate) ticking: Cell<bool>,
    pub(crate) tables: UnsafeCell<super::tables::CpuTables>,
    pub(crate) lapic: UnsafeCell<Option<x2apic::lapic::LocalApic>>,
    pub(crate) counts: Counts,
    /// What it is to run next.
    pub(crate) job: AtomicPtr<crate::smp::Job>,
}

/// What has happened on a CPU. Each is written by its own CPU only.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) ticks: AtomicU64,
    /// Interrupts sent in order to flush.
    pub(crate) shootdowns: AtomicU64,
    /// Flushes of its own translations.
    pub(crate) flushes: AtomicU64,
}

/// Adds to a count of this CPU's own, interrupts off.
pub(crate) fn bump(count: &AtomicU64, by: u64) {
    // Relaxed, both: a statistic that one CPU writes.
    count.store(count.load(Ordering::Relaxed) + by, Ordering::Relaxed);
}

/// What has been counted on all CPUs: out of date when it is returned, unless they do nothing of
/// the kind.
pub(crate) fn total(of: fn(&Counts) -> &AtomicU64) -> u64 {
    // Relaxed: statistics.
    areas().iter().map(|area| of(&area.counts).load(Ordering::Relaxed)).sum()
}

// SAFETY: cells are touched by their own CPU only; what others reach is atomic.
unsafe impl Sync for Area {}
// SAFETY: as above.
unsafe impl Send for Area {}

static AREAS: Once<Box<[Area]>> = Once::new();

/// The area of the CPU that boots, until the heap is there.
static FIRST: Area = Area::new(0, 0);

impl Area {
    const fn new(index: usize, destination: u32) -> Area {
        Area {
            index,
            depth: Cell::new(1),
            destination,
            active: Cell::new(None),
            ticking: Cell::new(false),
            tables: UnsafeCell::new(super::tables::CpuTables::new()),
            lapic: UnsafeCell::new(None),
            counts: Counts {
                ticks: AtomicU64::new(0),
                shootdowns: AtomicU64::new(0),
                flushes: AtomicU64::new(0),
            },
            job: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// Sections without interrupts that are open; handlers count.
    pub(crate) fn depth(&self) -> u32 {
        self.depth.get()
    }

    /// Makes it that of the CPU that calls it.
    ///
    /// # Safety
    /// Nobody else has it, and interrupts are off.
    pub(crate) unsafe fn take(&'static self) {
        let base = x86_64::VirtAddr::from_ptr(self);
        x86_64::registers::model_specific::GsBase::write(base);
    }
}

/// An area for this CPU until there is a heap.
///
/// # Safety
/// Once, first of all, on the CPU that boots.
pub(crate) unsafe fn start() {
    // SAFETY: passed on.
    unsafe { FIRST.take() };
}

/// Areas for all CPUs, whose APICs have these numbers; that of this CPU is taken.
///
/// # Safety
/// Once, on the CPU that boots, the first of them; interrupts have never been on.
pub(crate) unsafe fn start_all(apics: &[u32]) {
    let make = || {
        let areas: Vec<Area> = apics
            .iter()
            .enumerate()
            .map(|(at, apic)| Area::new(at, apic::destination(*apic)))
            .collect();
        areas.into_boxed_slice()
    };
    let areas = AREAS.call_once(make);
    areas[0].depth.set(FIRST.depth.get());
    // SAFETY: passed on.
    unsafe { areas[0].take() };
}

/// The areas of all CPUs, once there are any.
pub(crate) fn areas() -> &'static [Area] {
    AREAS.get().map_or(core::slice::from_ref(&FIRST), |areas| areas)
}

/// That of this CPU.
#[inline]
pub(crate) fn here() -> &'static Area {
    // SAFETY: an area, or the first. GS has led to one since the start.
    unsafe { areas().get_unchecked(index()) }
}

/// The number of this CPU: a load.
#[inline(always)]
pub(crate) fn index() -> usize {
    let index: usize;
    // SAFETY: GS leads to this CPU's area.
    unsafe {
        asm!("mov {}, gs:[{}]", out(reg) index, const offset_of!(Area, index), options(nostack, preserves_flags, readonly));
    }
    index
}

/// This CPU.
#[inline(always)]
pub(crate) fn cpu() -> CpuId {
    // Numbers are below MAX_CPUS: `CpuList` has no more.
    CpuId::new(index()).unwrap_or_default()
}

/// Begins a section without interrupts: two instructions. What follows stays behind it.
#[inline(always)]
pub(crate) fn irq_enter() {
    // SAFETY: this CPU's own; to the compiler it reads and writes all memory, so nothing moves
    // across.
    unsafe {
        asm!("cli", "inc dword ptr gs:[{}]", const offset_of!(Area, depth), options(nostack))
    };
}

/// Ends a section: two instructions and a branch; another, if it is the last.
///
/// # Safety
/// It matches an `irq_enter` of this CPU.
#[inline(always)]
pub(crate) unsafe fn irq_leave() {
    // SAFETY: as above. Interrupts were on before the first section: else its depth had not been 0.
    unsafe {
        asm!("dec dword ptr gs:[{}]", "jnz 2f", "sti", "2:", const offset_of!(Area, depth), options(nostack));
    }
}

/// A handler begins: the CPU has turned interrupts off.
///
/// # Safety
/// In a handler, which calls [`handler_ends`].
pub(crate) unsafe fn handler_begins() {
    // SAFETY: this CPU's own.
    unsafe { asm!("inc dword ptr gs:[{}]", const offset_of!(Area, depth), options(nostack)) };
}

/// A handler ends: the CPU turns interrupts on as it returns, if they were.
///
/// # Safety
/// It matches [`handler_begins`].
pub(crate) unsafe fn handler_ends() {
    // SAFETY: this CPU's own.
    unsafe { asm!("dec dword ptr gs:[{}]", const offset_of!(Area, depth), options(nostack)) };
}

/// Ends the only section there is, and sleeps until an interrupt has come. Whoever has something to
/// do for this CPU writes it, and then interrupts: no interrupt can come between the look for it
/// and the sleep.
///
/// # Safety
/// A section is open, and no other.
pub(crate) unsafe fn sleep() {
    // SAFETY: as `irq_leave`. Interrupts come on only after the instruction behind `sti`.
    unsafe {
        asm!("dec dword ptr gs:[{}]", "sti", "hlt", const offset_of!(Area, depth), options(nostack))
    };
}
