//! Page faults: a program's, which bring in its pages, and a probe's. A probe is an access of
//! `Translated`: after a fault, the handler continues at its end.

use crate::spaces;
use crate::tiny::Tiny;
use core::{arch::global_asm, ptr};
use machine::{Fault, FaultKind, Translated, VirtAddr};
use spin::Once;
use x86_64::{registers::control::Cr2, structures::idt::InterruptDescriptorTable};

/// The interrupted code, as `trap_common` saves it. Rust keeps the other registers.
#[repr(C)]
struct Registers {
    others: [u64; 8],
    rax: u64,
    vector: u64,
    code: u64,
    rip: u64,
}

global_asm!(
    ".global trap_general, trap_page_fault, probe, probe_end",
    "trap_general: push 13; jmp trap_common",
    "trap_page_fault: push 14",
    "trap_common: .irp name, rax, rdx, rcx, rsi, rdi, r8, r9, r10, r11; push \\name; .endr",
    "mov rdi, rsp; cld; call {trap}",
    ".irp name, r11, r10, r9, r8, rdi, rsi, rcx, rdx, rax; pop \\name; .endr",
    "add rsp, 16; iretq",
    // Copies words, and then single bytes. Returns 0, or the value that `trap` puts into rax.
    "probe: xor eax, eax; mov rcx, rdx; shr rcx, 3; rep movsq; mov ecx, edx; and ecx, 7; rep movsb",
    "probe_end: ret",
    trap = sym trap,
);

unsafe extern "C" {
    fn trap_general();
    fn trap_page_fault();
    fn probe(to: *mut u8, from: *const u8, bytes: usize) -> u64;
    fn probe_end();
}

/// Installs the handlers.
pub fn start() {
    static IDT: Once<InterruptDescriptorTable> = Once::new();
    let at = |handler: unsafe extern "C" fn()| x86_64::VirtAddr::from_ptr(handler as *const ());
    let idt = IDT.call_once(|| {
        let mut idt = InterruptDescriptorTable::new();
        // SAFETY: they handle these vectors. A page fault leaves interrupts as they are.
        unsafe {
            idt.general_protection_fault.set_handler_addr(at(trap_general));
            idt.page_fault.set_handler_addr(at(trap_page_fault)).disable_interrupts(false);
        }
        idt
    });
    idt.load();
}

extern "C" fn trap(registers: &mut Registers) {
    let (vector, code, rip) = (registers.vector, registers.code, registers.rip);
    let probe = (probe as *const ()).addr() as u64..(probe_end as *const ()).addr() as u64;
    let at = Cr2::read_raw();
    if vector == 14 && spaces::handle_fault(VirtAddr::new(at), code) {
        return;
    }
    assert!(probe.contains(&rip), "exception {vector} at {rip:#x}: code {code}, address {at:#x}");
    (registers.rax, registers.rip) = (vector << 1 | code & 1, probe.end);
}

/// Copies between memory of the kernel and `at`.
///
/// # Safety
/// As for the method of `Translated` that calls it.
unsafe fn access(at: VirtAddr, own: *mut u8, len: usize, write: bool) -> Result<(), Fault> {
    let there = ptr::with_exposed_provenance_mut(at.get() as usize);
    let (to, from) = if write { (there, own) } else { (own, there) };
    // SAFETY: passed on. It returns also after a fault.
    let (kind, address) = match unsafe { probe(to, from, len) } {
        0 => return Ok(()),
        28 => (FaultKind::NotPresent, VirtAddr::new(Cr2::read_raw())),
        29 => (FaultKind::Protection, VirtAddr::new(Cr2::read_raw())),
        _ => (FaultKind::NotCanonical, at),
    };
    Err(Fault { address, write, kind })
}

/// As `access`, of a word, which is one access only at a multiple of its size.
///
/// # Safety
/// As there.
unsafe fn word(at: VirtAddr, value: &mut u64, write: bool) -> Result<(), Fault> {
    if !at.get().is_multiple_of(8) {
        return Err(Fault { address: at, write, kind: FaultKind::Misaligned });
    }
    // SAFETY: passed on.
    unsafe { access(at, ptr::from_mut(value).cast(), 8, write) }
}

impl Translated for Tiny {
    unsafe fn read(&self, at: VirtAddr, into: &mut [u8]) -> Result<(), Fault> {
        // SAFETY: passed on.
        unsafe { access(at, into.as_mut_ptr(), into.len(), false) }
    }
    unsafe fn write(&self, at: VirtAddr, from: &[u8]) -> Result<(), Fault> {
        // SAFETY: passed on. It reads `from`.
        unsafe { access(at, from.as_ptr().cast_mut(), from.len(), true) }
    }
    unsafe fn load(&self, at: VirtAddr) -> Result<u64, Fault> {
        let mut value = 0;
        // SAFETY: passed on.
        unsafe { word(at, &mut value, false) }.map(|()| value)
    }
    unsafe fn store(&self, at: VirtAddr, mut value: u64) -> Result<(), Fault> {
        // SAFETY: passed on.
        unsafe { word(at, &mut value, true) }
    }
}

/// Reads the word at an address by the MMU.
///
/// # Safety
/// As for `Translated::load`.
pub unsafe fn load(at: u64) -> Result<u64, FaultKind> {
    // SAFETY: passed on.
    unsafe { Tiny.load(VirtAddr::new(at)) }.map_err(|fault| fault.kind)
}

/// Writes the word at an address by the MMU.
///
/// # Safety
/// As for `Translated::store`.
pub unsafe fn store(at: u64, value: u64) -> Result<(), FaultKind> {
    // SAFETY: passed on.
    unsafe { Tiny.store(VirtAddr::new(at), value) }.map_err(|fault| fault.kind)
}
