//! Errors, each with its cause and its cure.

use std::{fmt, io, time::Duration};

/// The phase of a measurement in which an error occurred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Setting up, warming up, or naming its regions.
    SettingUp,
    /// Preparing a measured run.
    Preparing,
    /// Running the operation, in a measured run.
    Measuring,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::SettingUp => "during setup or warm-up",
            Phase::Preparing => "while preparing a measured run",
            Phase::Measuring => "in a measured run",
        })
    }
}

/// The reason why the operation could not be counted, with the cure if there is one.
///
/// ```
/// assert!(singlestep::Error::NoRuns.to_string().contains("at least one"));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// The platform is not Linux on x86-64.
    Unsupported,
    /// The number of measured runs is 0.
    NoRuns,
    /// The kernel does not allow the child to be traced.
    NotPermitted {
        /// The kernel's reason.
        cause: io::Error,
        /// The reason why tracing is forbidden here, and the cure.
        cure: String,
    },
    /// Another system call failed.
    System {
        /// The action that failed.
        doing: &'static str,
        /// The kernel's reason.
        cause: io::Error,
    },
    /// A signal that would have ended the child.
    Crashed {
        /// The phase of the child.
        phase: Phase,
        /// The signal's name.
        signal: String,
        /// The address of the instruction. `None` if another thread of the child crashed.
        instruction: Option<u64>,
        /// The address that the instruction accessed, for a memory fault.
        address: Option<u64>,
    },
    /// The child panicked.
    Panicked {
        /// The phase of the child.
        phase: Phase,
        /// The panic's message and location.
        message: String,
    },
    /// The child exited.
    Exited {
        /// The phase of the child.
        phase: Phase,
        /// Its exit code.
        code: i32,
    },
    /// The child was still running at the time limit.
    TimedOut {
        /// The phase of the child.
        phase: Phase,
        /// The limit.
        limit: Duration,
    },
    /// The memory accesses of an instruction cannot be determined.
    Unknown {
        /// The instruction's name.
        instruction: String,
        /// The address of the instruction.
        at: u64,
    },
    /// The operation starts a thread, a process or a program. Its work would not be counted.
    Spawns {
        /// The number of the system call.
        call: u64,
    },
    /// The child's own harness is damaged: its memory is in a state that its code cannot produce.
    Confused(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unsupported => f.write_str(
                "instructions can be counted on Linux on x86-64 only; run this measurement there",
            ),
            Error::NoRuns => f.write_str("there is no run to measure; set at least one"),
            Error::NotPermitted { cause, cure } => {
                write!(f, "the kernel does not allow a child to be traced: {cause}; {cure}")
            }
            Error::System { doing, cause } => write!(f, "{doing} failed: {cause}"),
            Error::Crashed { phase, signal, instruction, address } => {
                write!(f, "{signal} {phase}")?;
                match instruction {
                    Some(at) => write!(f, ", at instruction {at:#x}")?,
                    None => f.write_str(", in another thread")?,
                }
                match address {
                    Some(address) => write!(f, ", at memory {address:#x}"),
                    None => Ok(()),
                }
            }
            Error::Panicked { phase, message } => write!(f, "panic {phase}: {message}"),
            Error::Exited { phase, code } => {
                write!(f, "the child exited {phase} with code {code}; an operation must return")
            }
            Error::TimedOut { phase, limit } => write!(
                f,
                "still running {phase} after {limit:?}; raise the time limit (a step takes \
                 microseconds, and more if the host is busy), or make sure that no other thread \
                 holds a lock that the operation needs"
            ),
            Error::Unknown { instruction, at } => write!(
                f,
                "cannot determine which memory {instruction} at {at:#x} accesses; remove it from \
                 the operation, or build without the target feature that generates it"
            ),
            Error::Spawns { call } => write!(
                f,
                "the operation starts a thread, process or program (system call {call}), whose \
                 work would not be counted; start it in setup"
            ),
            Error::Confused(what) => write!(
                f,
                "the child's own harness is damaged: {what}; look for stray writes in the operation"
            ),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::NotPermitted { cause, .. } | Error::System { cause, .. } => Some(cause),
            _ => None,
        }
    }
}
