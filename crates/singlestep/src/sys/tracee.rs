//! The child as its tracer sees it: stopped, inspected, resumed to the next stop, and killed.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    time::{Duration, Instant},
};

use libc::user_regs_struct;
use nix::{
    sys::{
        ptrace,
        signal::{Signal, kill},
    },
    unistd::{ForkResult, Pid, fork},
};

use super::{marker::MarkerKind, permission};
use crate::{Error, Phase};

/// The longest message that a child may send, in bytes.
const LONGEST_MESSAGE: u64 = 1 << 24;

/// The result of a wait.
enum Stop {
    Signal(i32),
    Exited(i32),
    Killed(i32),
}

/// A traced child that is stopped. Dropping it kills and reaps it.
pub(super) struct Tracee {
    pid: Pid,
    memory: File,
    limit: Duration,
    /// The current phase, for errors.
    pub(super) phase: Phase,
}

/// Kills and reaps a child.
struct Reaper(Pid);

impl Drop for Reaper {
    fn drop(&mut self) {
        // A child that is gone already is fine. Other errors cannot be reported from here.
        let _ = kill(self.0, Signal::SIGKILL);
        while let Ok(Stop::Signal(_)) = wait(self.0) {}
    }
}

impl Tracee {
    /// Forks a child that runs `live`, and returns when the child has reached
    /// [`MarkerKind::Hello`].
    pub(super) fn fork(limit: Duration, live: impl FnOnce()) -> Result<Self, Error> {
        let phase = Phase::SettingUp;
        let begin = Instant::now();
        let reaper = loop {
            // SAFETY: the child has this thread only. The contract of `Operation::count` states
            // what it calls, and which locks that may need. It never returns from here.
            let reaper = match unsafe { fork() }.map_err(system("forking a child"))? {
                ForkResult::Parent { child } => Reaper(child),
                ForkResult::Child => {
                    live();
                    // SAFETY: ends this process, the child, without running exit handlers of the
                    // parent.
                    unsafe { libc::_exit(0) }
                }
            };
            match wait(reaper.0)? {
                Stop::Signal(libc::SIGTRAP) => break reaper,
                // The child was delayed before it began: see `child`.
                Stop::Signal(libc::SIGALRM) if begin.elapsed() < limit => {}
                Stop::Signal(libc::SIGALRM) => return Err(Error::TimedOut { phase, limit }),
                Stop::Exited(errno) => return Err(permission::refused(errno)),
                Stop::Signal(signal) | Stop::Killed(signal) => {
                    let (signal, none) = (name(signal), None);
                    return Err(Error::Crashed { phase, signal, instruction: none, address: none });
                }
            }
        };
        let pid = reaper.0;
        // The child must not continue without its tracer.
        ptrace::setoptions(pid, ptrace::Options::PTRACE_O_EXITKILL)
            .map_err(system("setting ptrace options"))?;
        let memory = File::open(format!("/proc/{pid}/mem"))
            .map_err(|cause| Error::System { doing: "opening the child's memory", cause })?;
        std::mem::forget(reaper);
        Ok(Self { pid, memory, limit, phase })
    }

    /// The child's process ID.
    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    /// Resumes the child until it reaches a marker of this kind. Returns the address and length of
    /// the message.
    pub(super) fn run_to(&self, kind: MarkerKind) -> Result<(u64, u64), Error> {
        self.resume(ptrace::cont)?;
        let registers = self.registers()?;
        match MarkerKind::of(registers.rax) {
            Some(found) if found == kind => Ok((registers.rdi, registers.rsi)),
            Some(MarkerKind::Panicked) => Err(self.panicked(&registers)),
            _ => Err(self.crashed(Signal::SIGTRAP as i32)),
        }
    }

    /// Executes one instruction, or one repetition of a string instruction.
    pub(super) fn step(&self) -> Result<(), Error> {
        self.resume(ptrace::step)
    }

