//! This CPU's area, and its interrupt-free sections.
//!
//! `TPIDR_EL1` points to the area. Code of the kernel stays on its CPU. So several instructions may
//! read and write the area, as long as interrupts are off while the depth of sections changes.
//!
//! Sections keep IRQs off. FIQs stay on: one of them stops a CPU when another has failed
//! (`irqchip::stop`), and uses nothing that sections protect.

use crate::cpu::area::Area;
use core::arch::asm;
use core::cell::Cell;
use core::mem::offset_of;

/// The affinity of a CPU, as in `MPIDR_EL1`.
pub(crate) type HardwareId = u64;

/// The part of an area that only this architecture has.
pub(crate) struct Own {
    pub(crate) id: HardwareId,
    /// The end of the stack for faults after an overflow of the usual one.
    pub(crate) emergency: Cell<u64>,
    /// Counts of the timer between two ticks.
    pub(crate) period: Cell<u64>,
}

impl Own {
    pub(crate) const fn new(id: HardwareId) -> Own {
        Own { id, emergency: Cell::new(0), period: Cell::new(0) }
    }
}

/// Makes an area that of the calling CPU.
///
/// # Safety
/// As for [`Area::take`].
pub(crate) unsafe fn take(area: &'static Area) {
    let at = (&raw const *area).expose_provenance() as u64;
    // SAFETY: only this module uses the register.
    unsafe { set_register!("tpidr_el1", at) };
}

/// Continues with a function on another stack, which ends at `end`.
///
/// # Safety
/// The stack is mapped and unused, and nothing on the old stack is needed any more.
pub(crate) unsafe fn continue_on(end: u64, next: extern "C" fn() -> !) -> ! {
    // SAFETY: by the caller's promise.
    unsafe {
        asm!(
            "mov sp, {end}", "mov x29, xzr", "mov x30, xzr", "br {next}",
            end = in(reg) end, next = in(reg) next, options(noreturn)
        )
    }
}

/// The frame pointer of the caller.
#[inline(always)]
pub(crate) fn frame_pointer() -> u64 {
    let frame: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, x29", out(reg) frame, options(nomem, nostack, preserves_flags)) };
    frame
}

/// Turns interrupts off for good, FIQs included: this CPU has failed.
pub(crate) fn disable_interrupts() {
    // SAFETY: nothing needs an interrupt of this CPU any more.
    unsafe { asm!("msr daifset, #3", options(nostack, preserves_flags)) };
}

/// Sleeps until an interrupt comes, also one that is masked.
pub(crate) fn halt() {
    // SAFETY: it has no other effect.
    unsafe { asm!("wfi", options(nostack, preserves_flags)) };
}

/// The number of this CPU. Costs two loads, one of them of a system register.
#[inline(always)]
pub(crate) fn index() -> usize {
    let index: usize;
    // SAFETY: the register points to this CPU's area.
    unsafe {
        asm!(
            "mrs {at}, tpidr_el1", "ldr {at}, [{at}, {index}]",
            at = out(reg) index, index = const offset_of!(Area, index),
            options(nostack, preserves_flags, readonly)
        );
    }
    index
}

/// Begins an interrupt-free section: five instructions. No later access moves before them.
#[inline(always)]
pub(crate) fn irq_enter() {
    // SAFETY: the depth belongs to this CPU, and interrupts are off while it changes. To the
    // compiler the assembly reads and writes all memory, so no access moves across it.
    unsafe {
        asm!(
            "msr daifset, #2",
            "mrs {at}, tpidr_el1", "ldr {depth:w}, [{at}, {offset}]",
            "add {depth:w}, {depth:w}, #1", "str {depth:w}, [{at}, {offset}]",
            at = out(reg) _, depth = out(reg) _, offset = const offset_of!(Area, depth),
            options(nostack, preserves_flags)
        );
    }
}

/// Ends a section: five instructions, and one more if it is the outermost.
///
/// # Safety
/// It matches an `irq_enter` of this CPU.
#[inline(always)]
pub(crate) unsafe fn irq_leave() {
    // SAFETY: as above. Interrupts were on before the outermost section: otherwise its depth was
    // not 0.
    unsafe {
        asm!(
            "mrs {at}, tpidr_el1", "ldr {depth:w}, [{at}, {offset}]",
            "sub {depth:w}, {depth:w}, #1", "str {depth:w}, [{at}, {offset}]",
            "cbnz {depth:w}, 2f", "msr daifclr, #2", "2:",
            at = out(reg) _, depth = out(reg) _, offset = const offset_of!(Area, depth),
            options(nostack, preserves_flags)
        );
    }
}

/// Begins a handler, in which the CPU has turned interrupts off.
///
/// # Safety
/// Call it in a handler that calls [`handler_ends`].
pub(crate) unsafe fn handler_begins() {
    let depth = &crate::cpu::area::here().depth;
    depth.set(depth.get() + 1);
}

/// Ends a handler. Its return restores the interrupt mask.
///
/// # Safety
/// It matches [`handler_begins`].
pub(crate) unsafe fn handler_ends() {
    let depth = &crate::cpu::area::here().depth;
    depth.set(depth.get() - 1);
}

/// Ends the only open section, and sleeps until an interrupt comes. A CPU that has work for this
/// one writes it first and then sends an interrupt. None can come between this CPU's look for work
/// and its sleep: a masked one ends the sleep.
///
/// # Safety
/// One section is open.
pub(crate) unsafe fn sleep() {
    // SAFETY: nothing is read between the sleep and the end of the section. The barrier completes
    // earlier accesses, as the manual advises.
    unsafe { asm!("dsb sy", "wfi", options(nostack, preserves_flags)) };
    // SAFETY: by the caller's promise.
    unsafe { irq_leave() };
}
