//! From a number to a call, and back with its result.

use super::{Call, Stop, fail, strace, table};
use crate::errno::Errno;
use crate::task::schedule::Next;
use crate::task::{self, Own, Thread};
use crate::{heap, stats};
use alloc::sync::Arc;
use linux_raw_sys::errno::{ENOMEM, ENOSYS};

/// Makes the call of a program that has come back for one.
pub(crate) fn make(thread: &Arc<Thread>, own: &mut Own) -> Option<Next> {
    let registers = &own.registers;
    // As in Linux, 32 bits.
    let number = registers.rax as u32 as usize;
    let args =
        [registers.rdi, registers.rsi, registers.rdx, registers.r10, registers.r8, registers.r9];
    if !own.resume.again {
        stats::call(number);
    }
    let space = Arc::clone(own.space());
    let mut call = Call { thread, own, args, space: &space };
    if strace::is_on() && call.own.resume.begun.is_none() {
        call.own.resume.begun = Some(strace::begin(&call, number));
    }
    let outcome = match table::find(number) {
        // One that has begun goes on: it may have done some of its work.
        Some(_)
            if heap::is_short() && !table::works_in_shortage(number) && !call.own.resume.again =>
        {
            fail(ENOMEM)
        }
        Some(entry) => {
            call.args = entry.arguments(args);
            (entry.function)(&mut call)
        }
        None => {
            table::complain(number);
            fail(ENOSYS)
        }
    };
    let own = call.own;
    if strace::is_on()
        && !matches!(outcome, Err(Stop::Wait | Stop::Turn))
        && let Some(begun) = own.resume.begun.take()
    {
        strace::end(thread, begun, &outcome);
    }
    let result = match outcome {
        Ok(value) => value,
        Err(Stop::Errno(Errno(errno))) => -i64::from(errno) as u64,
        Err(stop @ (Stop::Wait | Stop::Turn)) => {
            // The same instruction again.
            own.resume.again = true;
            own.registers.rip -= 2;
            return Some(if stop == Stop::Wait { Next::Park } else { Next::Ready });
        }
        Err(Stop::Interrupted) => {
            own.registers.rip -= 2;
            task::signal::interrupted(thread, own);
            return None;
        }
        Err(Stop::Registers) => {
            own.resume.clear();
            return None;
        }
        Err(Stop::Yield) => {
            own.resume.clear();
            own.registers.rax = 0;
            return Some(Next::Ready);
        }
        Err(Stop::End) => return Some(Next::Gone),
    };
    own.registers.rax = result;
    own.resume.clear();
    None
}
