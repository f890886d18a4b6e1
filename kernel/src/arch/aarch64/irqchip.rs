//! The GICv3, interrupts to other CPUs, and each CPU's virtual timer.
//!
//! Interrupts of group 1 are IRQs, which sections keep off. An interrupt of group 0 is a FIQ, which
//! is always on: it stops a CPU, whatever it does, as an NMI on x86-64.

use super::boot::info::tree;
use super::clock;
use crate::cpu::area;
use crate::machine::Kernel;
use crate::smp;
use alloc::vec::Vec;
use arm_gic::gicv3::registers::{Gicd, GicdCtlr, GicrSgi};
use arm_gic::gicv3::{GicCpuInterface, GicV3, Group, SecureIntGroup, SgiTarget, SgiTargetGroup};
use arm_gic::{IntId, InterruptGroup, UniqueMmioPointer};
use core::arch::asm;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicBool, Ordering};
use machine::{CpuSet, PhysRange, VirtAddr, lock};
use spin::Once;
use spin::mutex::SpinMutex;

/// Another CPU has a job for this one, or waits for its tick.
const WAKE: IntId = IntId::sgi(0);
/// Another CPU has failed.
const STOP: IntId = IntId::sgi(1);
/// The virtual timer.
const TIMER: IntId = IntId::ppi(11);
/// Any priority that the mask lets through.
const PRIORITY: u8 = 0x80;

static GIC: Once<SpinMutex<GicV3<'static>>> = Once::new();
/// The affinities of the redistributors, in the order of their registers.
static ORDER: Once<Vec<u64>> = Once::new();
/// The boot CPU has started its interrupts.
static STARTED: AtomicBool = AtomicBool::new(false);

/// Maps the registers by `map`, and initialises those that all CPUs share.
pub(crate) fn start_all(map: impl Fn(PhysRange) -> VirtAddr) {
    let tree = tree().expect("the device tree was there before");
    let registers = |which| {
        let registers = tree.registers("/intc", which);
        registers.expect("the device tree names no GICv3: start QEMU with -machine gic-version=3")
    };
    let (shared, own) = (pointer::<Gicd>(map(registers(0))), pointer::<GicrSgi>(map(registers(1))));
    let cpus = area::areas().len();
    // SAFETY: the registers are mapped, and only this module uses them.
    let gic = unsafe { GicV3::new(UniqueMmioPointer::new(shared), own, cpus) };
    let mut gic = gic.unwrap_or_else(|error| panic!("the GIC: {error}"));
    gic.distributor().configure_default_settings();
    gic.gicd_set_control(GicdCtlr::EnableGrp0 | GicdCtlr::EnableGrp1NS);
    let affinity = |cpu| gic.gicr_typer(cpu).map_or(u64::MAX, |kind| kind.core_mpidr());
    ORDER.call_once(|| (0..cpus).map(affinity).collect());
    GIC.call_once(|| SpinMutex::new(gic));
}

/// The pointer to mapped registers.
fn pointer<T>(at: VirtAddr) -> NonNull<T> {
    let at = with_exposed_provenance_mut(at.get() as usize);
    NonNull::new(at).expect("no device is at address 0")
}

/// Initialises this CPU's interrupts. Its timer does not run yet.
///
/// # Safety
/// Call it once on each CPU, after [`start_all`], with interrupts off.
pub(crate) unsafe fn start() {
    let id = area::here().own.id;
    let order = ORDER.get().expect("`start_all` comes first");
    let cpu = order.iter().position(|affinity| *affinity == id);
    let cpu = cpu.unwrap_or_else(|| panic!("no redistributor for the CPU {id:#x}"));
    {
        let mut gic = lock(&Kernel, GIC.get().expect("`start_all` comes first"));
        gic.init_cpu(cpu);
        let mut own = gic.redistributor(cpu).expect("it is one of them");
        own.configure_default_settings();
        for (number, group) in [
            (WAKE, Group::Group1NS),
            (STOP, Group::Secure(SecureIntGroup::Group0)),
            (TIMER, Group::Group1NS),
        ] {
            let done = own
                .set_group(number, group)
                .and_then(|()| own.set_interrupt_priority(number, PRIORITY))
                .and_then(|()| own.enable_interrupt(number, true));
            done.unwrap_or_else(|error| panic!("the GIC: {error}"));
        }
    }
    GicCpuInterface::set_priority_mask(0xff);
    GicCpuInterface::enable_group0(true);
    GicCpuInterface::enable_group1(true);
    // Relaxed: a CPU that fails before it sees this stops no other.
    STARTED.store(true, Ordering::Relaxed);
    // SAFETY: the handler of FIQs does not return.
    unsafe { asm!("msr daifclr, #1", options(nostack, preserves_flags)) };
}

/// Handles all IRQs that are due. Interrupts are off.
pub(super) fn handle() {
    while let Some(number) = GicCpuInterface::get_and_acknowledge_interrupt(InterruptGroup::Group1)
    {
        if number == TIMER {
            set_timer();
        }
        GicCpuInterface::end_interrupt(number, InterruptGroup::Group1);
        if number == TIMER || number == WAKE {
            smp::tick();
        }
    }
}

/// Starts this CPU's timer, which interrupts it `hertz` times a second.
pub(crate) fn start_timer(hertz: u64) {
    area::here().own.period.set((clock::hertz() / hertz).max(1));
    set_timer();
    let_timer_interrupt(true);
}

/// The next interrupt is due in a period from now.
fn set_timer() {
    let next = clock::counter() + area::here().own.period.get();
    // SAFETY: the interrupt has a handler.
    unsafe { set_register!("cntv_cval_el0", next) };
}

/// Enables or disables this CPU's timer interrupt. The timer counts in both cases.
pub(crate) fn let_timer_interrupt(whether: bool) {
    // Bit 0: on. Bit 1: masked.
    let control: u64 = if whether { 1 } else { 3 };
    // SAFETY: the interrupt has a handler.
    unsafe {
        set_register!("cntv_ctl_el0", control);
        asm!("isb", options(nostack, preserves_flags));
    }
}

/// Wakes each of these CPUs: it looks for a job, and ticks.
pub(crate) fn wake(cpus: &CpuSet) {
    send(cpus, WAKE, SgiTargetGroup::CurrentGroup1);
}

/// As [`wake`], for this CPU. The interrupt arrives when interrupts are on again.
pub(crate) fn wake_self() {
    wake(&CpuSet::only(area::cpu()));
}

fn send(cpus: &CpuSet, number: IntId, group: SgiTargetGroup) {
    // Stores before it are visible to CPUs that it interrupts. SAFETY: barriers.
    unsafe { asm!("dsb ishst", options(nostack, preserves_flags)) };
    for area in cpus.iter().filter_map(|cpu| area::areas().get(cpu.index())) {
        let [affinity0, affinity1, affinity2, _, affinity3, ..] = area.own.id.to_le_bytes();
        let target_list = 1 << (affinity0 & 15);
        let target = SgiTarget::List { affinity3, affinity2, affinity1, target_list };
        let sent = GicCpuInterface::send_sgi(number, target, group);
        debug_assert!(sent.is_ok(), "it is such an interrupt");
    }
    // SAFETY: as above.
    unsafe { asm!("isb", options(nostack, preserves_flags)) };
}

/// Stops these CPUs, whatever they are doing. They have handlers, because they have finished
/// starting. Returns false if this CPU has no interrupts yet.
pub(crate) fn stop(cpus: &CpuSet) -> bool {
    let started = STARTED.load(Ordering::Relaxed);
    if started {
        send(cpus, STOP, SgiTargetGroup::Group0);
    }
    started
}
