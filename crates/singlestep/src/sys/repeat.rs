//! A repeating string instruction, all repetitions at once.
//!
//! Single steps stop after each repetition, and clearing a page would take thousands. A breakpoint
//! register on the next instruction, where such an instruction always goes on, takes one stop. The
//! register belongs to the child's thread; no code is changed.

use std::{io, mem::offset_of};

use libc::user;
use nix::{
    sys::ptrace::{self, AddressType},
    unistd::Pid,
};

use super::tracee::Tracee;
use crate::Error;

/// Where the breakpoint registers lie in what ptrace shows of a process.
const REGISTERS: usize = offset_of!(user, u_debugreg);
/// The register of the first breakpoint's address, and the one that switches breakpoints on.
const ADDRESS: usize = REGISTERS;
const CONTROL: usize = REGISTERS + 7 * size_of::<u64>();
/// Stop this thread before it executes the instruction at the first address.
const EXECUTE_FIRST: i64 = 1;

/// Runs to the instruction at `next`, which must be met, or one step where there are no breakpoint
/// registers.
pub(super) fn finish(tracee: &Tracee, next: u64) -> Result<(), Error> {
    let pid = tracee.pid();
    if set(pid, ADDRESS, next as i64).and_then(|()| set(pid, CONTROL, EXECUTE_FIRST)).is_err() {
        return tracee.step();
    }
    tracee.resume(ptrace::cont)?;
    let doing = "running to a breakpoint";
    set(pid, CONTROL, 0).map_err(|errno| Error::System { doing, cause: errno.into() })?;
    if tracee.registers()?.rip != next {
        return Err(Error::System { doing, cause: io::Error::other("it did not stop there") });
    }
    Ok(())
}

fn set(pid: Pid, register: usize, value: i64) -> nix::Result<()> {
    ptrace::write_user(pid, register as AddressType, value)
}
