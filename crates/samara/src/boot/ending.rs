//! How a machine ended, and what that means.
//!
//! The kernel writes a value to QEMU's `isa-debug-exit` device, and QEMU ends with twice that value
//! and one. So what the kernel says is always odd, and it writes 16 and more, so that it is none of
//! QEMU's own: 1 is for a command line that QEMU does not take. 0 is no success but a machine that
//! was reset.

use std::time::Duration;

/// A trial failed.
const TRIAL: u8 = 1;
/// Something is missing, or could not be built, run or written.
const NOT_RUN: u8 = 2;
/// What Rust programs that panic end with.
const PANIC: u8 = 101;
/// As timeout(1) has it.
const TIMED_OUT: u8 = 124;

/// How QEMU ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Code(i32),
    Signal(i32),
    TimedOut,
}

/// What to end with, and what to say.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) code: u8,
    pub(super) what: String,
}

/// Most of what goes wrong does so before the kernel runs.
impl From<String> for Failure {
    fn from(what: String) -> Failure {
        Failure { code: NOT_RUN, what }
    }
}

pub(super) fn judge(ended: Ended, limit: Option<Duration>) -> Result<(), Failure> {
    let (code, what) = match ended {
        Ended::Code(33) => return Ok(()),
        Ended::Code(35) => (TRIAL, "a trial failed, or an experiment could not be made".into()),
        Ended::Code(37) => (NOT_RUN, "the kernel does not understand its command line".into()),
        Ended::Code(39) => {
            (PANIC, "the kernel panicked, or had a fault that nobody handles".into())
        }
        Ended::Code(0) => {
            let why = "a fault while it handled a fault, most likely";
            (PANIC, format!("the machine reset itself before the kernel was done: {why}"))
        }
        Ended::Code(code) => {
            (NOT_RUN, format!("QEMU ended with code {code}: see above what it said"))
        }
        Ended::Signal(signal) => (NOT_RUN, format!("QEMU was ended by signal {signal}")),
        Ended::TimedOut => {
            let seconds = limit.unwrap_or_default().as_secs();
            let why = "it hangs, or has more to do than this host does in that time";
            let cure = "--timeout SECONDS gives it longer, --timeout none for ever";
            let ended = format!("the kernel was not done after {seconds} s and was ended");
            (TIMED_OUT, format!("{ended}: {why}; {cure}"))
        }
    };
    Err(Failure { code, what })
}
