//! From the loader to Rust, and from PSCI to Rust: the instructions before a stack in high memory.
//!
//! The loader enters `boot_start` at EL1 with the MMU off; so does PSCI enter `boot_other` on each
//! other CPU. Both switch the MMU on with the same boot tables, which are constant data. These map
//! the first 512 GiB by blocks of 1 GiB, at their own addresses and in the direct map, and the
//! first GiB of memory at the kernel's linked addresses. The first GiB is devices. They allow
//! writes to code. The kernel's own tables replace them as soon as they exist.

use crate::arch::features::{SCTLR, TCR};
use core::arch::global_asm;

global_asm!(
    r#"
    .section .boot, "awx", @progbits
    .globl boot_start
boot_start:
    msr daifset, #15
    bl mmu_on
    ldr x1, =boot_high
    br x1

    .globl boot_other
boot_other:
    msr daifset, #15
    bl mmu_on
    ldr x1, =other_high
    br x1

    # Switches the MMU on. Uses x0 to x2.
mmu_on:
    ldr x0, ={mair}
    msr mair_el1, x0
    ldr x0, ={tcr}
    mrs x1, id_aa64mmfr0_el1
    and x1, x1, #15                 // the width of physical addresses, at most 48 bits
    mov x2, #5
    cmp x1, x2
    csel x1, x1, x2, lo
    orr x0, x0, x1, lsl #32
    msr tcr_el1, x0
    adr x0, boot_root
    msr ttbr0_el1, x0
    add x0, x0, #256 * 8
    msr ttbr1_el1, x0
    dsb ish
    tlbi vmalle1
    ic iallu
    dsb ish
    isb
    ldr x0, ={sctlr}
    msr sctlr_el1, x0
    isb
    ret

    .balign 8
    .ltorg

    .balign 4096
boot_root:
    .quad boot_middle + 3
    .fill 272, 8, 0
    .quad boot_middle + 3           // 273: the direct map
    .fill 237, 8, 0
    .quad boot_image + 3            // 511
boot_middle:
    .quad 0x405                     // devices
    .set gib, 1
    .rept 511
    .quad (gib << 30) + 0x701       // write-back memory of the inner shareable domain
    .set gib, gib + 1
    .endr
boot_image:
    .fill 510, 8, 0
    .quad (1 << 30) + 0x701
    .quad 0

    .section .text.boot, "ax", @progbits
boot_high:
    ldr x0, =boot_stack_end
    mov sp, x0
    mov x29, xzr
    mov x30, xzr
    mov w0, wzr
    b start

    # The kernel's tables do not map the lower half.
other_high:
    ldr x0, =ap_table
    ldr x0, [x0]
    msr ttbr0_el1, x0
    add x0, x0, #256 * 8
    msr ttbr1_el1, x0
    isb
    tlbi vmalle1
    dsb nsh
    isb
    ldr x0, =ap_stack
    ldr x0, [x0]
    mov sp, x0
    ldr x0, =ap_area
    ldr x0, [x0]
    mov x29, xzr
    mov x30, xzr
    b start_ap
    .ltorg

    # The upper half of what is aligned to its size, as the other stacks (trap/entry.rs).
    .section .bss.boot_stack, "aw", @nobits
    .balign 0x20000
    .fill 0x20000, 1, 0
boot_stack_end:
    .text
    "#,
    mair = const paging::MAIR,
    tcr = const TCR,
    sctlr = const SCTLR,
);

/// The physical address at which other CPUs start.
pub(super) fn other_cpus() -> u64 {
    unsafe extern "C" {
        /// Its address is a number: the code is linked at its physical address.
        static boot_other_address: u64;
    }
    // SAFETY: constant data, below.
    unsafe { boot_other_address }
}

global_asm!(
    r#"
    .section .rodata
    .balign 8
    .globl boot_other_address
boot_other_address:
    .quad boot_other
    .text
    "#
);
