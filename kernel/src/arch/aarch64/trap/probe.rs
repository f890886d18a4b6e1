//! Accesses that may fault and report it.
//!
//! Each is an instruction at a known address. When it faults, the handler records the cause and
//! continues behind it. A fault at any other address is fatal.

use super::registers::{INSTRUCTION_ABORT, Registers};
use crate::arch::place::Format;
use core::arch::global_asm;
use machine::{FaultKind, VirtAddr};
use paging::Geometry as _;

/// The outcome of an access.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Outcome {
    /// The word that was read, or the number of bytes that were not copied.
    pub(crate) value: u64,
    /// 0, or the cause and [`FAULT`].
    fault: u64,
}

const FAULT: u64 = 1 << 32;
/// The causes.
const KINDS: [FaultKind; 4] =
    [FaultKind::NotPresent, FaultKind::Protection, FaultKind::Malformed, FaultKind::NotCanonical];

impl Outcome {
    /// The kind of the fault, if it faulted.
    pub(crate) fn fault(self) -> Option<FaultKind> {
        (self.fault != 0).then(|| KINDS[(self.fault & 3) as usize])
    }
}

/// The kind of a fault, by its syndrome and its address.
pub(super) fn kind(esr: u64, far: u64) -> FaultKind {
    // The fault status, without the level.
    match esr >> 2 & 15 {
        0 => FaultKind::Malformed,
        3 => FaultKind::Protection,
        _ if !Format::is_canonical(VirtAddr::new(far)) => FaultKind::NotCanonical,
        _ => FaultKind::NotPresent,
    }
}

global_asm!(
    r#"
    .text
    // Reads a word.
    .globl probe_load
probe_load:
    mov x1, xzr
probe_load_at:
    ldr x0, [x0]
probe_load_end:
    ret

    // Writes a word.
    .globl probe_store
probe_store:
    mov x2, x1
    mov x1, xzr
probe_store_at:
    str x2, [x0]
probe_store_end:
    ret

    // Copies bytes, and returns the number of those that are left.
    .globl probe_copy
probe_copy:
    mov x3, x1
    mov x1, xzr
2:  cbz x2, probe_copy_end
probe_copy_from:
    ldrb w4, [x3]
probe_copy_to:
    strb w4, [x0]
    add x3, x3, #1
    add x0, x0, #1
    sub x2, x2, #1
    b 2b
probe_copy_end:
    mov x0, x2
    ret

    // Calls a function that returns at once. If its first instruction cannot be fetched, the
    // handler goes on after the call, as if it had returned.
    .globl probe_execute
probe_execute:
    stp x29, x30, [sp, #-16]!
    mov x1, xzr
    blr x0
probe_execute_end:
    ldp x29, x30, [sp], #16
    ret
    .globl probe_returns
probe_returns:
    ret

    // For each probe: the instruction that may fault, and the address at which it continues.
    .section .rodata
    .balign 8
    .globl probes
probes:
    .quad probe_load_at, probe_load_end
    .quad probe_store_at, probe_store_end
    .quad probe_copy_from, probe_copy_end
    .quad probe_copy_to, probe_copy_end
    .globl probe_executed
probe_executed:
    .quad probe_execute_end
    .text
    "#
);

unsafe extern "C" {
    /// Reads the word at `at`. The caller may read it.
    #[link_name = "probe_load"]
    pub(crate) fn load(at: u64) -> Outcome;
    /// Writes `value` at `at`. The caller may write there.
    #[link_name = "probe_store"]
    pub(crate) fn store(at: u64, value: u64) -> Outcome;
    /// Copies `count` bytes, and returns how many it did not copy. The caller may read and write
    /// them.
    #[link_name = "probe_copy"]
    pub(crate) fn copy(to: u64, from: u64, count: u64) -> Outcome;
    /// Executes the code at `at`, which returns at once.
    #[link_name = "probe_execute"]
    pub(crate) fn execute(at: u64) -> Outcome;
}

/// The address of a return instruction.
pub(crate) fn returns() -> u64 {
    unsafe extern "C" {
        static probe_returns: u8;
    }
    (&raw const probe_returns).addr() as u64
}

unsafe extern "C" {
    #[link_name = "probes"]
    static PROBES: [[u64; 2]; 4];
    #[link_name = "probe_executed"]
    static EXECUTED: u64;
}

/// If the fault is that of such an access, continues behind it and returns true.
pub(super) fn recover(registers: &mut Registers) -> bool {
    // SAFETY: constants, in assembly.
    let (probes, executed) = unsafe { (&PROBES, EXECUTED) };
    let kind = kind(registers.esr, registers.far);
    if registers.class() == INSTRUCTION_ABORT {
        if registers.x[30] != executed {
            return false;
        }
        registers.elr = executed;
    } else if let Some([_, end]) = probes.iter().find(|[at, _]| *at == registers.elr) {
        registers.elr = *end;
    } else {
        return false;
    }
    let kind = KINDS.iter().position(|known| *known == kind).unwrap_or(0);
    registers.x[1] = FAULT | kind as u64;
    true
}
