//! Starts the program: a child that waits to be seized, takes the filter, and becomes the program.
//!
//! Between fork and execve the child calls only async-signal-safe functions on memory prepared
//! before the fork, as a process with threads must. Before it becomes the program it makes
//! [`CALIBRATION_CALLS`] system calls that do nothing: the tracer times them and so knows what
//! tracing itself adds to each call.

use std::{
    ffi::CString,
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    ptr,
};

use super::{Tid, check, inherited, ptrace};
use crate::live::Error;

/// How many empty calls the child makes under the filter.
pub(in crate::live) const CALIBRATION_CALLS: usize = 64;

/// Where the child failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::live) enum Stage {
    /// Installing the filter.
    Filter,
    /// Becoming the program.
    Exec,
}

/// A child that is traced and on its way to become the program.
pub(in crate::live) struct Child {
    /// Its process.
    pub(in crate::live) pid: Tid,
    report: File,
}

fn pipe() -> io::Result<(File, File)> {
    let mut ends: [RawFd; 2] = [-1; 2];
    // SAFETY: `ends` has room for both descriptors.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } as _)?;
    // SAFETY: the kernel just made both for us.
    let [read, write] = ends.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    Ok((read.into(), write.into()))
}

/// Forks the child, seizes it, and lets it go. `filter` must let everything else through.
pub(in crate::live) fn spawn(
    command: &[CString],
    filter: &[libc::sock_filter],
) -> Result<Child, Error> {
    let mut argv: Vec<*const libc::c_char> = command.iter().map(|arg| arg.as_ptr()).collect();
    argv.push(ptr::null());
    let length = u16::try_from(filter.len())
        .map_err(|_| Error::Filter(io::ErrorKind::InvalidInput.into()))?;
    let program = libc::sock_fprog { len: length, filter: filter.as_ptr().cast_mut() };
    let (go_read, mut go_write) = pipe().map_err(Error::Spawn)?;
    let (report, report_write) = pipe().map_err(Error::Spawn)?;
    // SAFETY: the child runs `become_program` alone, which keeps to async-signal-safe calls on
    // memory that was prepared above, and never returns.
    let pid = check(unsafe { libc::fork() } as _).map_err(Error::Spawn)? as Tid;
    if pid == 0 {
        // SAFETY: we are the child; `argv` is a null-terminated array of C strings and `program`
        // describes the filter, all copied by the fork.
        unsafe {
            become_program(
                go_read.as_raw_fd(),
                report_write.as_raw_fd(),
                go_write.as_raw_fd(),
                &argv,
                &program,
            )
        }
    }
    drop((go_read, report_write));
    if let Err(error) = ptrace::seize(pid) {
        // Without a go the child ends by itself; reap it.
        drop(go_write);
        // SAFETY: our own child; no status is wanted.
        unsafe { libc::waitpid(pid, ptr::null_mut(), 0) };
        return Err(Error::Attach(error));
    }
    go_write.write_all(&[1]).map_err(Error::Spawn)?;
    Ok(Child { pid, report })
}

impl Child {
    /// Once the child has ended: where and why it failed to become the program, if it did.
    pub(in crate::live) fn failure(&mut self) -> io::Result<Option<(Stage, io::Error)>> {
        let mut report = [0u8; 5];
        match self.report.read_exact(&mut report) {
            Ok(()) => {
                let [stage, errno @ ..] = report;
                let stage = if stage == 0 { Stage::Filter } else { Stage::Exec };
                Ok(Some((stage, io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))))
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The child's whole life before the program.
///
/// # Safety
/// Only in a child just forked; `argv` must be a null-terminated array of C strings.
unsafe fn become_program(
    go: RawFd,
    report: RawFd,
    parents_end: RawFd,
    argv: &[*const libc::c_char],
    filter: &libc::sock_fprog,
) -> ! {
    // SAFETY: all of these are async-signal-safe and get valid arguments; every path ends in
    // execvp or _exit.
    unsafe {
        // Our copy of the parent's end would keep the read below from seeing the parent's death.
        libc::close(parents_end);
        let mut byte = 0u8;
        if libc::read(go, (&raw mut byte).cast(), 1) != 1 {
            libc::_exit(127);
        }
        inherited::restore();
        let install = || {
            let flags = libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW;
            libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, filter)
        };
        // Without privilege a filter needs a promise to gain none; with it, leave set-uid alone.
        if install() != 0
            && (libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || install() != 0)
        {
            fail(report, 0);
        }
        for _ in 0..CALIBRATION_CALLS {
            // An address that no page starts at: refused at once.
            libc::syscall(libc::SYS_munmap, 1, 0);
        }
        libc::execvp(argv[0], argv.as_ptr());
        fail(report, 1)
    }
}

/// Reports errno and ends the child.
///
/// # Safety
/// Only in a child just forked.
unsafe fn fail(report: RawFd, stage: u8) -> ! {
    // SAFETY: write and _exit are async-signal-safe; the buffer lives through the call.
    unsafe {
        let [a, b, c, d] = (*libc::__errno_location()).to_ne_bytes();
        let bytes = [stage, a, b, c, d];
        libc::write(report, bytes.as_ptr().cast(), bytes.len());
        libc::_exit(127)
    }
}
