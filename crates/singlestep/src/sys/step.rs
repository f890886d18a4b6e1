//! Single-steps one measured run.

use iced_x86::Mnemonic;
use libc::user_regs_struct;

use super::{
    access,
    code::{Code, Decoded},
    marker::MarkerKind,
    repeat,
    tally::Tally,
    tracee::Tracee,
    xstate,
};
use crate::Error;

/// Up to this many repetitions are as fast one by one.
const FEW: u64 = 4;

/// Steps through the operation: from its call, where the child stands, until it has returned.
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
            Some(register) => {
                let element =
                    decoded.memory.first().map_or(0, |of| of.memory_size().element_size());
                xstate::mask(tracee.pid(), register, element)?
            }
            None => 0,
        };
        if decoded.repeats && before.rcx > FEW {
            repeat::finish(tracee, decoded.instruction.next_ip())?;
        } else {
            tracee.step()?;
        }
        let after = tracee.registers()?;
        if after.rip == end && after.rsp == call.rsp {
            // The return to the harness. It does not belong to the operation.
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

/// Refuses instructions that must not be stepped over.
fn refuse(decoded: &Decoded, before: &user_regs_struct, tracee: &Tracee) -> Result<(), Error> {
    if decoded.instruction.is_invalid() || decoded.hides_the_next() {
        return Err(decoded.unknown());
    }
    match decoded.instruction.mnemonic() {
        Mnemonic::Int3 if MarkerKind::of(before.rax) == Some(MarkerKind::Panicked) => {
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

#[cfg(test)]
mod tests {
    use std::{arch::naked_asm, ptr, time::Duration};

    use super::*;
    use crate::sys::{child, marker, tally::sum_up};

    #[unsafe(naked)]
    unsafe extern "C" fn three_instructions(_: *mut u8, _: *mut u8) {
        naked_asm!("nop", "push qword ptr [rsp]", "add rsp, 8", "ret")
    }

    #[test]
    fn neither_the_call_nor_the_return_is_counted() {
        let tracee = Tracee::fork(Duration::from_secs(600), || {
            child::be_traced().unwrap();
            marker::mark(MarkerKind::Hello, &[]);
            // SAFETY: the function uses neither argument.
            unsafe { marker::counted(three_instructions, ptr::null_mut(), ptr::null_mut()) };
        });
        let tracee = tracee.unwrap();
        tracee.run_to(MarkerKind::Begin).unwrap();
        let mut tally = Tally::new(&[], super::super::stack::low().unwrap());
        through(&tracee, &mut Code::default(), &mut tally).unwrap();
        let counts = sum_up(&[], &[tally]);
        assert_eq!(counts.instructions.largest, 3);
        // The first line has the return address, which is read again here, and the copy below it.
        assert_eq!((counts.stack.lines.largest, counts.stack.written.largest), (1, 1));
        assert_eq!(counts.data.lines.largest, 0);
    }
}
