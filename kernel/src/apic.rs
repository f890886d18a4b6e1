//! The local APIC of each CPU: its timer, and interrupts to other CPUs.

use crate::clock;
use crate::cpu::area::{self, Area};
use crate::machine::Kernel;
use crate::trap::entry::{APIC_ERROR, SPURIOUS, TIMER};
use core::arch::asm;
use machine::{CpuId, CpuSet, Irqs, VirtAddr};
use raw_cpuid::CpuId as Cpuid;
use spin::Once;
use x2apic::lapic::{ErrorFlags, LocalApic, LocalApicBuilder, TimerDivide, TimerMode};
use x86_64::instructions::port::Port;
use x86_64::registers::model_specific::Msr;

const IA32_APIC_BASE: u32 = 0x1b;

static REGISTERS: Once<VirtAddr> = Once::new();

/// The number of this CPU's APIC, by what the CPU says of itself.
pub(crate) fn own_number() -> u32 {
    let cpuid = Cpuid::new();
    cpuid.get_feature_info().map_or(0, |info| info.initial_local_apic_id().into())
}

/// Where the registers are in physical memory.
pub(crate) fn registers() -> u64 {
    // SAFETY: all x86-64 CPUs have it.
    (unsafe { Msr::new(IA32_APIC_BASE).read() }) & 0x000f_ffff_ffff_f000
}

/// Masks the old interrupt controllers, which firmware leaves alive, and says where the APIC's
/// registers are mapped.
pub(crate) fn start_all(at: VirtAddr) {
    for port in [0x21, 0xa1] {
        // SAFETY: masks all lines of a PIC. Nobody else uses it.
        unsafe { Port::<u8>::new(port).write(0xff) };
    }
    REGISTERS.call_once(|| at);
}

/// Makes the APIC of this CPU ready, its timer not yet running.
///
/// # Safety
/// Once on each CPU, after [`start_all`], interrupts off.
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
    // SAFETY: its registers are mapped there.
    unsafe {
        apic.enable();
        apic.disable_timer();
    }
    // SAFETY: this CPU's own, and interrupts are off.
    unsafe { *area::here().lapic.get() = Some(apic) };
}

/// Calls `f` with this CPU's APIC. Interrupts are off.
fn with<T>(f: impl FnOnce(&mut LocalApic) -> T) -> T {
    let here: &Area = area::here();
    // SAFETY: this CPU's own, and no interrupt comes in between; an NMI does not come back.
    let apic = unsafe { &mut *here.lapic.get() };
    f(apic.as_mut().expect("CPUs have started theirs"))
}

/// The interrupt that this handler is for has been taken.
pub(crate) fn end_of_interrupt() {
    // SAFETY: in a handler.
    with(|apic| unsafe { apic.end_of_interrupt() });
}

/// What has gone wrong.
pub(crate) fn errors() -> ErrorFlags {
    // SAFETY: reads a register.
    with(|apic| unsafe { apic.error_flags() })
}

/// Has the timer of this CPU interrupt it so often a second.
pub(crate) fn start_timer(hertz: u64) {
    let period = clock::apic_hertz() / hertz;
    // SAFETY: there is a handler.
    with(|apic| unsafe {
        apic.set_timer_initial(u32::try_from(period).unwrap_or(u32::MAX).max(1));
        apic.enable_timer();
    });
}

/// Has the timer of this CPU interrupt it, or not. It counts all the while.
pub(crate) fn let_timer_interrupt(whether: bool) {
    let _section = Kernel.irqs_off();
    // SAFETY: there is a handler.
    with(|apic| unsafe { if whether { apic.enable_timer() } else { apic.disable_timer() } });
}

/// Has the timer, which is masked, count down from its largest number.
pub(crate) fn restart_timer() {
    // SAFETY: nothing comes of it.
    with(|apic| unsafe { apic.set_timer_initial(u32::MAX) });
}

/// What the timer has counted down to, at a sixteenth of its clock.
pub(crate) fn timer() -> u32 {
    // SAFETY: reads a register.
    with(|apic| unsafe { apic.timer_current() })
}

/// Whether CPUs can be interrupted by such a number: the largest that an APIC that is not an x2APIC
/// could have names all of them.
pub(crate) fn can_name(apic: u32) -> bool {
    has_x2apic() || apic < 0xff
}

/// How the crate wants a CPU named: the register's upper half, in which an APIC that is not an
/// x2APIC has the number at its top.
pub(crate) fn destination(apic: u32) -> u32 {
    if has_x2apic() { apic } else { apic << 24 }
}

fn has_x2apic() -> bool {
    Cpuid::new().get_feature_info().is_some_and(|info| info.has_x2apic())
}

/// Interrupts each of these CPUs, which must not be this one. Interrupts are off.
pub(crate) fn interrupt(cpus: &CpuSet, vector: u8) {
    let areas = area::areas();
    // What they are interrupted for is written before: a register of an x2APIC does not wait for
    // stores by itself (Intel's manual, 11.12.3). SAFETY: it only waits.
    unsafe { asm!("mfence", "lfence", options(nostack, preserves_flags)) };
    with(|apic| {
        for to in cpus.iter().filter_map(|cpu: CpuId| areas.get(cpu.index())) {
            // SAFETY: there is a handler.
            unsafe { apic.send_ipi(vector, to.destination) };
        }
    });
}

/// Interrupts this CPU, when interrupts are on again.
pub(crate) fn interrupt_here(vector: u8) {
    let own = area::here().destination;
    // SAFETY: there is a handler.
    with(|apic| unsafe { apic.send_ipi(vector, own) });
}

/// Stops these CPUs, whatever they do: they have handlers, as a CPU has that is not starting any
/// more. Returns false if this CPU has no APIC yet.
pub(crate) fn stop(cpus: &CpuSet) -> bool {
    // SAFETY: this CPU's own; whoever was in the middle of using it does not go on.
    let Some(apic) = (unsafe { &mut *area::here().lapic.get() }) else { return false };
    for to in cpus.iter().filter_map(|cpu| area::areas().get(cpu.index())) {
        // SAFETY: their handler of NMIs does not come back.
        unsafe { apic.send_nmi(to.destination) };
    }
    true
}

/// Starts the CPU with this area at a page below 1 MiB: INIT, and twice SIPI, with the waits of
/// Intel's manual in between.
///
/// # Safety
/// What lies there starts a CPU.
pub(crate) unsafe fn start_cpu(area: &Area, page: u8) {
    let to = area.destination;
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
