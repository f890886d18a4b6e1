//! Accesses that may fault and report it.
//!
//! Each is an instruction at a known address, or two of them. When it faults, the handler records
//! the cause and continues behind it. A fault at any other address is fatal.

use super::registers::Registers;
use core::arch::global_asm;
use machine::FaultKind;

/// The outcome of an access.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Outcome {
    /// The word that was read, or the number of bytes that were not copied.
    pub(crate) value: u64,
    /// 0, or the CPU's error code and [`FAULT`].
    fault: u64,
}

const FAULT: u64 = 1 << 32;
/// The address is not canonical, so the CPU made no access.
const GENERAL: u64 = 1 << 33;
const PRESENT: u64 = 1;
const RESERVED: u64 = 1 << 3;
const FETCH: u64 = 1 << 4;

impl Outcome {
    /// The kind of the fault, if it faulted.
    pub(crate) fn fault(self) -> Option<FaultKind> {
        if self.fault == 0 {
            return None;
        }
        Some(if self.fault & GENERAL != 0 {
            FaultKind::NotCanonical
        } else if self.fault & RESERVED != 0 {
            FaultKind::Malformed
        } else if self.fault & PRESENT != 0 {
            FaultKind::Protection
        } else {
            FaultKind::NotPresent
        })
    }
}

global_asm!(
    r#"
    .text
    # Reads a word.
    .globl probe_load
probe_load:
    xor edx, edx
probe_load_at:
    mov rax, [rdi]
probe_load_end:
    ret

    # Writes a word.
    .globl probe_store
probe_store:
    xor edx, edx
probe_store_at:
    mov [rdi], rsi
probe_store_end:
    ret

    # Compares and exchanges a 32-bit word, and returns what was there.
    .globl probe_exchange
probe_exchange:
    mov eax, esi
    mov ecx, edx
    xor edx, edx
probe_exchange_at:
    lock cmpxchg [rdi], ecx
probe_exchange_end:
    ret

    # Copies bytes, and returns the number of those that are left. Words first: a processor without
    # fast strings takes as long for a byte. A word that lies in two pages is copied byte by byte
    # after a fault, so that the first of them gets its bytes.
    .globl probe_copy
probe_copy:
    mov rcx, rdx
    mov r8d, edx
    and r8d, 7
    shr rcx, 3
    xor edx, edx
probe_copy_words_at:
    rep movsq
    mov ecx, r8d
probe_copy_at:
    rep movsb
probe_copy_end:
    mov rax, rcx
    ret
probe_copy_words_end:
    lea rcx, [rcx * 8 + r8]
    mov eax, edi
    and eax, 4095
    mov r8d, esi
    and r8d, 4095
    cmp eax, 4088
    ja probe_copy_bytes
    cmp r8d, 4088
    jbe probe_copy_end
probe_copy_bytes:
    xor edx, edx
    jmp probe_copy_at

    # Calls a function that returns at once. If its first instruction cannot be fetched, the handler
    # goes on after the call, as if it had returned.
    .globl probe_execute
probe_execute:
    xor edx, edx
    call rdi
probe_execute_end:
    ret
    .globl probe_returns
probe_returns:
    ret

    # For each probe: the instruction that may fault, and the address at which it continues.
    .section .rodata
    .balign 8
    .globl probes
probes:
    .quad probe_load_at, probe_load_end
    .quad probe_store_at, probe_store_end
    .quad probe_copy_words_at, probe_copy_words_end
    .quad probe_copy_at, probe_copy_end
    .quad probe_exchange_at, probe_exchange_end
    .globl probe_executed
probe_executed:
    .quad probe_execute_end
    .text
    "#
);

unsafe extern "sysv64" {
    /// Reads the word at `at`. The caller may read it.
    #[link_name = "probe_load"]
    pub(crate) fn load(at: u64) -> Outcome;
    /// Writes `value` at `at`. The caller may write there.
    #[link_name = "probe_store"]
    pub(crate) fn store(at: u64, value: u64) -> Outcome;
    /// Writes `new` at `at` if `old` is there, atomically, and returns the value before. The caller
    /// may write there.
    #[link_name = "probe_exchange"]
    pub(crate) fn exchange(at: u64, old: u32, new: u32) -> Outcome;
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
    static PROBES: [[u64; 2]; 5];
    #[link_name = "probe_executed"]
    static EXECUTED: u64;
}

/// If the fault is that of such an access, continues behind it and returns true.
pub(crate) fn recover(registers: &mut Registers, general: bool) -> bool {
    // SAFETY: constants, in assembly.
    let (probes, executed) = unsafe { (&PROBES, EXECUTED) };
    if let Some([_, end]) = probes.iter().find(|[at, _]| *at == registers.rip) {
        registers.rip = *end;
    } else if !general && registers.code & FETCH != 0 && registers.top() == executed {
        registers.rip = executed;
        registers.rsp += 8;
    } else {
        return false;
    }
    registers.rdx = FAULT | if general { GENERAL } else { registers.code & 0xff };
    true
}
