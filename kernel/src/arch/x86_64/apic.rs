//! The local APIC of each CPU: its timer, and interrupts to other CPUs.

use crate::clock;
use crate::cpu::area::{self, Area};
use crate::machine::Kernel;
use crate::trap::vector::{APIC_ERROR, SPURIOUS, TIMER, WAKE};
use core::arch::asm;
use machine::{CpuId, CpuSet, Irqs, PhysAddr, PhysRange, VirtAddr};
use raw_cpuid::CpuId as Cpuid;
use spin::Once;
use x2apic::lapic::{ErrorFlags, LocalApic, LocalApicBuilder, TimerDivide, TimerMode};
use x86_64::instructions::port::Port;
use x86_64::registers::model_specific::Msr;

const IA32_APIC_BASE: u32 = 0x1b;

static REGISTERS: Once<VirtAddr> = Once::new();

/// This CPU's APIC number, from CPUID.
pub(crate) fn own_number() -> u32 {
    let cpuid = Cpuid::new();
    cpuid.get_feature_info().map_or(0, |info| info.initial_local_apic_id().into())
}

/// The physical address of the registers.
fn registers() -> u64 {
    // SAFETY: all x86-64 CPUs have this MSR.
    (unsafe { Msr::new(IA32_APIC_BASE).read() }) & 0x000f_ffff_ffff_f000
}

/// Masks the legacy PICs, which firmware leaves enabled, and maps the APIC's registers by `map`.
pub(crate) fn start_all(map: impl Fn(PhysRange) -> VirtAddr) {
    for port in [0x21, 0xa1] {
        // SAFETY: masks all lines of a PIC. No other code uses it.
        unsafe { Port::<u8>::new(port).write(0xff) };
    }
    let registers = PhysRange::new(PhysAddr::new(registers()), 4096);
    let registers = registers.expect("an address of a device");
    REGISTERS.call_once(|| map(registers));
}

/// Initialises this CPU's APIC. Its timer does not run yet.
///
/// # Safety
/// Call it once on each CPU, after [`start_all`], with interrupts off.
pub(crate) unsafe fn start() {
    let at = REGISTERS.get().expect("`start_all` comes first");
    let mut builder = LocalApicBuilder::new();
    builder
        .timer_vector(TIMER.into())
        .error_vector(APIC_ERROR.into())
        .spurious_vector(SPURIOUS.into())
        .timer_mode(TimerMode::Periodic)
        .timer_divide(TimerDivide::Div16)
        .timer_initial(u32::MAX)
        .set_xapic_base(at.get());
    let mut apic = builder.build().expect("nothing is left out");
    // SAFETY: the registers are mapped at this address.
    unsafe {
        apic.enable();
        apic.disable_timer();
    }
    // SAFETY: the cell belongs to this CPU, and interrupts are off.
    unsafe { *area::here().own.lapic.get() = Some(apic) };
}

/// Calls `f` with this CPU's APIC, with interrupts off.
fn with<T>(f: impl FnOnce(&mut LocalApic) -> T) -> T {
    let here: &Area = area::here();
    // SAFETY: the cell belongs to this CPU. No interrupt comes in between, and an NMI does not
    // return.
    let apic = unsafe { &mut *here.own.lapic.get() };
    f(apic.as_mut().expect("CPUs have started theirs"))
}

/// Acknowledges the interrupt of the current handler.
pub(crate) fn end_of_interrupt() {
    // SAFETY: a handler is running.
    with(|apic| unsafe { apic.end_of_interrupt() });
}

/// The errors that the APIC has recorded.
pub(crate) fn errors() -> ErrorFlags {
    // SAFETY: reads a register.
    with(|apic| unsafe { apic.error_flags() })
}

/// Starts this CPU's timer, which interrupts it `hertz` times a second.
pub(crate) fn start_timer(hertz: u64) {
    let period = super::clock::apic_hertz() / hertz;
    // SAFETY: the interrupt has a handler.
    with(|apic| unsafe {
        apic.set_timer_initial(u32::try_from(period).unwrap_or(u32::MAX).max(1));
        apic.enable_timer();
    });
}

