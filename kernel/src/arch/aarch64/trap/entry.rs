//! The vectors: a few instructions that save all registers and call Rust.
//!
//! A handler runs on the stack that was interrupted. Each stack is the upper half of addresses that
//! are aligned to twice its size, and the lower half is unmapped. So a bit of the stack pointer
//! tells, before anything is stored, whether the stack has room for the registers. If it has not,
//! the handler runs on this CPU's emergency stack. That one is in the direct map, which another bit
//! tells: a fault there comes from a probe, and its handler goes on below. There are no programs,
//! so `TPIDR_EL0` and `TPIDRRO_EL0` are free to keep two registers meanwhile; interrupts are off.

use super::handle;
use super::registers::Registers;
use crate::cpu::area::Area;
use crate::layout::{DIRECT, STACKS};
use crate::smp::STACK;
use core::arch::global_asm;
use core::mem::{offset_of, size_of};

/// The bit that is set in addresses of stacks, and clear in those of the direct map.
const STACKS_BIT: u32 = 46;

const _: () = assert!(STACKS >> STACKS_BIT & 1 == 1 && DIRECT >> STACKS_BIT & 1 == 0);

global_asm!(
    r#"
    .macro vector kind
    .balign 0x80
    msr tpidr_el0, x0
    mov x0, sp
    sub x0, x0, #{size}
    tbnz x0, #{bit}, 1f
    tbnz x0, #{stacks}, 2f
1:  mov sp, x0
    add x0, x0, #{size}
    str x0, [sp, #{sp}]
    b 3f
2:  msr tpidrro_el0, x1
    mov x1, sp
    mrs x0, tpidr_el1
    ldr x0, [x0, #{emergency}]
    sub sp, x0, #{size}
    str x1, [sp, #{sp}]
    mrs x1, tpidrro_el0
3:  mrs x0, tpidr_el0
    stp x0, x1, [sp]
    mov x0, #\kind
    b common_vector
    .endm

    .text
    .balign 2048
    .globl vectors
vectors:
    // From EL1 with SP_EL0, which the kernel never uses.
    vector 4
    vector 4
    vector 4
    vector 4
    // From EL1.
    vector 0
    vector 1
    vector 2
    vector 3
    // From programs, of which there are none.
    vector 4
    vector 4
    vector 4
    vector 4
    vector 4
    vector 4
    vector 4
    vector 4

    .balign 0x80
common_vector:
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    stp x8, x9, [sp, #64]
    stp x10, x11, [sp, #80]
    stp x12, x13, [sp, #96]
    stp x14, x15, [sp, #112]
    stp x16, x17, [sp, #128]
    stp x18, x19, [sp, #144]
    stp x20, x21, [sp, #160]
    stp x22, x23, [sp, #176]
    stp x24, x25, [sp, #192]
    stp x26, x27, [sp, #208]
    stp x28, x29, [sp, #224]
    str x30, [sp, #240]
    mrs x1, elr_el1
    mrs x2, spsr_el1
    stp x1, x2, [sp, #{elr}]
    mrs x1, esr_el1
    mrs x2, far_el1
    stp x1, x2, [sp, #{esr}]
    str x0, [sp, #{kind}]
    // x29 stays, so that a backtrace continues into the interrupted code.
    mov x0, sp
    bl {enter}
    ldp x1, x2, [sp, #{elr}]
    msr elr_el1, x1
    msr spsr_el1, x2
    ldp x2, x3, [sp, #16]
    ldp x4, x5, [sp, #32]
    ldp x6, x7, [sp, #48]
    ldp x8, x9, [sp, #64]
    ldp x10, x11, [sp, #80]
    ldp x12, x13, [sp, #96]
    ldp x14, x15, [sp, #112]
    ldp x16, x17, [sp, #128]
    ldp x18, x19, [sp, #144]
    ldp x20, x21, [sp, #160]
    ldp x22, x23, [sp, #176]
    ldp x24, x25, [sp, #192]
    ldp x26, x27, [sp, #208]
    ldp x28, x29, [sp, #224]
    ldr x30, [sp, #240]
    ldp x0, x1, [sp]
    add sp, sp, #{size}
    eret
    "#,
    size = const size_of::<Registers>(),
    bit = const STACK.ilog2(),
    stacks = const STACKS_BIT,
    emergency = const offset_of!(Area, own.emergency),
    sp = const offset_of!(Registers, sp),
    elr = const offset_of!(Registers, elr),
    esr = const offset_of!(Registers, esr),
    kind = const offset_of!(Registers, kind),
    enter = sym enter,
);

extern "C" fn enter(registers: *mut Registers) {
    // SAFETY: the registers are on this stack, and no other reference exists.
    handle(unsafe { &mut *registers });
}

/// The address of the vectors.
pub(super) fn vectors() -> u64 {
    unsafe extern "C" {
        static vectors: u8;
    }
    (&raw const vectors).addr() as u64
}
