//! ptrace: attaches, waits, resumes, and reads the system call of a stopped thread.

use std::{io, mem::MaybeUninit, ptr};

use super::{Tid, check};

/// The events that the tracer needs. With EXITKILL, no tracee outlives its tracer.
const OPTIONS: libc::c_int = libc::PTRACE_O_TRACESYSGOOD
    | libc::PTRACE_O_TRACEFORK
    | libc::PTRACE_O_TRACEVFORK
    | libc::PTRACE_O_TRACECLONE
    | libc::PTRACE_O_TRACEEXEC
    | libc::PTRACE_O_TRACEEXIT
    | libc::PTRACE_O_TRACESECCOMP
    | libc::PTRACE_O_EXITKILL;

/// An event of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::live) enum Status {
    /// It exited with this code, and is reaped.
    Exited(i32),
    /// A signal ended it, and it is reaped.
    Signaled(i32),
    /// It stopped at the exit of a system call, or at the entry of one if it was resumed so.
    Syscall,
    /// It stopped before a signal is delivered.
    Signal(i32),
    /// It stopped at a `PTRACE_EVENT_*`; the signal matters for `PTRACE_EVENT_STOP`.
    Event(i32, i32),
}

/// Begins to trace a thread, which keeps running.
pub(in crate::live) fn seize(tid: Tid) -> io::Result<()> {
    seize_with(tid, OPTIONS)
}

/// As [`seize`], a thread of a program that ran before the tracer, and runs on after it. Its
/// filters are its own matter.
pub(in crate::live) fn seize_running(tid: Tid) -> io::Result<()> {
    seize_with(tid, OPTIONS & !(libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESECCOMP))
}

fn seize_with(tid: Tid, options: libc::c_int) -> io::Result<()> {
    // SAFETY: the options are a number, not a pointer.
    check(unsafe { libc::ptrace(libc::PTRACE_SEIZE, tid, 0usize, options as usize) }).map(drop)
}

/// Ends the tracing of a stopped thread, which gets this signal (0: none) and goes on. One that is
/// stopped by job control stays so.
pub(in crate::live) fn detach(tid: Tid, signal: i32) -> io::Result<()> {
    // SAFETY: the last argument is a number, not a pointer.
    check(unsafe { libc::ptrace(libc::PTRACE_DETACH, tid, 0usize, signal as usize) }).map(drop)
}

/// How to wait. __WNOTHREAD: tracees of other threads of this process are not ours.
const HOW: libc::c_int = libc::__WALL | libc::__WNOTHREAD;

/// Waits for the next event of any thread that this thread traces. `Ok(None)`: there is none left.
/// If a signal handler ran, the error is `Interrupted`.
pub(in crate::live) fn wait() -> io::Result<Option<(Tid, Status)>> {
    let mut status = 0;
    // SAFETY: `status` is ours.
    let tid = unsafe { libc::waitpid(-1, &mut status, HOW) };
    if tid == -1 {
        let error = io::Error::last_os_error();
        return if error.raw_os_error() == Some(libc::ECHILD) { Ok(None) } else { Err(error) };
    }
    Ok(Some((tid, decode(status))))
}

/// The next event of any thread, if there is one now.
pub(in crate::live) fn poll_any() -> Option<(Tid, Status)> {
    let mut status = 0;
    // SAFETY: `status` is ours.
    let tid = unsafe { libc::waitpid(-1, &mut status, HOW | libc::WNOHANG) };
    (tid > 0).then(|| (tid, decode(status)))
}

/// Asks a running thread to stop. It then reports a stop, or its end.
pub(in crate::live) fn interrupt(tid: Tid) -> bool {
    // SAFETY: no memory is passed.
    unsafe { libc::ptrace(libc::PTRACE_INTERRUPT, tid, 0usize, 0usize) == 0 }
}

