//! Starts the program: a child that waits until it is seized, installs the filter, and executes the
//! program.
//!
//! Between fork and execve the child calls only async-signal-safe functions, on memory prepared
//! before the fork, as required in a process with threads. Before execve it makes
//! [`CALIBRATION_CALLS`] empty system calls. The tracer measures them to learn the time that
//! tracing adds to each call.

use std::{
    ffi::CString,
    fs::File,
    io::{self, Read, Write},
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
    ptr,
};

use super::{Tid, check, inherited, ptrace};
use crate::live::Error;

/// The number of empty calls that the child makes under the filter.
pub(in crate::live) const CALIBRATION_CALLS: usize = 64;

/// The step at which the child failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::live) enum SpawnStage {
    /// Installing the filter.
    Filter,
    /// Executing the program.
    Exec,
}

/// A traced child that will become the program.
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

/// Forks the child, seizes it, and lets it run. `filter` must allow all calls that the child makes
/// before the program.
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
    // SAFETY: the child runs only `become_program`, which makes only async-signal-safe calls on
    // memory that was prepared above, and never returns.
    let pid = check(unsafe { libc::fork() } as _).map_err(Error::Spawn)? as Tid;
    if pid == 0 {
        // SAFETY: this is the child. `argv` is a null-terminated array of C strings and `program`
        // describes the filter. The fork copied all of them.
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
        // Without the go byte the child exits. Reap it.
        drop(go_write);
        // SAFETY: our own child, and no status is requested.
        unsafe { libc::waitpid(pid, ptr::null_mut(), 0) };
        return Err(Error::Attach(error));
    }
    go_write.write_all(&[1]).map_err(Error::Spawn)?;
    Ok(Child { pid, report })
}

impl Child {
    /// After the child has ended: the step at which it failed to become the program, and the error,
    /// if it did.
    pub(in crate::live) fn failure(&mut self) -> io::Result<Option<(SpawnStage, io::Error)>> {
        let mut report = [0u8; 5];
        match self.report.read_exact(&mut report) {
            Ok(()) => {
                let [stage, errno @ ..] = report;
                let stage = if stage == 0 { SpawnStage::Filter } else { SpawnStage::Exec };
                Ok(Some((stage, io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))))
            }
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// The child's code before the program.
///
/// # Safety
/// Only in a newly forked child. `argv` must be a null-terminated array of C strings.
unsafe fn become_program(
    go: RawFd,
    report: RawFd,
    parents_end: RawFd,
    argv: &[*const libc::c_char],
    filter: &libc::sock_fprog,
) -> ! {
    // SAFETY: all of these calls are async-signal-safe and get valid arguments. Every path ends in
    // execvp or _exit.
    unsafe {
        // An open copy of the parent's end would hide the parent's death from the read below.
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
        // Without privilege, a filter needs no_new_privs. With privilege, leave that unset, so that
        // set-uid programs work.
        if install() != 0
            && (libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || install() != 0)
        {
            fail(report, 0);
        }
        for _ in 0..CALIBRATION_CALLS {
            // An unaligned address, which the kernel rejects at once.
            libc::syscall(libc::SYS_munmap, 1, 0);
        }
        libc::execvp(argv[0], argv.as_ptr());
        fail(report, 1)
    }
}

/// Reports errno and ends the child.
///
/// # Safety
/// Only in a newly forked child.
unsafe fn fail(report: RawFd, stage: u8) -> ! {
    // SAFETY: write and _exit are async-signal-safe, and the buffer lives during the call.
    unsafe {
        let [a, b, c, d] = (*libc::__errno_location()).to_ne_bytes();
        let bytes = [stage, a, b, c, d];
        libc::write(report, bytes.as_ptr().cast(), bytes.len());
        libc::_exit(127)
    }
}
