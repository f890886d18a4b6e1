//! The end of a machine, and its meaning.
//!
//! The kernel writes a value to QEMU's `isa-debug-exit` device, and QEMU exits with twice that
//! value plus one. So the kernel's codes are odd. It writes 16 and more, which avoids QEMU's own
//! codes: 1 is for a command line that QEMU does not accept. 0 is no success: it means that the
//! machine was reset.

use std::time::Duration;

/// A trial failed.
const TRIAL: u8 = 1;
/// Something is missing, or could not be built, run or written.
const NOT_RUN: u8 = 2;
/// The exit code of Rust programs that panic.
const PANIC: u8 = 101;
/// The exit code of timeout(1).
const TIMED_OUT: u8 = 124;
/// Of `run`, whose other codes are the program's: as env(1) and timeout(1), if they fail.
pub(super) const NO_MACHINE: u8 = 125;
/// Of `run`: the program cannot be run.
pub(super) const NOT_RUNNABLE: u8 = 126;
/// Of `run`: there is no such program.
pub(super) const NOT_FOUND: u8 = 127;

/// The end of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Code(i32),
    Signal(i32),
    TimedOut,
}

/// The exit code and the message.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) code: u8,
    pub(super) what: String,
}

impl Failure {
    /// `run` could not run the machine.
    pub(super) fn no_machine(what: impl Into<String>) -> Failure {
        Failure { code: NO_MACHINE, what: what.into() }
    }
}

/// Most failures happen before the kernel runs.
impl From<String> for Failure {
    fn from(what: String) -> Failure {
        Failure { code: NOT_RUN, what }
    }
}

/// The same, where the kernel runs a program.
pub(super) fn judge_run(ended: Ended, limit: Option<Duration>) -> Result<(), Failure> {
    judge(ended, limit).map_err(|failure| match failure.code {
        TRIAL => {
            let what = "the kernel could not run the program: see above what it said".into();
            Failure { code: NOT_RUNNABLE, what }
        }
        NOT_RUN => Failure::no_machine(failure.what),
        _ => failure,
    })
}

pub(super) fn judge(ended: Ended, limit: Option<Duration>) -> Result<(), Failure> {
    let (code, what) = match ended {
        Ended::Code(33) => return Ok(()),
        Ended::Code(35) => (TRIAL, "a trial failed, or an experiment could not be made".into()),
        Ended::Code(37) => (NOT_RUN, "the kernel does not understand its command line".into()),
        Ended::Code(39) => (PANIC, "the kernel panicked, or had an unhandled fault".into()),
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
            let why = "it hangs, or this host is too busy for that time";
            let cure = "--timeout SECONDS allows more time, --timeout none any time";
            let ended = format!("the kernel was not done after {seconds} s and was ended");
            (TIMED_OUT, format!("{ended}: {why}; {cure}"))
        }
    };
    Err(Failure { code, what })
}
