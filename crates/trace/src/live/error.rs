//! Why a program could not be followed, and what to do about it.

use std::{fmt, io};

/// What ended the tracing. Each names its cause and, where there is one, the cure.
///
/// ```
/// use trace::live::Error;
/// assert!(Error::ZeroByte.to_string().contains("zero byte"));
/// ```
#[derive(Debug)]
pub enum Error {
    /// No program was named.
    NoCommand,
    /// An argument contains a zero byte, which no program can be given.
    ZeroByte,
    /// /proc shows other processes than those that are traced, or none.
    Proc,
    /// The child process could not be made.
    Spawn(io::Error),
    /// ptrace was refused.
    Attach(io::Error),
    /// The seccomp filter was refused.
    Filter(io::Error),
    /// The program could not be started.
    Exec {
        /// As it was named.
        program: String,
        /// The kernel's reason.
        cause: io::Error,
    },
    /// The kernel refused something in the middle of the run.
    Follow {
        /// What was being done.
        doing: &'static str,
        /// The kernel's reason.
        cause: io::Error,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoCommand => f.write_str("no program given; write it after `--`"),
            Error::ZeroByte => f.write_str("an argument contains a zero byte"),
            Error::Proc => f.write_str(
                "the program cannot be followed: /proc is not mounted, or shows the processes of \
                 another PID namespace; mount it for this one (unshare --pid --fork --mount-proc)",
            ),
            Error::Spawn(cause) => write!(f, "cannot make a process for the program: {cause}"),
            Error::Attach(cause) => write!(
                f,
                "the kernel refuses to trace the program: {cause}; ptrace may be switched off here \
                 (kernel.yama.ptrace_scope=3, a container without CAP_SYS_PTRACE)"
            ),
            Error::Filter(cause) => write!(
                f,
                "the kernel refuses the seccomp filter: {cause}; it needs CONFIG_SECCOMP_FILTER \
                 and a container that allows seccomp(2)"
            ),
            Error::Exec { program, cause } => write!(f, "cannot run {program}: {cause}"),
            Error::Follow { doing, cause } => {
                write!(f, "lost the program while {doing}: {cause}; it was ended")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::NoCommand | Error::ZeroByte | Error::Proc => None,
            Error::Spawn(cause)
            | Error::Attach(cause)
            | Error::Filter(cause)
            | Error::Exec { cause, .. }
            | Error::Follow { cause, .. } => Some(cause),
        }
    }
}
