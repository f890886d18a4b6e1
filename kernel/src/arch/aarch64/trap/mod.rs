//! Interrupts and faults.

mod entry;
pub(crate) mod probe;
mod registers;

use super::irqchip;
use crate::backtrace::Backtrace;
use crate::cpu::area::{self, Area};
use crate::{fail, smp};
use alloc::vec;
use core::arch::asm;
use core::fmt;
use registers::{FIQ, INSTRUCTION_ABORT, IRQ, Registers, SYNCHRONOUS};

/// The bytes of an emergency stack.
const EMERGENCY: usize = 32 << 10;

/// Makes this CPU use the handlers.
pub(crate) fn start() {
    // SAFETY: the vectors follow the manual.
    unsafe {
        set_register!("vbar_el1", entry::vectors());
        asm!("isb", options(nostack, preserves_flags));
    }
}

/// Gives this CPU the handlers, and the stack that they need after an overflow.
///
/// # Safety
/// Call it once, on the CPU of this area, when the heap works.
pub(crate) unsafe fn start_here(area: &'static Area) {
    let stack = vec![0_u128; EMERGENCY / 16].leak();
    area.own.emergency.set(stack.as_ptr_range().end.expose_provenance() as u64);
    start();
}

/// Handles an interrupt or a fault, with interrupts off.
fn handle(registers: &mut Registers) {
    // SAFETY: this is a handler, and `handler_ends` is below.
    unsafe { area::handler_begins() };
    match registers.kind {
        IRQ => irqchip::handle(),
        FIQ => fail::stopped(),
        _ => {
            let is_over =
                registers.is_abort() && (is_spurious(registers) || probe::recover(registers));
            if !is_over {
                let back = Backtrace::from(registers.elr, registers.x[29]);
                fail::fault(&Fault(registers), back)
            }
        }
    }
    // SAFETY: matches `handler_begins` above.
    unsafe { area::handler_ends() };
}

/// Whether the address is mapped now. Without FEAT_ETS2, a CPU may have read an absent entry before
/// another CPU stored the page there, and use it after that CPU has told it of the page. The
/// exception has synchronized this CPU, so the access is made again.
fn is_spurious(registers: &Registers) -> bool {
    if probe::kind(registers.esr, registers.far) != machine::FaultKind::NotPresent {
        return false;
    }
    let result: u64;
    // SAFETY: it asks how the hardware translates an address. Only these lines use the register.
    unsafe {
        asm!(
            "at s1e1r, {at}", "isb", "mrs {result}, par_el1",
            at = in(reg) registers.far, result = out(reg) result,
            options(nostack, preserves_flags)
        );
    }
    // Bit 0: no translation.
    result & 1 == 0
}

/// The description of a fault.
struct Fault<'a>(&'a Registers);

impl fmt::Display for Fault<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault(of) = self;
        if of.is_abort() {
            let what = match of.class() {
                INSTRUCTION_ABORT => "execution of",
                _ if of.esr & 1 << 6 != 0 => "write to",
                _ => "read of",
            };
            let why = match probe::kind(of.esr, of.far) {
                machine::FaultKind::Protection => "it is not allowed",
                _ => "nothing is mapped there",
            };
            write!(f, "page fault: {what} {:#x}: {why}", of.far)?;
            if let Some(cpu) = smp::stack_guard_of(of.far) {
                write!(f, " (the page below the stack of cpu{cpu}: it has overflowed)")?;
            }
        } else {
            let name = match (of.kind, of.class()) {
                (SYNCHRONOUS, 0x22) => "misaligned instruction",
                (SYNCHRONOUS, 0x26) => "misaligned stack",
                (SYNCHRONOUS, 0x3c) => "breakpoint",
                (SYNCHRONOUS, _) => "invalid instruction",
                (3, _) => "system error",
                _ => "unexpected exception",
            };
            f.write_str(name)?;
        }
        writeln!(f, " (vector {}, ESR {:#x})", of.kind, of.esr)?;
        write!(f, "  pc  {:016x}  sp  {:016x}  spsr {:x}", of.elr, of.sp, of.spsr)?;
        for (number, value) in of.x.iter().enumerate() {
            let begin = if number % 4 == 0 { "\n" } else { "" };
            write!(f, "{begin}  x{number:<2} {value:016x}")?;
        }
        Ok(())
    }
}