/// Enables or disables this CPU's timer interrupt. The timer counts in both cases.
pub(crate) fn let_timer_interrupt(whether: bool) {
    let _section = Kernel.irqs_off();
    // SAFETY: the interrupt has a handler.
    with(|apic| unsafe { if whether { apic.enable_timer() } else { apic.disable_timer() } });
}

/// Restarts the masked timer at its largest count.
pub(crate) fn restart_timer() {
    // SAFETY: a masked timer has no effect but its count.
    with(|apic| unsafe { apic.set_timer_initial(u32::MAX) });
}

/// The timer's current count, at a sixteenth of its clock.
pub(crate) fn timer() -> u32 {
    // SAFETY: reads a register.
    with(|apic| unsafe { apic.timer_current() })
}

/// Returns whether interrupts can address this APIC number. The largest number of an APIC that is
/// not an x2APIC is the broadcast address.
pub(crate) fn can_name(apic: u32) -> bool {
    has_x2apic() || apic < 0xff
}

/// The destination of IPIs in the form that the APIC crate expects: the upper half of the register.
/// An APIC that is not an x2APIC has its number in the top byte of that.
pub(crate) fn destination(apic: u32) -> u32 {
    if has_x2apic() { apic } else { apic << 24 }
}

fn has_x2apic() -> bool {
    Cpuid::new().get_feature_info().is_some_and(|info| info.has_x2apic())
}

/// Sends an IPI to each of these CPUs, which must not include this one. Interrupts are off.
pub(crate) fn interrupt(cpus: &CpuSet, vector: u8) {
    let areas = area::areas();
    // The request must be visible before the IPI: a write to an x2APIC register does not wait for
    // earlier stores (Intel's manual, 11.12.3). SAFETY: the fences have no other effect.
    unsafe { asm!("mfence", "lfence", options(nostack, preserves_flags)) };
    with(|apic| {
        for to in cpus.iter().filter_map(|cpu: CpuId| areas.get(cpu.index())) {
            // SAFETY: the vector has a handler.
            unsafe { apic.send_ipi(vector, to.own.id) };
        }
    });
}

/// Wakes each of these CPUs, which must not include this one: it looks for a job, and ticks.
/// Interrupts are off.
pub(crate) fn wake(cpus: &CpuSet) {
    interrupt(cpus, WAKE);
}

/// As [`wake`], for this CPU. The interrupt arrives when interrupts are on again.
pub(crate) fn wake_self() {
    let own = area::here().own.id;
    // SAFETY: the vector has a handler.
    with(|apic| unsafe { apic.send_ipi(WAKE, own) });
}

/// Stops these CPUs by NMI, whatever they are doing. They have handlers, because they have finished
/// starting. Returns false if this CPU has no APIC yet.
pub(crate) fn stop(cpus: &CpuSet) -> bool {
    // SAFETY: the cell belongs to this CPU. Code that was using it does not continue.
    let Some(apic) = (unsafe { &mut *area::here().own.lapic.get() }) else { return false };
    for to in cpus.iter().filter_map(|cpu| area::areas().get(cpu.index())) {
        // SAFETY: the NMI handlers of these CPUs do not return.
        unsafe { apic.send_nmi(to.own.id) };
    }
    true
}

/// Starts the CPU of this area at a page below 1 MiB: INIT, then SIPI twice, with the delays of
/// Intel's manual.
///
/// # Safety
/// The page contains code that starts a CPU.
pub(crate) unsafe fn start_cpu(area: &Area, page: u8) {
    let to = area.own.id;
    with(|apic| {
        // SAFETY: by the caller's promise.
        unsafe {
            apic.send_init_ipi(to);
            clock::wait(10_000_000);
            apic.send_sipi(page, to);
            clock::wait(200_000);
            apic.send_sipi(page, to);
        }
    });
}
