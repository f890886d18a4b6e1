//! The way from the kernel into a program, and back.
//!
//! [`enter`] is a function call: it returns when the program makes a system call, faults or is
//! interrupted. It saves the kernel's registers on this CPU's stack and loads those of the thread.
//! Two words say where the program's registers go when it comes back: the TSS's stack pointer, for
//! interrupts and faults, and `registers_end` of the CPU's area, for system calls. Both lead to the
//! end of the thread's [`Registers`]. So the CPU and the stubs push them to their place, and no
//! copy is made. Then [`leave`] switches to the kernel's stack and returns from [`enter`].
//!
//! # What a program can do here
//! - It chooses every register but CS, SS and some flags. [`Registers::sanitize`] forces these, so
//!   `iretq` faults at most for the address of the next instruction. The caller refuses one that is
//!   not canonical. `sysretq` faults with the program's stack, and is used only for addresses below
//!   the hole.
//! - It sets the trap flag. A system call clears it ([`start`]). The debug registers are the
//!   kernel's, and empty. So no debug exception comes in the kernel.
//! - It cannot write its GS base except by a call, which takes lower-half addresses only. So the
//!   vectors that may come between a program's GS and the kernel's (`trap::entry`) tell them apart.

use crate::arch::tables::{USER_CODE, USER_DATA};
use crate::cpu::area::Area;
use crate::trap::registers::Registers;
use crate::user::HOLE;
use core::arch::naked_asm;
use core::mem::offset_of;
use x86_64::registers::model_specific::{Efer, EferFlags, Msr};

/// The vector of a system call, beyond those of interrupts.
pub(crate) const CALL: u64 = 256;

const STAR: u32 = 0xc000_0081;
const LSTAR: u32 = 0xc000_0082;
const SFMASK: u32 = 0xc000_0084;

/// Flags that a program may set: CF, PF, AF, ZF, SF, TF, DF, OF, RF, AC, ID.
const FLAGS: u64 = 0x25_0dd5;
/// The flag of interrupts, and the one that is always set.
const ALWAYS: u64 = 0x202;
/// Flags that a system call clears: TF, IF, DF, IOPL, NT, RF, AC.
const CLEARED: u64 = 0x5_7700;

impl Registers {
    /// Forces the segments and the flags that a program does not choose.
    pub(crate) fn sanitize(&mut self) {
        (self.cs, self.ss) = (USER_CODE.into(), USER_DATA.into());
        self.flags = self.flags & FLAGS | ALWAYS;
    }

    /// Whether the program's next instruction has an address in its half.
    pub(crate) fn can_go_on(&self) -> bool {
        self.rip < HOLE
    }

    /// Whether `sysret` restores these registers: it takes the address from RCX and the flags from
    /// R11. After a trap flag or RF, only `iretq` is exact.
    pub(crate) fn suit_sysret(&self) -> bool {
        self.vector == CALL
            && self.rcx == self.rip
            && self.r11 == self.flags
            && self.flags & 0x1_0100 == 0
            && self.can_go_on()
    }
}

/// Prepares this CPU for system calls.
///
/// # Safety
/// Call it once on each CPU. The segments of `arch::tables` are, or will be, this CPU's.
pub(crate) unsafe fn start() {
    // SAFETY: every x86-64 CPU has these. The entry follows the manual.
    unsafe {
        Msr::new(STAR).write((0x10 | 3) << 48 | 0x08 << 32);
        Msr::new(LSTAR).write((call as extern "C" fn() as *const ()).addr() as u64);
        Msr::new(SFMASK).write(CLEARED);
        Efer::update(|flags| flags.insert(EferFlags::SYSTEM_CALL_EXTENSIONS));
    }
}

/// Runs the program until it comes back; the reason is in `registers.vector`. `sysret` chooses the
/// faster way.
///
/// # Safety
/// One section of this CPU is open; it is open again on return. The registers are sanitized, and
/// can go on; with `sysret`, they suit it. They stay in place. The active address space is that of
/// the thread, the kernel's half included.
#[unsafe(naked)]
pub(crate) unsafe extern "sysv64" fn enter(registers: *mut Registers, sysret: bool) {
    naked_asm!(
        "push rbp", "push rbx", "push r12", "push r13", "push r14", "push r15",
        "mov gs:[{kernel_stack}], rsp",
        "lea rax, [rdi + {size}]",
        "mov gs:[{registers_end}], rax",
        "mov rcx, gs:[{interrupt_stack}]",
        "mov [rcx], rax",
        "mov rsp, rdi",
        "test sil, sil",
        "jnz 2f",
        "pop r15", "pop r14", "pop r13", "pop r12", "pop r11", "pop r10", "pop r9", "pop r8",
        "pop rbp", "pop rdi", "pop rsi", "pop rdx", "pop rcx", "pop rbx", "pop rax",
        "add rsp, 16",
        "swapgs",
        "iretq",
        "2:",
        "pop r15", "pop r14", "pop r13", "pop r12", "pop r11", "pop r10", "pop r9", "pop r8",
        "pop rbp", "pop rdi", "pop rsi", "pop rdx", "pop rcx", "pop rbx", "pop rax",
        "mov rsp, [rsp + {rsp_behind}]",
        "swapgs",
        "sysretq",
        kernel_stack = const offset_of!(Area, own.kernel_stack),
        registers_end = const offset_of!(Area, own.registers_end),
        interrupt_stack = const offset_of!(Area, own.interrupt_stack),
        size = const size_of::<Registers>(),
        rsp_behind = const offset_of!(Registers, rsp) - offset_of!(Registers, vector),
    )
}

/// Goes on behind [`enter`]: the program's registers are saved, GS is the kernel's.
#[unsafe(naked)]
pub(crate) extern "C" fn leave() {
    naked_asm!(
        "mov rsp, gs:[{kernel_stack}]",
        // All flags as the ABI requires; interrupts stay off.
        "push 2", "popfq",
        "pop r15", "pop r14", "pop r13", "pop r12", "pop rbx", "pop rbp",
        "ret",
        kernel_stack = const offset_of!(Area, own.kernel_stack),
    )
}

/// The entry of system calls: pushes the same words as an interrupt.
#[unsafe(naked)]
extern "C" fn call() {
    naked_asm!(
        "swapgs",
        "mov gs:[{user_stack}], rsp",
        "mov rsp, gs:[{registers_end}]",
        "push {data}",
        "push qword ptr gs:[{user_stack}]",
        "push r11",
        "push {code}",
        "push rcx",
        "push 0",
        "push {call}",
        "push rax", "push rbx", "push rcx", "push rdx", "push rsi", "push rdi", "push rbp",
        "push r8", "push r9", "push r10", "push r11",
        "push r12", "push r13", "push r14", "push r15",
        "jmp {leave}",
        user_stack = const offset_of!(Area, own.user_stack),
        registers_end = const offset_of!(Area, own.registers_end),
        data = const USER_DATA,
        code = const USER_CODE,
        call = const CALL,
        leave = sym leave,
    )
}