    /// Resumes the child in this way until it traps. Any other stop is an error.
    pub(super) fn resume(
        &self,
        how: fn(Pid, Option<Signal>) -> nix::Result<()>,
    ) -> Result<(), Error> {
        loop {
            how(self.pid, None).map_err(system("resuming the child"))?;
            match wait(self.pid)? {
                Stop::Signal(libc::SIGTRAP) => return Ok(()),
                // SIGSTOP cannot be blocked, and says nothing about the operation.
                Stop::Signal(libc::SIGSTOP) => {}
                Stop::Signal(libc::SIGALRM) | Stop::Killed(libc::SIGALRM) => {
                    return Err(Error::TimedOut { phase: self.phase, limit: self.limit });
                }
                Stop::Signal(signal) => return Err(self.crashed(signal)),
                Stop::Exited(code) => return Err(Error::Exited { phase: self.phase, code }),
                Stop::Killed(signal) => {
                    let signal = name(signal);
                    let phase = self.phase;
                    return Err(Error::Crashed { phase, signal, instruction: None, address: None });
                }
            }
        }
    }

    /// The child's registers.
    pub(super) fn registers(&self) -> Result<user_regs_struct, Error> {
        ptrace::getregs(self.pid).map_err(system("reading the child's registers"))
    }

    /// `length` bytes of the child's memory.
    pub(super) fn read(&self, address: u64, length: u64) -> Result<Vec<u8>, Error> {
        if length > LONGEST_MESSAGE {
            return Err(Error::Confused("a message is too long"));
        }
        let mut bytes = vec![0; length as usize];
        self.memory
            .read_exact_at(&mut bytes, address)
            .map_err(|cause| Error::System { doing: "reading the child's memory", cause })?;
        Ok(bytes)
    }

    /// Reads as many bytes as can be read there, at most the size of `buffer`.
    pub(super) fn read_some(&self, address: u64, buffer: &mut [u8]) -> Result<usize, Error> {
        self.memory
            .read_at(buffer, address)
            .map_err(|cause| Error::System { doing: "reading the child's instructions", cause })
    }

    /// The error for a child at the marker of a panic.
    pub(super) fn panicked(&self, registers: &user_regs_struct) -> Error {
        match self.read(registers.rdi, registers.rsi) {
            Ok(bytes) => Error::Panicked {
                phase: self.phase,
                message: String::from_utf8_lossy(&bytes).into_owned(),
            },
            Err(error) => error,
        }
    }

    /// The error for a child that stopped before this signal ends it.
    pub(super) fn crashed(&self, signal: i32) -> Error {
        let faults = matches!(signal, libc::SIGSEGV | libc::SIGBUS);
        let info = if faults { ptrace::getsiginfo(self.pid).ok() } else { None };
        Error::Crashed {
            phase: self.phase,
            signal: name(signal),
            instruction: self.registers().ok().map(|registers| registers.rip),
            // SAFETY: for these signals the kernel fills the field that this reads.
            address: info.map(|info| unsafe { info.si_addr() } as u64),
        }
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        drop(Reaper(self.pid));
    }
}

/// Converts an error of a system call to [`Error`].
pub(super) fn system(doing: &'static str) -> impl Fn(nix::Error) -> Error {
    move |errno| Error::System { doing, cause: errno.into() }
}

fn name(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |known| known.to_string())
}

/// Waits for this child. (The decoder of nix rejects real-time signals.)
fn wait(pid: Pid) -> Result<Stop, Error> {
    let mut status = 0;
    // SAFETY: `status` is ours.
    while unsafe { libc::waitpid(pid.as_raw(), &mut status, libc::__WALL) } == -1 {
        let cause = io::Error::last_os_error();
        if cause.kind() != io::ErrorKind::Interrupted {
            return Err(Error::System { doing: "waiting for the child", cause });
        }
    }
    Ok(if libc::WIFEXITED(status) {
        Stop::Exited(libc::WEXITSTATUS(status))
    } else if libc::WIFSIGNALED(status) {
        Stop::Killed(libc::WTERMSIG(status))
    } else {
        Stop::Signal(libc::WSTOPSIG(status))
    })
}
