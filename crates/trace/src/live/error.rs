//! The errors of following a program, each with its cure.

use std::{env, fmt, io, path::Path};

/// The reason why the tracing ended. Each error names its cause and, if there is one, the cure.
///
/// ```
/// use trace::live::Error;
/// assert!(Error::ZeroByte.to_string().contains("zero byte"));
/// ```
#[derive(Debug)]
pub enum Error {
    /// No program was given.
    NoCommand,
    /// An argument contains a zero byte, which execve does not accept.
    ZeroByte,
    /// Call stacks were asked for, and this crate was built without the feature `stacks`.
    NoStacks,
    /// `/proc` is not mounted, or belongs to another PID namespace.
    Proc,
    /// The child process could not be created.
    Spawn(io::Error),
    /// The kernel refused ptrace.
    Attach(io::Error),
    /// A running process cannot be traced.
    Seize {
        /// The process.
        pid: u32,
        /// The reason.
        cause: io::Error,
    },
    /// The kernel refused the seccomp filter.
    Filter(io::Error),
    /// The program could not be started.
    Exec {
        /// The program's name as given.
        program: String,
        /// The kernel's reason.
        cause: io::Error,
    },
    /// A request of the tracer failed during the run.
    Follow {
        /// The action that failed.
        doing: &'static str,
        /// The kernel's reason.
        cause: io::Error,
    },
}

/// Whether a program has a file, which a name without a slash has in a folder of PATH.
fn is_file(program: &str) -> bool {
    let has = |folder: &Path| folder.join(program).is_file();
    match program.contains('/') {
        true => has(Path::new("")),
        false => env::var_os("PATH").is_some_and(|path| env::split_paths(&path).any(|at| has(&at))),
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::NoCommand => f.write_str("no program given; write it after `--`"),
            Error::ZeroByte => f.write_str("an argument contains a zero byte; remove it"),
            Error::NoStacks => {
                f.write_str("call stacks are not in this build; build it with the feature `stacks`")
            }
            Error::Proc => f.write_str(
                "the program cannot be followed: /proc is not mounted, or shows the processes of \
                 another PID namespace; mount it for this one (unshare --pid --fork --mount-proc)",
            ),
            Error::Spawn(cause) => write!(f, "cannot create a process for the program: {cause}"),
            Error::Attach(cause) => write!(
                f,
                "the kernel refuses to trace the program: {cause}; ptrace may be switched off here \
                 (kernel.yama.ptrace_scope=3, a container without CAP_SYS_PTRACE)"
            ),
            Error::Seize { pid, cause } => {
                write!(f, "cannot follow process {pid}: {cause}")?;
                match cause.raw_os_error() {
                    Some(libc::ESRCH) => f.write_str("; there is none with this number"),
                    Some(libc::EPERM) => f.write_str(
                        "; it is another user's, this process itself, traced already, or \
                         kernel.yama.ptrace_scope forbids it: become root",
                    ),
                    _ => Ok(()),
                }
            }
            Error::Filter(cause) => write!(
                f,
                "the kernel refuses the seccomp filter: {cause}; it needs CONFIG_SECCOMP_FILTER \
                 and a container that allows seccomp(2)"
            ),
            Error::Exec { program, cause } => {
                let name = if program.is_empty() { "''" } else { program };
                write!(f, "cannot run {name}: {cause}")?;
                match cause.raw_os_error() {
                    Some(libc::ENOENT) if is_file(program) => {
                        f.write_str("; it needs an interpreter that is not there")
                    }
                    Some(libc::ENOENT) if !program.contains('/') => {
                        f.write_str("; no folder of PATH has it")
                    }
                    Some(libc::EACCES) => {
                        f.write_str("; it is a folder, or may not be executed: see chmod(1)")
                    }
                    _ => Ok(()),
                }
            }
            Error::Follow { doing, cause } => {
                write!(f, "lost the program while {doing}: {cause}; it was killed")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Error::NoCommand | Error::ZeroByte | Error::NoStacks | Error::Proc => None,
            Error::Spawn(cause)
            | Error::Attach(cause)
            | Error::Filter(cause)
            | Error::Exec { cause, .. }
            | Error::Seize { cause, .. }
            | Error::Follow { cause, .. } => Some(cause),
        }
    }
}
