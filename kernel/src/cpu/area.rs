//! Per-CPU data: an area for each CPU, addressed by its GS register.
//!
//! The CPU's number and the depth of its interrupt-free sections are read and written by single
//! instructions relative to GS. So they are right wherever the code runs, and an interrupt between
//! two of them leaves them as it found them.
//!
//! Interrupts are off exactly while the depth is not 0. A section increments it after it has turned
//! interrupts off, and turns them on when it has decremented it to 0. A handler of an interrupt or
//! a fault increments it at its beginning, because the CPU has turned interrupts off by itself.
//!
//! A program runs within a section of the loop that has entered it, with interrupts on, and its GS
//! register is its own. Each way into the kernel exchanges the two (`swapgs`), and turns interrupts
//! off.

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

/// The data of one CPU. Single instructions reach some of the fields.
#[repr(C, align(128))]
pub(crate) struct Area {
    index: usize,
    /// The open interrupt-free sections and handlers.
    depth: Cell<u32>,
    /// The destination of IPIs to this CPU.
    pub(crate) destination: u32,
    /// The stack pointer of the loop that has entered a program (`user::enter`).
    pub(crate) kernel_stack: Cell<u64>,
    /// The end of the registers of the thread that runs: where a system call pushes.
    pub(crate) registers_end: Cell<u64>,
    /// The program's stack pointer, for a moment.
    pub(crate) user_stack: Cell<u64>,
    /// The address of the TSS's stack pointer for interrupts of programs.
    pub(crate) interrupt_stack: Cell<u64>,
    /// The root of the active tables, and their tag.
    pub(crate) active: Cell<Option<(machine::Frame, machine::Asid)>>,
    /// The CPU is in its timer interrupt.
    pub(crate) ticking: Cell<bool>,
    pub(crate) tables: UnsafeCell<super::tables::CpuTables>,
    pub(crate) lapic: UnsafeCell<Option<x2apic::lapic::LocalApic>>,
    pub(crate) stats: CpuStats,
    /// The job that the CPU runs next.
    pub(crate) job: AtomicPtr<crate::smp::Job>,
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
    const fn new(index: usize, destination: u32) -> Area {
        Area {
            index,
            depth: Cell::new(1),
            destination,
            kernel_stack: Cell::new(0),
            registers_end: Cell::new(0),
            user_stack: Cell::new(0),
            interrupt_stack: Cell::new(0),
            active: Cell::new(None),
            ticking: Cell::new(false),
            tables: UnsafeCell::new(super::tables::CpuTables::new()),
            lapic: UnsafeCell::new(None),
            stats: CpuStats {
                ticks: AtomicU64::new(0),
                shootdowns: AtomicU64::new(0),
                flushes: AtomicU64::new(0),
            },
            job: AtomicPtr::new(ptr::null_mut()),
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
        let base = x86_64::VirtAddr::from_ptr(self);
        x86_64::registers::model_specific::GsBase::write(base);
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

/// Makes the areas of all CPUs, which have these APIC numbers, and takes the first for this CPU.
///
/// # Safety
/// Call it once, on the boot CPU, which is the first of them. Interrupts have never been on.
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
    // SAFETY: the caller's promise is passed on.
    unsafe { areas[0].take() };
}

/// The areas of all CPUs; empty before [`start_all`].
pub(crate) fn areas() -> &'static [Area] {
    AREAS.get().map_or(core::slice::from_ref(&FIRST), |areas| areas)
}

/// This CPU's area.
#[inline]
pub(crate) fn here() -> &'static Area {
    // SAFETY: GS has pointed to an area since the start, so the number has one.
    unsafe { areas().get_unchecked(index()) }
}

/// The number of this CPU. Costs a load.
#[inline(always)]
pub(crate) fn index() -> usize {
    let index: usize;
    // SAFETY: GS points to this CPU's area.
    unsafe {
        asm!("mov {}, gs:[{}]", out(reg) index, const offset_of!(Area, index), options(nostack, preserves_flags, readonly));
    }
    index
}

/// This CPU.
#[inline(always)]
pub(crate) fn cpu() -> CpuId {
    // Numbers are below MAX_CPUS, because `CpuList` has no more.
    CpuId::new(index()).unwrap_or_default()
}

/// Begins an interrupt-free section: two instructions. No later access moves before them.
#[inline(always)]
pub(crate) fn irq_enter() {
    // SAFETY: the depth belongs to this CPU. To the compiler the assembly reads and writes all
    // memory, so no access moves across it.
    unsafe {
        asm!("cli", "inc dword ptr gs:[{}]", const offset_of!(Area, depth), options(nostack))
    };
}

/// Ends a section: two instructions and a branch, and one more if it is the outermost.
///
/// # Safety
/// It matches an `irq_enter` of this CPU.
#[inline(always)]
pub(crate) unsafe fn irq_leave() {
    // SAFETY: as above. Interrupts were on before the outermost section: otherwise its depth was
    // not 0.
    unsafe {
        asm!("dec dword ptr gs:[{}]", "jnz 2f", "sti", "2:", const offset_of!(Area, depth), options(nostack));
    }
}

/// Begins a handler, in which the CPU has turned interrupts off.
///
/// # Safety
/// Call it in a handler that calls [`handler_ends`].
pub(crate) unsafe fn handler_begins() {
    // SAFETY: the depth belongs to this CPU.
    unsafe { asm!("inc dword ptr gs:[{}]", const offset_of!(Area, depth), options(nostack)) };
}

/// Ends a handler. Its return restores the interrupt flag.
///
/// # Safety
/// It matches [`handler_begins`].
pub(crate) unsafe fn handler_ends() {
    // SAFETY: the depth belongs to this CPU.
    unsafe { asm!("dec dword ptr gs:[{}]", const offset_of!(Area, depth), options(nostack)) };
}

/// Ends the only open section, and sleeps until an interrupt comes. A CPU that has work for this
/// one writes it first and then sends an IPI. No interrupt can come between this CPU's look for
/// work and its sleep.
///
/// # Safety
/// One section is open.
pub(crate) unsafe fn sleep() {
    // SAFETY: as `irq_leave`. `sti` enables interrupts only after the next instruction.
    unsafe {
        asm!("dec dword ptr gs:[{}]", "sti", "hlt", const offset_of!(Area, depth), options(nostack))
    };
}
