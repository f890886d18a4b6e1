//! Interrupts and faults.

mod entry;
mod idt;
pub(crate) mod probe;
pub(crate) mod registers;
pub(crate) mod vector;

pub(crate) use registers::Registers;

use super::{apic, shootdown};
use crate::backtrace::Backtrace;
use crate::cpu::area::{self, Area};
use crate::{fail, smp};
use core::fmt;
use x86_64::registers::control::Cr2;

const NAMES: [&str; 22] = [
    "division by zero",
    "debug",
    "non-maskable interrupt",
    "breakpoint",
    "overflow",
    "bound",
    "invalid instruction",
    "no coprocessor",
    "double fault",
    "",
    "invalid TSS",
    "no such segment",
    "stack segment",
    "general protection fault",
    "page fault",
    "",
    "x87",
    "misaligned access",
    "machine check",
    "SIMD",
    "virtualization",
    "control protection",
];

/// Makes this CPU use the handlers, on the current stack.
pub(crate) fn start() {
    idt::load(false);
}

/// Gives this CPU the tables and stacks that its handlers need.
///
/// # Safety
/// Call it once, on the CPU of this area, when the heap works.
pub(crate) unsafe fn start_here(area: &'static Area) {
    // SAFETY: the tables belong to this CPU, and nothing uses them yet.
    let interrupt_stack = unsafe { (*area.own.tables.get()).load() };
    area.own.interrupt_stack.set(interrupt_stack);
    idt::load(true);
}

/// Handles an interrupt or a fault of the kernel, with interrupts off.
fn handle(registers: &mut Registers) {
    // SAFETY: this is a handler, and `handler_ends` is below.
    unsafe { area::handler_begins() };
    match registers.vector as u8 {
        14 if probe::recover(registers, false) => {}
        13 if probe::recover(registers, true) => {}
        // An NMI stops all CPUs.
        2 => fail::stopped(),
        vector @ ..32 => fault(vector, registers),
        vector => interrupt(vector),
    }
    // SAFETY: matches `handler_begins` above.
    unsafe { area::handler_ends() };
}

/// Handles an interrupt, of the kernel or of a program. Interrupts are off.
pub(crate) fn interrupt(vector: u8) {
    match vector {
        vector::TIMER | vector::WAKE => {
            apic::end_of_interrupt();
            smp::tick();
        }
        vector::FLUSH => {
            apic::end_of_interrupt();
            shootdown::poll();
        }
        vector::APIC_ERROR => panic!("the local APIC reports an error: {:?}", apic::errors()),
        // A spurious interrupt, or one of the unused PIC: there is nothing to do.
        _ => {}
    }
}

/// An unexpected fault.
fn fault(vector: u8, registers: &Registers) -> ! {
    // A page fault at the end of a stack becomes a double fault.
    let address = matches!(vector, 8 | 14).then(Cr2::read_raw);
    fail::fault(
        &Fault { vector, registers, address },
        Backtrace::from(registers.rip, registers.rbp),
    )
}

/// The description of a fault.
struct Fault<'a> {
    vector: u8,
    registers: &'a Registers,
    address: Option<u64>,
}

impl fmt::Display for Fault<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = self.registers;
        let name = NAMES.get(usize::from(self.vector)).copied().unwrap_or("unknown");
        write!(f, "{name}")?;
        if let Some(address) = self.address {
            // The error code of a double fault is always 0, so it does not describe the access.
            let what = if self.vector == 8 {
                "after an access to"
            } else if of.code & 2 != 0 {
                "write to"
            } else if of.code & 16 != 0 {
                "execution of"
            } else {
                "read of"
            };
            write!(f, ": {what} {address:#x}")?;
            if self.vector != 8 {
                let allowed = of.code & 1 != 0;
                let why = if allowed { "it is not allowed" } else { "nothing is mapped there" };
                write!(f, ": {why}")?;
            }
            if let Some(cpu) = smp::stack_guard_of(address) {
                write!(f, " (the page below the stack of cpu{cpu}: it has overflowed)")?;
            }
        }
        writeln!(f, " (vector {}, code {:#x})", self.vector, of.code)?;
        writeln!(
            f,
            "  rip {:016x}  cs {:x}  flags {:x}  rsp {:016x}  ss {:x}",
            of.rip, of.cs, of.flags, of.rsp, of.ss
        )?;
        writeln!(
            f,
            "  rax {:016x}  rbx {:016x}  rcx {:016x}  rdx {:016x}",
            of.rax, of.rbx, of.rcx, of.rdx
        )?;
        writeln!(
            f,
            "  rsi {:016x}  rdi {:016x}  rbp {:016x}  r8  {:016x}",
            of.rsi, of.rdi, of.rbp, of.r8
        )?;
        writeln!(
            f,
            "  r9  {:016x}  r10 {:016x}  r11 {:016x}  r12 {:016x}",
            of.r9, of.r10, of.r11, of.r12
        )?;
        write!(f, "  r13 {:016x}  r14 {:016x}  r15 {:016x}", of.r13, of.r14, of.r15)
    }
}
