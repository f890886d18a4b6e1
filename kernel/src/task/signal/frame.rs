//! The frame of a handler on the program's stack (`rt_sigframe`), as Linux lays it out on x86-64.
//!
//! From low to high addresses: the return address, which is the restorer; the context (registers,
//! mask, alternate stack); the `siginfo_t`; and at a multiple of 64 the vector registers in the
//! format of `xsave`. Linux describes these in bytes that the CPU leaves to software, and marks
//! their end, so that a program can tell how much is there.
//!
//! A frame that comes back is a program's: each value in it is chosen by an attacker. The segments
//! and the system flags are forced before the program runs (`user::enter`), the next instruction's
//! address is checked there, and the vector registers pass [`XState::fill`], which refuses values
//! for which `xrstor` faults. All types here are without padding, so no byte of the kernel gets
//! out.

use super::action::{ONSTACK, RESTORER};
use super::state::Trap;
use super::{Action, AltStack, Info, WholeInfo, set_mask};
use crate::errno::Errno;
use crate::task::{Own, Thread};
use crate::user::copy::User;
use crate::user::xstate::{self, END_MARK, XState};
use alloc::sync::Arc;
use linux_raw_sys::errno::EFAULT;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The bytes below the stack pointer that a function uses.
const RED_ZONE: u64 = 128;
/// UC_SIGCONTEXT_SS and UC_STRICT_RESTORE_SS.
const SEGMENTS: u64 = 6;
/// UC_FP_XSTATE.
const HAS_XSTATE: u64 = 1;
/// DF, TF, RF.
const CLEARED: u64 = 0x1_0500;

/// A `ucontext`, with its `sigcontext` from `r8` to `reserved`.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct Context {
    flags: u64,
    link: u64,
    stack: AltStack,
    r8: u64,
    r9: u64,
    r10: u64,
    r11: u64,
    r12: u64,
    r13: u64,
    r14: u64,
    r15: u64,
    rdi: u64,
    rsi: u64,
    rbp: u64,
    rbx: u64,
    rdx: u64,
    rax: u64,
    rcx: u64,
    rsp: u64,
    rip: u64,
    rflags: u64,
    cs: u16,
    gs: u16,
    fs: u16,
    ss: u16,
    code: u64,
    vector: u64,
    old_mask: u64,
    address: u64,
    xstate: u64,
    reserved: [u64; 8],
    mask: u64,
}

#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
struct Frame {
    restorer: u64,
    context: Context,
    info: WholeInfo,
}

const _: () = assert!(size_of::<Context>() == 304 && size_of::<Frame>() == 440);

/// Writes the frame of a handler, and sets the registers to run it. `mask`: the signals that the
/// thread blocks after the handler.
///
/// # Errors
/// EFAULT: the stack cannot be written, or the alternate stack is too small, or the action names no
/// restorer. The registers are as before.
pub(super) fn build(
    own: &mut Own,
    info: Info,
    action: &Action,
    mask: u64,
    trap: Trap,
) -> Result<(), Errno> {
    if action.flags & RESTORER == 0 {
        return Err(Errno(EFAULT));
    }
    let registers = own.registers;
    let nested = own.stack.is_used(registers.rsp);
    let mut at = registers.rsp.wrapping_sub(RED_ZONE);
    let mut alternate = nested;
    if action.flags & ONSTACK != 0
        && let Some(end) = own.stack.end(at)
    {
        at = end;
        alternate = true;
    }
    at = at.wrapping_sub((xstate::bytes() + size_of_val(&END_MARK)) as u64) & !63;
    let xstate = at;
    // As after a call: the return address lies below a multiple of 16.
    at = (at.wrapping_sub(size_of::<Frame>() as u64) & !15).wrapping_sub(8);
    if alternate && !own.stack.contains(at) {
        return Err(Errno(EFAULT));
    }
    own.xstate.save();
    let space = Arc::clone(own.space());
    // SAFETY: this CPU runs the thread, and has its space active.
    let user = unsafe { User::new(&space) };
    let bytes = own.xstate.as_bytes();
    user.write_bytes(xstate, bytes)?;
    user.write(xstate.wrapping_add(bytes.len() as u64), &END_MARK)?;
    let frame = Frame {
        restorer: action.restorer,
        context: context(own, mask, trap, xstate),
        info: info.whole(),
    };
    user.write(at, &frame)?;
    own.stack.disarm();
    let context = at + 8;
    let registers = &mut own.registers;
    registers.rdi = info.number as u64;
    // Also without SA_SIGINFO, as in Linux.
    registers.rsi = context + size_of::<Context>() as u64;
    registers.rdx = context;
    registers.rax = 0;
    registers.rip = action.handler;
    registers.rsp = at;
    registers.flags &= !CLEARED;
    Ok(())
}

