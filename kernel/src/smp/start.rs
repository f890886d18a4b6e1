//! How the other CPUs start: one after the other, by INIT and SIPI.

use super::{run, stack_of};
use crate::boot::entry::TRAMPOLINE;
use crate::cpu::area::{self, Area};
use crate::cpu::features;
use crate::grace::Grace;
use crate::machine::Kernel;
use crate::{apic, clock};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use machine::{AtomicCpuSet, CpuSet, Flush, Irqs, PhysAddr, Step, Tlb};

/// Timer interrupts a second, of each CPU.
const HERTZ: u64 = 250;
/// How long a CPU may take to start, in nanoseconds: ten seconds, of a host that may have other
/// things to do.
const PATIENCE: u64 = 10_000_000_000;

static ONLINE: AtomicCpuSet = AtomicCpuSet::new();
static STARTED: AtomicBool = AtomicBool::new(false);

/// What the next CPU starts with: the table that it translates by, the end of its stack, its area.
/// See `boot::entry`.
#[unsafe(export_name = "ap_table")]
static TABLE: AtomicU64 = AtomicU64::new(0);
#[unsafe(export_name = "ap_stack")]
static STACK_END: AtomicU64 = AtomicU64::new(0);
#[unsafe(export_name = "ap_area")]
static AREA: AtomicU64 = AtomicU64::new(0);

/// CPUs that have started.
pub(crate) fn online() -> CpuSet {
    ONLINE.load()
}

/// Starts all other CPUs.
///
/// # Errors
/// The CPU that does not start.
///
/// # Safety
/// Once, on the first CPU; each has an area and a stack; `root` is the kernel's table; the
/// trampoline lies where it is to lie.
pub(crate) unsafe fn start_others(root: PhysAddr) -> Result<(), usize> {
    for (cpu, area) in area::areas().iter().enumerate().skip(1) {
        let _section = Kernel.irqs_off();
        let stack = stack_of(cpu);
        // Relaxed, all: the CPU that reads them is started below, by a write to a device; those
        // before have read theirs.
        TABLE.store(root.get(), Ordering::Relaxed);
        STACK_END.store(stack.start().get() + stack.len(), Ordering::Relaxed);
        AREA.store(ptr::from_ref(area).expose_provenance() as u64, Ordering::Relaxed);
        STARTED.store(false, Ordering::Relaxed);
        // SAFETY: the trampoline is there, by the caller's promise.
        unsafe { apic::start_cpu(area, (TRAMPOLINE >> 12) as u8) };
        let until = clock::now() + PATIENCE;
        // Acquire: pairs with the Release of `start_ap`.
        while !STARTED.load(Ordering::Acquire) {
            if clock::now() > until {
                return Err(cpu);
            }
            Kernel.relax();
        }
    }
    Ok(())
}

/// Where CPUs that others have started begin, each on its stack.
#[unsafe(no_mangle)]
unsafe extern "C" fn start_ap(area: &'static Area) -> ! {
    // SAFETY: the area is this CPU's, by `start_others`; interrupts are off, and it is the first
    // that this CPU does.
    unsafe {
        area.take();
        features::start();
        (*area.tables.get()).load();
        apic::start();
    }
    take_part();
    // Release: all of it is done; pairs with the Acquire of `start_others`.
    STARTED.store(true, Ordering::Release);
    // SAFETY: a CPU begins with one section, which this ends.
    unsafe { area::irq_leave() };
    run::idle()
}

/// This CPU is one of those that are interrupted and waited for, and its timer runs. Interrupts are
/// off.
pub(crate) fn take_part() {
    ONLINE.insert(area::cpu());
    // What it has cached before it could be asked to flush: global translations, as the kernel's
    // are.
    Kernel.flush(Flush::All);
    assert!(Grace::start(), "no memory for what this CPU retires");
    apic::start_timer(HERTZ);
}