/// The next event of `tid`, if it has one. An error: it is no longer traced.
pub(in crate::live) fn poll(tid: Tid) -> io::Result<Option<Status>> {
    let mut status = 0;
    // SAFETY: `status` is ours.
    let found = check(unsafe { libc::waitpid(tid, &mut status, HOW | libc::WNOHANG) } as _)?;
    Ok((found as Tid == tid).then(|| decode(status)))
}

/// Whether this thread has children or tracees now. A program that executed this one may have left
/// it some.
pub(in crate::live) fn has_children() -> bool {
    peek(libc::P_ALL, 0, libc::WEXITED).is_some()
}

/// Whether `tid` has an event that was not taken yet.
pub(in crate::live) fn has_event(tid: Tid) -> bool {
    let all = libc::WEXITED | libc::WSTOPPED;
    // SAFETY: `waitid` sets the field, or it is zero.
    peek(libc::P_PID, tid as libc::id_t, all).is_some_and(|event| unsafe { event.si_pid() } != 0)
}

/// Looks for an event without taking it. `None`: there are no such tracees.
fn peek(which: libc::idtype_t, id: libc::id_t, what: libc::c_int) -> Option<libc::siginfo_t> {
    let mut out = MaybeUninit::<libc::siginfo_t>::zeroed();
    let how = what | libc::WNOHANG | libc::WNOWAIT | HOW;
    // SAFETY: `out` has the type that the kernel fills, and zeroes are a value of it. With WNOWAIT
    // nothing is reaped.
    unsafe { (libc::waitid(which, id, out.as_mut_ptr(), how) == 0).then(|| out.assume_init()) }
}

/// Decodes a wait status. (nix's decoder rejects real-time signals.)
fn decode(status: libc::c_int) -> Status {
    if libc::WIFEXITED(status) {
        return Status::Exited(libc::WEXITSTATUS(status));
    }
    if libc::WIFSIGNALED(status) {
        return Status::Signaled(libc::WTERMSIG(status));
    }
    let signal = libc::WSTOPSIG(status);
    match status >> 16 {
        0 if signal == libc::SIGTRAP | 0x80 => Status::Syscall,
        0 => Status::Signal(signal),
        event => Status::Event(event, signal),
    }
}

/// The way in which a stopped thread continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::live) enum Resume {
    /// Until the next event, with this signal delivered (0: none).
    Freely(i32),
    /// Until the exit of its system call.
    ToSyscallExit,
    /// Until the next entry or exit of a system call, with this signal delivered (0: none).
    ToCall(i32),
    /// It stays stopped for job control, but reports when that ends.
    Listen,
}

/// Resumes a stopped thread. It is no error if it was killed meanwhile: its end is reported.
pub(in crate::live) fn resume(tid: Tid, how: Resume) -> io::Result<()> {
    let (request, signal) = match how {
        Resume::Freely(signal) => (libc::PTRACE_CONT, signal),
        Resume::ToSyscallExit => (libc::PTRACE_SYSCALL, 0),
        Resume::ToCall(signal) => (libc::PTRACE_SYSCALL, signal),
        Resume::Listen => (libc::PTRACE_LISTEN, 0),
    };
    // SAFETY: the last argument is a number, not a pointer.
    match check(unsafe { libc::ptrace(request, tid, 0usize, signal as usize) }) {
        Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
        other => other.map(drop),
    }
}

/// The number of an event: the new thread's id, the former id, or the exit status.
pub(in crate::live) fn message(tid: Tid) -> io::Result<usize> {
    let mut out: libc::c_ulong = 0;
    // SAFETY: `out` has the size that the kernel fills.
    check(unsafe { libc::ptrace(libc::PTRACE_GETEVENTMSG, tid, 0usize, &raw mut out) })?;
    Ok(out as usize)
}

/// A system call that a thread is about to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::live) struct Entry {
    /// The filter rule that stopped it.
    pub(in crate::live) rule: u32,
    /// The call's number, as the kernel received it.
    pub(in crate::live) number: i64,
    /// Its arguments.
    pub(in crate::live) args: [usize; 6],
}

