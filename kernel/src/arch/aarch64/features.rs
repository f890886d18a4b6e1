//! Registers of the CPU that protect the kernel from its own errors.

use core::arch::asm;
use paging::MAIR;

/// SCTLR_EL1: the bits that are always set; the MMU, caches for data and for instructions, stacks
/// that are aligned. SPAN is clear: a handler begins with PAN.
pub(super) const SCTLR: u64 = 0x3050_0800 | 1 << 0 | 1 << 2 | 1 << 12 | 1 << 3;
/// Clear in SCTLR_EL1: see there.
const SPAN: u64 = 1 << 23;

/// TCR_EL1 without the fields that depend on the CPU: halves of 47 bits, granules of 4 KiB, walks
/// through write-back caches of the inner shareable domain; hardware sets the access flag and the
/// dirty state.
pub(super) const TCR: u64 = {
    let half = 17 | 1 << 8 | 1 << 10 | 3 << 12;
    // TG1 has another encoding of 4 KiB than TG0.
    half | half << 16 | 2 << 30 | 1 << 39 | 1 << 40
};

/// Sets on this CPU: tags of 16 bits where it has them, and PAN. The boot code has set the rest.
///
/// # Safety
/// Call it once on each CPU, before that CPU uses our tables.
pub(crate) unsafe fn start() {
    assert!(
        read_register!("id_aa64mmfr1_el1") & 15 >= 2,
        "this CPU does not set the access flag and the dirty state: start QEMU with -cpu max"
    );
    let tcr = read_register!("tcr_el1") | u64::from(has_long_tags()) << 36;
    // SAFETY: no tag has been used yet.
    unsafe {
        set_register!("tcr_el1", tcr);
        asm!("isb", options(nostack, preserves_flags));
    }
    if guards_programs() {
        let_access(false);
    }
}

/// Whether tags have 16 bits, and not 8.
pub(super) fn has_long_tags() -> bool {
    read_register!("id_aa64mmfr0_el1") >> 4 & 15 == 2
}

/// The registers that the boot code and [`start`] write, on this CPU.
pub(crate) fn registers() -> [u64; 4] {
    // PAN of this CPU's state, which older CPUs do not have.
    let pan = if guards_programs() { read_register!("s3_0_c4_c2_3") >> 22 & 1 } else { 0 };
    [read_register!("sctlr_el1"), read_register!("tcr_el1"), read_register!("mair_el1"), pan]
}

/// Whether registers as [`registers`] returns them protect the kernel.
pub(crate) fn are_whole([sctlr, tcr, mair, pan]: [u64; 4]) -> bool {
    sctlr & (SCTLR | SPAN) == SCTLR && tcr & TCR == TCR && mair == MAIR && pan == 1
}

/// The names of these registers.
pub(crate) const REGISTERS: &str = "SCTLR_EL1, TCR_EL1, MAIR_EL1, PAN";

/// Returns whether the kernel is kept from pages of programs unless it says so: by PAN.
pub(crate) fn guards_programs() -> bool {
    read_register!("id_aa64mmfr1_el1") >> 20 & 15 != 0
}

/// Says whether the kernel accesses pages of programs from here on. Only where it
/// [`guards_programs`].
pub(crate) fn let_access(whether: bool) {
    // The instructions are given as numbers, since older CPUs do not have them.
    // SAFETY: the CPU has PAN. The compiler moves no access over it.
    unsafe {
        match whether {
            // msr pan, #0
            true => asm!(".inst 0xd500409f", options(nostack, preserves_flags)),
            // msr pan, #1
            false => asm!(".inst 0xd500419f", options(nostack, preserves_flags)),
        }
    }
}
