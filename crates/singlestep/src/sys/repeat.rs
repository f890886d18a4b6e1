//! Runs all repetitions of a repeating string instruction at once.
//!
//! A single step stops after each repetition, and clearing a page would take thousands of steps. A
//! debug register with a breakpoint at the next instruction, where such an instruction always
//! continues, takes one stop. The debug register belongs to the child's thread. No code is changed.

use std::{io, mem::offset_of};

use libc::user;
use nix::{
    sys::ptrace::{self, AddressType},
    unistd::Pid,
};

use super::tracee::Tracee;
use crate::Error;

/// The offset of the debug registers in the user area of ptrace.
const REGISTERS: usize = offset_of!(user, u_debugreg);
/// The debug register of the first breakpoint's address, and the one that enables breakpoints.
const ADDRESS: usize = REGISTERS;
const CONTROL: usize = REGISTERS + 7 * size_of::<u64>();
/// Stops this thread before it executes the instruction at the first address.
const EXECUTE_FIRST: i64 = 1;

/// Runs to the instruction at `next`, which the child must reach. Does a single step if there are
/// no debug registers.
pub(super) fn finish(tracee: &Tracee, next: u64) -> Result<(), Error> {
    let pid = tracee.pid();
    if set(pid, ADDRESS, next as i64).and_then(|()| set(pid, CONTROL, EXECUTE_FIRST)).is_err() {
        return tracee.step();
    }
    tracee.resume(ptrace::cont)?;
    let doing = "running to a breakpoint";
    set(pid, CONTROL, 0).map_err(|errno| Error::System { doing, cause: errno.into() })?;
    if tracee.registers()?.rip != next {
        return Err(Error::System {
            doing,
            cause: io::Error::other("the child did not stop there"),
        });
    }
    Ok(())
}

fn set(pid: Pid, register: usize, value: i64) -> nix::Result<()> {
    ptrace::write_user(pid, register as AddressType, value)
}
