//! Registers of the CPU that protect the kernel from its own errors.

use core::arch::asm;
use paging::MAIR;

/// SCTLR_EL1: the MMU, caches for data and for instructions, stacks that are aligned.
const SCTLR: u64 = 1 << 0 | 1 << 2 | 1 << 12 | 1 << 3;
/// Clear in SCTLR_EL1: a handler then begins with PAN.
const SPAN: u64 = 1 << 23;

/// TCR_EL1 without the fields that depend on the CPU: halves of 47 bits, granules of 4 KiB, walks
/// through write-back caches of the inner shareable domain; hardware sets the access flag and the
/// dirty state.
pub(super) const TCR: u64 = {
    let half = 17 | 1 << 8 | 1 << 10 | 3 << 12;
    // TG1 has another encoding of 4 KiB than TG0.
    half | half << 16 | 2 << 30 | 1 << 39 | 1 << 40
};

/// Sets on this CPU: the memory types that page tables name; hardware that sets the access flag
/// and the dirty state; tags of 16 bits where the CPU has them; PAN.
///
/// # Safety
/// Call it once on each CPU, before that CPU uses our tables. The boot code has enabled the MMU.
pub(crate) unsafe fn start() {
    assert!(
        read_register!("id_aa64mmfr1_el1") & 15 >= 2,
        "this CPU does not set the access flag and the dirty state: start QEMU with -cpu max"
    );
    let sizes = read_register!("id_aa64mmfr0_el1");
    // The width of physical addresses, at most the 48 bits that the format has.
    let width = (sizes & 15).min(5);
    let tcr = TCR | width << 32 | u64::from(has_long_tags()) << 36;
    let sctlr = (read_register!("sctlr_el1") | SCTLR) & !SPAN;
    // SAFETY: the memory types of the boot tables are the same, and so are the sizes.
    unsafe {
        set_register!("mair_el1", MAIR);
        set_register!("tcr_el1", tcr);
        set_register!("sctlr_el1", sctlr);
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

/// The registers that [`start`] writes, on this CPU.
pub(crate) fn registers() -> [u64; 4] {
    [
        read_register!("sctlr_el1"),
        read_register!("tcr_el1"),
        read_register!("mair_el1"),
        guards_programs().into(),
    ]
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
