//! The entry of each vector: a few instructions that save all registers and call Rust.

use super::handle;
use super::registers::Registers;
use core::arch::{global_asm, naked_asm};
use core::mem::offset_of;

/// The common part of all vectors. It saves the registers in the order of [`Registers`], below the
/// words that the CPU and the stub have pushed. If a program was interrupted, the stack is the
/// thread's [`Registers`] themselves, and the CPU goes on in the loop that had entered the program
/// (`user::enter`).
#[unsafe(naked)]
extern "C" fn common() {
    naked_asm!(
        "push rax", "push rbx", "push rcx", "push rdx", "push rsi", "push rdi", "push rbp",
        "push r8", "push r9", "push r10", "push r11",
        "push r12", "push r13", "push r14", "push r15",
        "test byte ptr [rsp + {cs}], 3",
        "jz 2f",
        "swapgs",
        "jmp {from_user}",
        "2:",
        // Sets all flags as the ABI requires. The CPU keeps DF and AC; with AC set, the handler
        // could access pages of programs.
        "push 2", "popfq",
        // RBP stays, so that a backtrace continues into the interrupted code.
        "mov rdi, rsp",
        "and rsp, -16",
        "mov rbx, rdi",
        "call {handle}",
        "mov rsp, rbx",
        "pop r15", "pop r14", "pop r13", "pop r12", "pop r11", "pop r10", "pop r9", "pop r8",
        "pop rbp", "pop rdi", "pop rsi", "pop rdx", "pop rcx", "pop rbx", "pop rax",
        "add rsp, 16",
        "iretq",
        handle = sym enter,
        cs = const offset_of!(Registers, cs),
        from_user = sym crate::user::enter::leave,
    )
}

/// The common part of the vectors that may come at any instruction, also at the few between a
/// program and the kernel at which GS is not the kernel's yet. They have stacks of their own, and
/// do not return. The kernel's areas are in the upper half, the GS of programs never is.
#[unsafe(naked)]
extern "C" fn anywhere() {
    naked_asm!(
        "push rax", "push rcx", "push rdx",
        "mov ecx, 0xc0000101", // IA32_GS_BASE
        "rdmsr",
        "test edx, edx",
        "js 2f",
        "swapgs",
        "2:",
        "pop rdx", "pop rcx", "pop rax",
        "push rax", "push rbx", "push rcx", "push rdx", "push rsi", "push rdi", "push rbp",
        "push r8", "push r9", "push r10", "push r11",
        "push r12", "push r13", "push r14", "push r15",
        "push 2", "popfq",
        "mov rdi, rsp",
        "and rsp, -16",
        "call {handle}",
        "ud2",
        handle = sym enter,
    )
}

extern "C" fn enter(registers: *mut Registers) {
    // SAFETY: the registers are on this stack, and no other reference exists.
    handle(unsafe { &mut *registers });
}

/// A stub for each vector. If the CPU pushes no error code for it (`error`), the stub does.
macro_rules! stubs {
    ($($vector:literal $name:ident $($how:ident)?,)*) => {
        $(stubs!(@one $vector $name $($how)?);)*
        unsafe extern "C" { $(fn $name();)* }
        /// The vectors with handlers.
        pub(crate) static VECTORS: &[u8] = &[$($vector),*];
        /// Their stubs.
        pub(crate) static HANDLERS: &[unsafe extern "C" fn()] = &[$($name),*];
    };
    (@one $vector:literal $name:ident error) => {
        stubs!(@code $vector $name common "");
    };
    (@one $vector:literal $name:ident) => {
        stubs!(@code $vector $name common "push 0");
    };
    (@one $vector:literal $name:ident anywhere) => {
        stubs!(@code $vector $name anywhere "push 0");
    };
    (@one $vector:literal $name:ident anywhere_error) => {
        stubs!(@code $vector $name anywhere "");
    };
    (@code $vector:literal $name:ident $common:ident $error:literal) => {
        global_asm!(
            ".text", concat!(".globl ", stringify!($name)), concat!(stringify!($name), ":"),
            $error, "push {vector}", "jmp {common}", vector = const $vector, common = sym $common,
        );
    };
}

stubs! {
    0 trap_0, 1 trap_1, 2 trap_2 anywhere, 3 trap_3, 4 trap_4, 5 trap_5, 6 trap_6, 7 trap_7,
    8 trap_8 anywhere_error, 10 trap_10 error, 11 trap_11 error, 12 trap_12 error, 13 trap_13 error, 14 trap_14 error,
    16 trap_16, 17 trap_17 error, 18 trap_18 anywhere, 19 trap_19, 20 trap_20, 21 trap_21 error,
    0x20 trap_pic, 0xf0 trap_timer, 0xf1 trap_flush, 0xf2 trap_wake, 0xfe trap_apic_error, 0xff trap_spurious,
}