/// `PTRACE_GET_SYSCALL_INFO` and its structs, from the kernel's `linux/ptrace.h`. The libc crate
/// has them only for glibc.
#[allow(dead_code, reason = "the kernel writes all fields, the tracer reads some")]
mod abi {
    /// The request.
    pub(super) const GET_SYSCALL_INFO: libc::c_int = 0x420e;
    /// [`SyscallInfo::op`] if the thread is at the entry of a call.
    pub(super) const ENTRY: u8 = 1;
    /// [`SyscallInfo::op`] if the thread is at the exit of a call.
    pub(super) const EXIT: u8 = 2;
    /// [`SyscallInfo::op`] if the thread is at a seccomp event.
    pub(super) const SECCOMP: u8 = 3;

    /// `struct ptrace_syscall_info`.
    #[repr(C)]
    #[derive(Clone, Copy)]
    pub(super) struct SyscallInfo {
        pub(super) op: u8,
        reserved: u8,
        flags: u16,
        pub(super) arch: u32,
        instruction_pointer: u64,
        stack_pointer: u64,
        pub(super) u: Data,
    }

    /// The part that depends on [`SyscallInfo::op`].
    #[repr(C)]
    #[derive(Clone, Copy)]
    pub(super) union Data {
        pub(super) exit: Exit,
        pub(super) seccomp: Seccomp,
    }

    #[repr(C)]
    #[derive(Clone, Copy)]
    pub(super) struct Exit {
        pub(super) result: i64,
        pub(super) is_error: u8,
    }

    #[repr(C)]
    #[derive(Clone, Copy)]
    pub(super) struct Seccomp {
        pub(super) number: u64,
        pub(super) args: [u64; 6],
        pub(super) ret_data: u32,
    }

    // The sizes of the C structs.
    const _: () = assert!(size_of::<SyscallInfo>() == 88 && size_of::<Data>() == 64);
}

fn info(tid: Tid) -> io::Result<abi::SyscallInfo> {
    let mut out = MaybeUninit::<abi::SyscallInfo>::zeroed();
    let size = size_of::<abi::SyscallInfo>();
    // SAFETY: the kernel writes at most `size` bytes to `out`, which has that size.
    check(unsafe { libc::ptrace(abi::GET_SYSCALL_INFO as _, tid, size, out.as_mut_ptr()) })?;
    // SAFETY: the struct is plain numbers, so zeroes are valid in the part that was not filled.
    Ok(unsafe { out.assume_init() })
}

