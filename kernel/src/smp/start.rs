//! The start of the other CPUs, one after the other.

use super::{run, stack_of};
use crate::arch::{boot, features, irqchip, trap};
use crate::clock;
use crate::cpu::area::{self, Area};
use crate::grace::Grace;
use crate::machine::Kernel;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use machine::{Flush, Irqs, PhysAddr, Step, Tlb};

/// Timer interrupts a second, of each CPU.
const HERTZ: u64 = 250;
/// Nanoseconds that a CPU may take to start: a hundred seconds, because the host may be busy.
const PATIENCE: u64 = 100_000_000_000;

static STARTED: AtomicBool = AtomicBool::new(false);

/// The next CPU's page table, the end of its stack, and its area. `boot::entry` reads them.
#[unsafe(export_name = "ap_table")]
static TABLE: AtomicU64 = AtomicU64::new(0);
#[unsafe(export_name = "ap_stack")]
static STACK_END: AtomicU64 = AtomicU64::new(0);
#[unsafe(export_name = "ap_area")]
static AREA: AtomicU64 = AtomicU64::new(0);

/// Starts all other CPUs.
///
/// # Errors
/// The CPU that does not start.
///
/// # Safety
/// Call it once, on the boot CPU. Each CPU has an area and a stack; `root` is the kernel's table;
/// [`boot::prepare`] was called.
pub(crate) unsafe fn start_others(root: PhysAddr) -> Result<(), usize> {
    for (cpu, area) in area::areas().iter().enumerate().skip(1) {
        let _section = Kernel.irqs_off();
        let stack = stack_of(cpu);
        // Relaxed, all: a device write below starts the CPU that reads them, and CPUs that started
        // before have read theirs.
        TABLE.store(root.get(), Ordering::Relaxed);
        STACK_END.store(stack.start().get() + stack.len(), Ordering::Relaxed);
        AREA.store(ptr::from_ref(area).expose_provenance() as u64, Ordering::Relaxed);
        STARTED.store(false, Ordering::Relaxed);
        // SAFETY: by the caller's promise.
        unsafe { boot::start_cpu(area) };
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

/// The entry of all other CPUs, each on its own stack.
#[unsafe(no_mangle)]
unsafe extern "C" fn start_ap(area: &'static Area) -> ! {
    // SAFETY: `start_others` gives this CPU its area. Interrupts are off, and the CPU has done
    // nothing else.
    unsafe {
        area.take();
        features::start();
        trap::start_here(area);
        irqchip::start();
    }
    take_part();
    // Release: publishes the completed start; pairs with the Acquire of `start_others`.
    STARTED.store(true, Ordering::Release);
    // SAFETY: a CPU starts with one section, which this ends.
    unsafe { area::irq_leave() };
    run::idle()
}

/// Makes this CPU one that receives shootdowns, and starts its timer. Interrupts are off.
pub(crate) fn take_part() {
    area::set_online();
    // Drops translations that it cached before it could be asked to flush. The kernel's are global.
    Kernel.flush(Flush::All);
    assert!(Grace::start(), "no memory for the objects that this CPU retires");
    irqchip::start_timer(HERTZ);
}