fn context(own: &Own, mask: u64, trap: Trap, xstate: u64) -> Context {
    let of = &own.registers;
    Context {
        flags: SEGMENTS | HAS_XSTATE,
        link: 0,
        stack: own.stack,
        r8: of.r8,
        r9: of.r9,
        r10: of.r10,
        r11: of.r11,
        r12: of.r12,
        r13: of.r13,
        r14: of.r14,
        r15: of.r15,
        rdi: of.rdi,
        rsi: of.rsi,
        rbp: of.rbp,
        rbx: of.rbx,
        rdx: of.rdx,
        rax: of.rax,
        rcx: of.rcx,
        rsp: of.rsp,
        rip: of.rip,
        rflags: of.flags,
        cs: of.cs as u16,
        gs: 0,
        fs: 0,
        ss: of.ss as u16,
        code: trap.code,
        vector: trap.vector,
        old_mask: mask,
        address: trap.address,
        xstate,
        reserved: [0; 8],
        mask,
    }
}

/// rt_sigreturn(2): takes the registers, the mask and the alternate stack from the frame at the
/// stack pointer. On the way to the program, all registers are sanitized.
///
/// # Errors
/// EFAULT: the frame cannot be read, or the CPU would refuse its vector registers.
pub(crate) fn restore(thread: &Arc<Thread>, own: &mut Own, user: User<'_>) -> Result<(), Errno> {
    let from: Context = user.read(own.registers.rsp)?;
    set_mask(thread, from.mask);
    restore_xstate(&mut own.xstate, user, from.xstate)?;
    let to = &mut own.registers;
    (to.r8, to.r9, to.r10, to.r11) = (from.r8, from.r9, from.r10, from.r11);
    (to.r12, to.r13, to.r14, to.r15) = (from.r12, from.r13, from.r14, from.r15);
    (to.rdi, to.rsi, to.rbp, to.rbx) = (from.rdi, from.rsi, from.rbp, from.rbx);
    (to.rdx, to.rax, to.rcx, to.rsp) = (from.rdx, from.rax, from.rcx, from.rsp);
    (to.rip, to.flags) = (from.rip, from.rflags);
    // As Linux does: a stack that cannot be set stays as it is.
    let _ = own.stack.set(from.stack, from.rsp);
    Ok(())
}

/// Takes the vector registers from a frame; without any there, they are as at a program's start.
fn restore_xstate(xstate: &mut XState, user: User<'_>, at: u64) -> Result<(), Errno> {
    if at == 0 {
        xstate.reset();
    } else {
        let filled = xstate.fill(|bytes| {
            let (legacy, rest) = bytes.split_at_mut(xstate::LEGACY);
            if user.read_bytes(at, legacy).is_err() {
                return false;
            }
            let whole = xstate::described(legacy, rest.len()).filter(|size| {
                let end = user.read::<u32>(at.wrapping_add((xstate::LEGACY + size) as u64));
                end == Ok(END_MARK)
            });
            let (there, missing) = rest.split_at_mut(whole.unwrap_or(0));
            if user.read_bytes(at.wrapping_add(xstate::LEGACY as u64), there).is_err() {
                return false;
            }
            missing.fill(0);
            if whole.is_none() {
                // Only x87 and SSE.
                missing[0] = 3;
            }
            true
        });
        if !filled {
            xstate.load();
            return Err(Errno(EFAULT));
        }
    }
    xstate.load();
    Ok(())
}
