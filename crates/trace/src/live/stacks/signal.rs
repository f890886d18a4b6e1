//! Signal handlers: the way from a handler to what its signal interrupted.
//!
//! A handler returns to a trampoline, which calls rt_sigreturn. The kernel has stored the registers
//! of the interrupted code right above (`struct ucontext`). The unwind tables of the trampoline say
//! so in a form that the unwinder does not read, and some C libraries have none. So a trampoline is
//! recognised by its instructions.
//!
//! Cost: one read of the program's memory for each place in code that is in a stack.

use std::collections::HashMap;

use framehop::x86_64::UnwindRegsX86_64;

use super::memory::Memory;
use crate::{
    live::sys::{self, Tid},
    record::Frame,
};

/// `mov $15, %rax; syscall`, and the same with `%eax`.
const CODE: [&[u8]; 2] =
    [&[0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05], &[0xb8, 15, 0, 0, 0, 0x0f, 0x05]];

/// The places in code that were looked at.
#[derive(Default)]
pub(super) struct Trampolines(HashMap<Frame, bool>);

impl Trampolines {
    /// Whether the code at `address`, which is at this place in its file, is a trampoline. Code
    /// outside of files may change, so it is looked at each time.
    pub(super) fn has(&mut self, frame: Frame, address: u64, tid: Tid) -> bool {
        if frame.image == 0 {
            return is_trampoline(address, tid);
        }
        *self.0.entry(frame).or_insert_with(|| is_trampoline(address, tid))
    }
}

fn is_trampoline(address: u64, tid: Tid) -> bool {
    let mut code = [0; 9];
    let got = sys::read_pages(tid, address as usize, &mut code);
    CODE.iter().any(|known| code[..got].starts_with(known))
}

/// The registers that the signal interrupted. The stack pointer is that of the trampoline.
pub(super) fn interrupted(
    registers: &UnwindRegsX86_64,
    memory: &mut Memory,
) -> Option<UnwindRegsX86_64> {
    // The offsets in `struct ucontext`.
    let mut word = |offset| memory.word(registers.sp().checked_add(offset)?);
    let (rbp, rsp, rip) = (word(120)?, word(160)?, word(168)?);
    (rip != 0).then(|| UnwindRegsX86_64::new(rip, rsp, rbp))
}
