//! This CPU's area, and its interrupt-free sections.
//!
//! GS points to the area. The CPU's number and the depth of its sections are read and written by
//! single instructions relative to GS. So they are right wherever the code runs, and an interrupt
//! between two of them leaves them as it found them.
//!
//! A program runs within a section of the loop that has entered it, with interrupts on, and its GS
//! register is its own. Each way into the kernel exchanges the two (`swapgs`), and turns interrupts
//! off.

use super::tables::CpuTables;
use crate::cpu::area::Area;
use core::arch::asm;
use core::cell::{Cell, UnsafeCell};
use core::mem::offset_of;
use x2apic::lapic::LocalApic;

/// The destination of IPIs to a CPU (`apic::destination`).
pub(crate) type HardwareId = u32;

/// The part of an area that only this architecture has.
pub(crate) struct Own {
    pub(crate) id: HardwareId,
    /// The stack pointer of the loop that has entered a program (`user::enter`).
    pub(crate) kernel_stack: Cell<u64>,
    /// The end of the registers of the thread that runs: where a system call pushes.
    pub(crate) registers_end: Cell<u64>,
    /// The program's stack pointer, for a moment.
    pub(crate) user_stack: Cell<u64>,
    /// The address of the TSS's stack pointer for interrupts of programs.
    pub(crate) interrupt_stack: Cell<u64>,
    pub(crate) tables: UnsafeCell<CpuTables>,
    pub(crate) lapic: UnsafeCell<Option<LocalApic>>,
}

impl Own {
    pub(crate) const fn new(id: HardwareId) -> Own {
        Own {
            id,
            kernel_stack: Cell::new(0),
            registers_end: Cell::new(0),
            user_stack: Cell::new(0),
            interrupt_stack: Cell::new(0),
            tables: UnsafeCell::new(CpuTables::new()),
            lapic: UnsafeCell::new(None),
        }
    }
}

/// Makes an area that of the calling CPU.
///
/// # Safety
/// As for [`Area::take`].
pub(crate) unsafe fn take(area: &'static Area) {
    let base = x86_64::VirtAddr::from_ptr(area);
    x86_64::registers::model_specific::GsBase::write(base);
}

/// Continues with a function on another stack, which ends at `end`.
///
/// # Safety
/// The stack is mapped and unused, and nothing on the old stack is needed any more.
pub(crate) unsafe fn continue_on(end: u64, next: extern "C" fn() -> !) -> ! {
    // SAFETY: by the caller's promise.
    unsafe {
        asm!(
            "mov rsp, {end}", "xor ebp, ebp", "push rbp", "jmp {next}",
            end = in(reg) end, next = in(reg) next, options(noreturn)
        )
    }
}

/// The frame pointer of the caller.
#[inline(always)]
pub(crate) fn frame_pointer() -> u64 {
    let frame: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, rbp", out(reg) frame, options(nomem, nostack, preserves_flags)) };
    frame
}

/// Turns interrupts off for good: this CPU has failed.
pub(crate) fn disable_interrupts() {
    x86_64::instructions::interrupts::disable();
}

/// Sleeps until an interrupt or an NMI comes.
pub(crate) fn halt() {
    x86_64::instructions::hlt();
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
