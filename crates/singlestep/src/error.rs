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
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The platform is not Linux on x86-64.
    #[error("instructions can be counted on Linux on x86-64 only; run this measurement there")]
    Unsupported,
    /// The number of measured runs is 0.
    #[error("there is no run to measure; set at least one")]
    NoRuns,
    /// The kernel does not allow the child to be traced.
    #[error("the kernel does not allow a child to be traced: {cause}; {cure}")]
    NotPermitted {
        /// The kernel's reason.
        #[source]
        cause: io::Error,
        /// The reason why tracing is forbidden here, and the cure.
        cure: String,
    },
    /// Another system call failed.
    #[error("{doing} failed: {cause}")]
    System {
        /// The action that failed.
        doing: &'static str,
        /// The kernel's reason.
        #[source]
        cause: io::Error,
    },
    /// A signal that would have ended the child.
    #[error("{signal} {phase}{}{}", at_instruction(*instruction), at_memory(*address))]
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
    #[error("panic {phase}: {message}")]
    Panicked {
        /// The phase of the child.
        phase: Phase,
        /// The panic's message and location.
        message: String,
    },
    /// The child exited.
    #[error("the child exited {phase} with code {code}; an operation must return")]
    Exited {
        /// The phase of the child.
        phase: Phase,
        /// Its exit code.
        code: i32,
    },
    /// The child was still running at the time limit.
    #[error(
        "still running {phase} after {limit:?}; raise the time limit (a step takes microseconds, \
         and more if the host is busy), or make sure that no other thread holds a lock that the \
         operation needs"
    )]
    TimedOut {
        /// The phase of the child.
        phase: Phase,
        /// The limit.
        limit: Duration,
    },
    /// The memory accesses of an instruction cannot be determined.
    #[error(
        "cannot determine which memory {instruction} at {at:#x} accesses; remove it from the \
         operation, or build without the target feature that generates it"
    )]
    Unknown {
        /// The instruction's name.
        instruction: String,
        /// The address of the instruction.
        at: u64,
    },
    /// The operation starts a thread, a process or a program. Its work would not be counted.
    #[error(
        "the operation starts a thread, process or program (system call {call}), whose work would \
         not be counted; start it in setup"
    )]
    Spawns {
        /// The number of the system call.
        call: u64,
    },
    /// The child's own harness is damaged: its memory is in a state that its code cannot produce.
    #[error("the child's own harness is damaged: {0}; look for stray writes in the operation")]
    Confused(&'static str),
}

fn at_instruction(instruction: Option<u64>) -> String {
    instruction.map_or(", in another thread".into(), |at| format!(", at instruction {at:#x}"))
}

fn at_memory(address: Option<u64>) -> String {
    address.map_or(String::new(), |address| format!(", at memory {address:#x}"))
}
