//! Signals for faults and exceptions of a program. It cannot block or ignore them: if it tries,
//! they end it.

use super::state::Trap;
use super::{Info, SI_KERNEL, SIGBUS, SIGFPE, SIGILL, SIGKILL, SIGSEGV, SIGTRAP, bit};
use crate::lock::lock;
use crate::task::pid::Exit;
use crate::task::{Own, Thread};
use alloc::sync::Arc;
use core::arch::asm;
use mm::FaultError;

pub(crate) const SEGV_MAPERR: i32 = 1;
const SEGV_ACCERR: i32 = 2;
const BUS_ADRALN: i32 = 1;
pub(crate) const BUS_ADRERR: i32 = 2;
const BUS_MCEERR_AR: i32 = 4;
const ILL_ILLOPN: i32 = 2;
const FPE_INTDIV: i32 = 1;
const TRAP_BRKPT: i32 = 1;
const TRAP_TRACE: i32 = 2;

/// Sends a signal that the thread cannot ignore.
pub(crate) fn force(thread: &Arc<Thread>, own: &Own, number: u8, code: i32, address: u64) {
    {
        let shared = lock(&thread.process.signals);
        let mut signals = lock(&thread.signals);
        let mut actions = lock(&shared.actions);
        if signals.mask & bit(number) != 0 || actions.ignore_explicitly(number) {
            actions.reset(number);
        }
        drop(actions);
        signals.mask &= !bit(number);
        let (vector, error) = (own.registers.vector, own.registers.code);
        if vector < 32 {
            let address = if vector == 14 { address } else { signals.trap.address };
            signals.trap = Trap { vector, code: error, address };
        }
        // A standard signal is never refused.
        let _ = signals.pending.add(Info::fault(number, code, address));
    }
    thread.call_attention();
}

/// Sends the signal for an exception of the CPU.
pub(crate) fn force_for_vector(thread: &Arc<Thread>, own: &mut Own, vector: u64) {
    let rip = own.registers.rip;
    let (number, code, address) = match vector {
        0 => (SIGFPE, FPE_INTDIV, rip),
        1 => (SIGTRAP, debug_code(), rip),
        3 => (SIGTRAP, SI_KERNEL, 0),
        6 => (SIGILL, ILL_ILLOPN, rip),
        11 | 12 => (SIGBUS, SI_KERNEL, 0),
        16 | 19 => (SIGFPE, float_code(own, vector == 16), rip),
        17 => (SIGBUS, BUS_ADRALN, 0),
        _ => (SIGSEGV, SI_KERNEL, 0),
    };
    force(thread, own, number, code, address);
}

/// Sends the signal for a page that cannot be brought in.
pub(crate) fn force_for_fault(thread: &Arc<Thread>, own: &Own, error: FaultError, address: u64) {
    let (number, code) = match error {
        FaultError::Denied(..) => (SIGSEGV, SEGV_ACCERR),
        FaultError::Object(..) => (SIGBUS, BUS_ADRERR),
        FaultError::Poisoned(_) => (SIGBUS, BUS_MCEERR_AR),
        FaultError::OutOfMemory(_) | FaultError::GroupLimit => {
            return thread.end_process(Exit::Signal(SIGKILL));
        }
        _ => (SIGSEGV, SEGV_MAPERR),
    };
    force(thread, own, number, code, address);
}

/// The code of a debug exception: that of a step, or of the instruction `int1`.
fn debug_code() -> i32 {
    /// The bit of DR6 for a step.
    const STEP: u64 = 1 << 14;
    /// DR6 without a cause.
    const NONE: u64 = 0xffff_0ff0;
    let causes: u64;
    // SAFETY: the kernel owns the debug registers. The CPU never clears this one.
    unsafe {
        asm!("mov {}, dr6", out(reg) causes, options(nomem, nostack, preserves_flags));
        asm!("mov dr6, {}", in(reg) NONE, options(nomem, nostack, preserves_flags));
    }
    if causes & STEP != 0 { TRAP_TRACE } else { TRAP_BRKPT }
}

/// The code of a floating-point exception: the first that is raised and not masked. `x87`: of the
/// x87 unit, else of the vector unit.
fn float_code(own: &mut Own, x87: bool) -> i32 {
    own.xstate.save();
    let bytes = own.xstate.as_bytes();
    let word = |at: usize| u32::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let raised = if x87 { word(2) & !word(0) } else { word(24) & !(word(24) >> 7) };
    // Invalid, division by zero, overflow, underflow or denormal, inexact.
    const CODES: [(u32, i32); 5] = [(1, 7), (4, 3), (8, 4), (0x12, 5), (0x20, 6)];
    CODES.iter().find(|(bits, _)| raised & bits != 0).map_or(SI_KERNEL, |(_, code)| *code)
}