/// The call of a thread that stopped at a seccomp event.
pub(in crate::live) fn entry(tid: Tid) -> io::Result<Entry> {
    let info = info(tid)?;
    if info.op != abi::SECCOMP {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    // SAFETY: `op` says that this variant is the one filled; all variants are plain numbers.
    let call = unsafe { info.u.seccomp };
    Ok(Entry {
        rule: call.ret_data,
        number: call.number as i64,
        args: call.args.map(|arg| arg as usize),
    })
}

/// A stop at a system call.
pub(in crate::live) enum CallStop {
    /// At its entry. No rule has been applied.
    Entry {
        /// The number of the instruction set, as in a filter.
        arch: u32,
        /// The call.
        entry: Entry,
    },
    /// At its exit.
    Exit,
}

/// The call at which a thread stopped.
pub(in crate::live) fn call_stop(tid: Tid) -> io::Result<CallStop> {
    let info = info(tid)?;
    match info.op {
        abi::EXIT => Ok(CallStop::Exit),
        abi::ENTRY => {
            // SAFETY: `op` says that the variant of an entry is the one filled. It is the beginning
            // of this one, and all variants are plain numbers.
            let call = unsafe { info.u.seccomp };
            let args = call.args.map(|arg| arg as usize);
            let entry = Entry { rule: 0, number: call.number as i64, args };
            Ok(CallStop::Entry { arch: info.arch, entry })
        }
        _ => Err(io::Error::from(io::ErrorKind::InvalidData)),
    }
}

/// The result of the call of a thread that stopped at its exit.
pub(in crate::live) fn result(tid: Tid) -> io::Result<isize> {
    let info = info(tid)?;
    if info.op != abi::EXIT {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    // SAFETY: `op` says that this variant is the one filled; all variants are plain numbers.
    Ok(unsafe { info.u.exit }.result as isize)
}

/// Whether a stopped thread is at its end (PTRACE_EVENT_EXIT).
pub(in crate::live) fn is_dying(tid: Tid) -> bool {
    const AT_EXIT: libc::c_int = libc::SIGTRAP | (libc::PTRACE_EVENT_EXIT << 8);
    let mut out = MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: `out` has the type that this request fills; zeroes are a value of it.
    unsafe {
        libc::ptrace(libc::PTRACE_GETSIGINFO, tid, ptr::null_mut::<u8>(), out.as_mut_ptr()) == 0
            && out.assume_init().si_code == AT_EXIT
    }
}

fn registers(tid: Tid) -> io::Result<libc::user_regs_struct> {
    let mut out = MaybeUninit::<libc::user_regs_struct>::zeroed();
    // SAFETY: `out` has the type that this request fills.
    check(unsafe {
        libc::ptrace(libc::PTRACE_GETREGS, tid, ptr::null_mut::<u8>(), out.as_mut_ptr())
    })?;
    // SAFETY: all zeroes is a value of this plain struct, and the kernel filled it.
    Ok(unsafe { out.assume_init() })
}

fn set_registers(tid: Tid, registers: &libc::user_regs_struct) -> io::Result<()> {
    // SAFETY: the kernel only reads `registers`, which has the type that this request takes.
    check(unsafe {
        libc::ptrace(libc::PTRACE_SETREGS, tid, ptr::null_mut::<u8>(), ptr::from_ref(registers))
    })
    .map(drop)
}

/// The register with a call's result, for a dying thread without an exit stop. -ENOSYS: the call
/// never began.
pub(in crate::live) fn result_register(tid: Tid) -> io::Result<isize> {
    Ok(registers(tid)?.rax as isize)
}

/// The registers that a stack is unwound from: instruction pointer, stack pointer, frame pointer.
#[cfg(feature = "stacks")]
pub(in crate::live) fn stack_registers(tid: Tid) -> io::Result<[u64; 3]> {
    let registers = registers(tid)?;
    Ok([registers.rip, registers.rsp, registers.rbp])
}

/// Cancels the call of a thread at a seccomp event. The call fails with ENOSYS.
pub(in crate::live) fn refuse(tid: Tid) -> io::Result<()> {
    let mut registers = registers(tid)?;
    registers.orig_rax = u64::MAX;
    registers.rax = -i64::from(libc::ENOSYS) as u64;
    set_registers(tid, &registers)
}

/// Replaces the first argument of the call that a thread is about to make.
pub(in crate::live) fn set_first_argument(tid: Tid, value: usize) -> io::Result<()> {
    let mut registers = registers(tid)?;
    registers.rdi = value as u64;
    set_registers(tid, &registers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_decode() {
        assert_eq!(decode(0x2a00), Status::Exited(42));
        assert_eq!(decode(9), Status::Signaled(9));
        assert_eq!(decode(0x857f), Status::Syscall);
        assert_eq!(decode((libc::SIGRTMIN() << 8) | 0x7f), Status::Signal(libc::SIGRTMIN()));
        let exec = (libc::PTRACE_EVENT_EXEC << 16) | (libc::SIGTRAP << 8) | 0x7f;
        assert_eq!(decode(exec), Status::Event(libc::PTRACE_EVENT_EXEC, libc::SIGTRAP));
    }
}
