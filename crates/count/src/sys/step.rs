//! One measured run, step by step.

use iced_x86::Mnemonic;
use libc::user_regs_struct;

use super::{
    access,
    code::{Code, Decoded},
    marker::Kind,
    repeat,
    tally::Tally,
    tracee::Tracee,
    xstate,
};
use crate::Error;

/// So many repetitions are as fast one by one.
const FEW: u64 = 4;

/// Steps through the operation, from its call, where the child stands, until that has returned.
pub(super) fn through(
    tracee: &Tracee,
    code: &mut Code,
    tally: &mut Tally<'_>,
) -> Result<(), Error> {
    let call = tracee.registers()?;
    let end = code.at(tracee, call.rip)?.instruction.next_ip();
    tally.begin(call.rsp);
    tracee.step()?;
    let mut before = tracee.registers()?;
    loop {
        let decoded = code.at(tracee, before.rip)?;
        refuse(decoded, &before, tracee)?;
        let mask = match access::mask_register(decoded) {
            Some(register) => xstate::mask(tracee.pid(), register)?,
            None => 0,
        };
        if decoded.repeats && before.rcx > FEW {
            repeat::finish(tracee, decoded.instruction.next_ip())?;
        } else {
            tracee.step()?;
        }
        let after = tracee.registers()?;
        if after.rip == end && after.rsp == call.rsp {
            // The return to the harness, which is not the operation's.
            return Ok(());
        }
        if !(decoded.repeats && after.rip == before.rip) {
            tally.instruction(decoded);
        }
        access::each(decoded, &before, &after, mask, |bytes, written| {
            tally.touch(bytes, written, decoded.atomic);
        })?;
        before = after;
    }
}

/// What must not be stepped over.
fn refuse(decoded: &Decoded, before: &user_regs_struct, tracee: &Tracee) -> Result<(), Error> {
    if decoded.instruction.is_invalid() || decoded.hides_the_next() {
        return Err(decoded.unknown());
    }
    match decoded.instruction.mnemonic() {
        Mnemonic::Int3 if Kind::of(before.rax) == Some(Kind::Panicked) => {
            Err(tracee.panicked(before))
        }
        Mnemonic::Int3 | Mnemonic::Int1 => Err(tracee.crashed(libc::SIGTRAP)),
        _ if decoded.syscall => match before.rax as i64 {
            libc::SYS_clone
            | libc::SYS_clone3
            | libc::SYS_fork
            | libc::SYS_vfork
            | libc::SYS_execve
            | libc::SYS_execveat => Err(Error::Spawns { call: before.rax }),
            _ => Ok(()),
        },
        _ => Ok(()),
    }
}
