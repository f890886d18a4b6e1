//! Why there are no counts, and what to do about it.

use std::{fmt, io, time::Duration};

/// What the child was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Setting up, warming up or naming its regions.
    SettingUp,
    /// Preparing a measured run.
    Preparing,
    /// In a measured run of the operation.
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

/// What ended the counting. Each names its cause and, where there is one, the cure.
///
/// ```
/// assert!(singlestep::Error::NoRuns.to_string().contains("at least one"));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Not Linux on x86-64.
    Unsupported,
    /// No run was asked for.
    NoRuns,
    /// The kernel does not let the child be traced.
    NotPermitted {
        /// The kernel's reason.
        cause: io::Error,
        /// What stands in the way here, and how to remove it.
        cure: String,
    },
    /// The kernel refused something else.
    System {
        /// What was being done.
        doing: &'static str,
        /// The kernel's reason.
        cause: io::Error,
    },
    /// A signal that would have ended the child.
    Crashed {
        /// When.
        phase: Phase,
        /// The signal's name.
        signal: String,
        /// The instruction it stood at; `None` if another thread of the child crashed.
        instruction: Option<u64>,
        /// The address it wanted, for a fault of memory.
        address: Option<u64>,
    },
    /// The child panicked.
    Panicked {
        /// When.
        phase: Phase,
        /// The panic's message and place.
        message: String,
    },
    /// The child ended itself.
    Exited {
        /// When.
        phase: Phase,
        /// Its exit code.
        code: i32,
    },
    /// The child was still running at the time limit.
    TimedOut {
        /// When.
        phase: Phase,
        /// The limit.
        limit: Duration,
    },
    /// An instruction whose memory accesses cannot be told.
    Unknown {
        /// The instruction's name.
        instruction: String,
        /// Where it stands.
        at: u64,
    },
    /// The operation itself starts a thread, a process or a program, whose work no count would
    /// show.
    Spawns {
        /// The number of the system call.
        call: u64,
    },
    /// The child's memory is in a state that none of its own code brings about.
    Confused(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Unsupported => f.write_str(
                "instructions can be counted on Linux on x86-64 only; run this measurement there",
            ),
            Error::NoRuns => f.write_str("no run to measure; ask for at least one"),
            Error::NotPermitted { cause, cure } => {
                write!(f, "the kernel does not let a child be traced: {cause}; {cure}")
            }
            Error::System { doing, cause } => write!(f, "failed {doing}: {cause}"),
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
            Error::Exited { phase, code } => write!(f, "the process exited {phase}, code {code}"),
            Error::TimedOut { phase, limit } => write!(
                f,
                "still running {phase} after {limit:?}; a lock may be held by a thread that the \
                 child does not have, or the time limit is too low (a step takes microseconds)"
            ),
            Error::Unknown { instruction, at } => write!(
                f,
                "cannot tell what memory {instruction} at {at:#x} touches; keep it out of the \
                 operation, or build without the target feature that brings it"
            ),
            Error::Spawns { call } => write!(
                f,
                "the operation starts a thread, process or program (system call {call}), whose \
                 work would not be counted; start it in setup"
            ),
            Error::Confused(what) => write!(f, "the child's own harness is damaged: {what}"),
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
