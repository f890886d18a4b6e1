//! The kernel's calls that the tracer needs, each as a safe function.
//!
//! All unsafe code of the tracer is in this folder. A wrapper is safe because it hands the kernel
//! only memory that it owns for the time of the call and checks what comes back; none keeps a
//! pointer. Waiting and resuming follow the kernel's own rule that only the thread that attached
//! may ask: the process table never leaves its thread.

pub(super) mod beat;
mod inherited;
pub(super) mod pages;
pub(super) mod ptrace;
pub(super) mod spawn;

use std::{
    fs::File,
    io,
    mem::{MaybeUninit, size_of},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

/// A thread as the kernel numbers it (a process is its first thread).
pub(super) type Tid = libc::pid_t;

/// Turns the kernel's -1 into the error behind it.
fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Copies `out.len()` bytes at `address` of thread `tid`. Fails unless all of them are there.
pub(super) fn read_memory(tid: Tid, address: usize, out: &mut [u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: out.len() };
    // SAFETY: `local` describes `out`, which is ours to write; `remote` is only ever used as an
    // address of the other process, which the kernel checks.
    let got = check(unsafe { libc::process_vm_readv(tid, &local, 1, &remote, 1, 0) } as _)?;
    if got as usize == out.len() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EFAULT)) }
}

/// Writes a native word at `address` of thread `tid`.
pub(super) fn write_word(tid: Tid, address: usize, word: usize) -> io::Result<()> {
    let bytes = word.to_ne_bytes();
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: `local` describes `bytes`, which is only read; `remote` is only ever used as an
    // address of the other process, which the kernel checks.
    let put = check(unsafe { libc::process_vm_writev(tid, &local, 1, &remote, 1, 0) } as _)?;
    if put as usize == bytes.len() {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EFAULT))
    }
}

/// Reads `N` native words at `address` of thread `tid`.
pub(super) fn read_words<const N: usize>(tid: Tid, address: usize) -> io::Result<[usize; N]> {
    let mut bytes = vec![0u8; N * size_of::<usize>()];
    read_memory(tid, address, &mut bytes)?;
    let mut words = [0; N];
    for (word, chunk) in words.iter_mut().zip(bytes.as_chunks::<{ size_of::<usize>() }>().0) {
        *word = usize::from_ne_bytes(*chunk);
    }
    Ok(words)
}

/// A descriptor for thread `tid` itself, or for its process where the kernel knows no other.
pub(super) fn pidfd_open(tid: Tid) -> io::Result<OwnedFd> {
    let open = |flags: libc::c_uint| {
        // SAFETY: no memory is passed.
        check(unsafe { libc::syscall(libc::SYS_pidfd_open, tid, flags) })
    };
    // A flag that this kernel does not know is EINVAL (PIDFD_THREAD came with Linux 6.9).
    let fd = open(libc::O_EXCL as libc::c_uint).or_else(|_| open(0))?;
    // SAFETY: the kernel just made this descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// A copy of descriptor `fd` of the process behind `pidfd`: same open file description.
pub(super) fn pidfd_getfd(pidfd: BorrowedFd<'_>, fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let copy = check(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0) })?;
    // SAFETY: the kernel just made this descriptor for us; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy as RawFd) })
}

/// Whether two of our own descriptors are one open file description.
pub(super) fn same_file(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> io::Result<bool> {
    const KCMP_FILE: libc::c_int = 0;
    let pid = std::process::id();
    // SAFETY: no memory is passed.
    let order = check(unsafe {
        libc::syscall(libc::SYS_kcmp, pid, pid, KCMP_FILE, a.as_raw_fd(), b.as_raw_fd())
    })?;
    Ok(order == 0)
}

/// Whether two threads share one address space.
pub(super) fn same_space(a: Tid, b: Tid) -> io::Result<bool> {
    const KCMP_VM: libc::c_int = 1;
    // SAFETY: no memory is passed.
    let order = check(unsafe { libc::syscall(libc::SYS_kcmp, a, b, KCMP_VM, 0, 0) })?;
    Ok(order == 0)
}

/// What the file system of an open file is (its magic number), and whether its mount forbids
/// execution.
pub(super) fn file_system(fd: BorrowedFd<'_>) -> io::Result<(i64, bool)> {
    let mut out = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: `out` has the size that the kernel fills.
    check(unsafe { libc::fstatfs(fd.as_raw_fd(), out.as_mut_ptr()) } as _)?;
    let mut mount = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: `mount` has the size that the C library fills.
    check(unsafe { libc::fstatvfs(fd.as_raw_fd(), mount.as_mut_ptr()) } as _)?;
    // SAFETY: all zeroes is a value of these plain structs, and both were filled.
    let (out, mount) = unsafe { (out.assume_init(), mount.assume_init()) };
    Ok((out.f_type as _, mount.f_flag & libc::ST_NOEXEC != 0))
}

/// Whether an open file was opened for writing.
pub(super) fn is_writable(fd: BorrowedFd<'_>) -> io::Result<bool> {
    // SAFETY: no memory is passed.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) } as _)?;
    Ok(flags as i32 & libc::O_ACCMODE != libc::O_RDONLY)
}

/// Whether an open file is a memfd that is sealed against writes.
pub(super) fn is_sealed(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: no memory is passed.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    // A file that knows no seals says so by -1.
    seals > 0 && seals & (libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE) != 0
}

/// Sends `signal` to one process; a process that is already gone is no error.
pub(super) fn kill(pid: Tid, signal: libc::c_int) {
    // SAFETY: no memory is passed. The result says only that nobody is there any more.
    unsafe { libc::kill(pid, signal) };
}

/// The kernel's release, such as `6.18.2`.
pub(super) fn kernel_release() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned())
}

/// Whether this kernel can name anonymous memory: tried on a page of our own.
pub(super) fn names_anonymous_memory() -> bool {
    const PR_SET_VMA: libc::c_int = 0x5356_4d41;
    // SAFETY: a fresh private page that only this function knows; it is unmapped before return.
    // Naming memory changes no contents.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let page = libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, flags, -1, 0);
        if page == libc::MAP_FAILED {
            return false;
        }
        let named = libc::prctl(PR_SET_VMA, 0, page, 4096, c"samara".as_ptr()) == 0;
        libc::munmap(page, 4096);
        named
    }
}

/// Whether guard pages leave a flag on the VMA that holds them: tried on a page of our own.
pub(super) fn flags_guards() -> bool {
    const MADV_GUARD_INSTALL: libc::c_int = 102;
    // SAFETY: as for `names_anonymous_memory`; nobody touches the page, guarded or not.
    let page = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, flags, -1, 0)
    };
    if page == libc::MAP_FAILED {
        return false;
    }
    // SAFETY: the page is ours.
    let guarded = unsafe { libc::madvise(page, 4096, MADV_GUARD_INSTALL) } == 0;
    let flagged = guarded
        && std::fs::read_to_string("/proc/self/smaps").is_ok_and(|smaps| {
            smaps.lines().any(|line| line.starts_with("VmFlags:") && line.contains(" gu"))
        });
    // SAFETY: the page is ours and not used after.
    unsafe { libc::munmap(page, 4096) };
    flagged
}

/// Lets this process hold as many descriptors as it may. Returns how many; they are the limit of
/// this process alone, and of what it starts from now on.
pub(super) fn raise_descriptor_limit() -> u64 {
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open");
    let most = most.ok().and_then(|most| most.trim().parse().ok()).unwrap_or(0);
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is ours for all calls. Failure leaves the limit as it was, which is safe.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 {
            return u64::MAX;
        }
        // More than the hard limit needs privilege.
        let all = limit.rlim_max.max(most);
        let raised = libc::rlimit { rlim_cur: all, rlim_max: all };
        if libc::setrlimit(libc::RLIMIT_NOFILE, &raised) == 0 {
            return all;
        }
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        limit.rlim_cur
    }
}

/// Whether a limit on all its memory or on its data may stop calls of `tid`.
pub(super) fn is_limited(tid: Tid) -> bool {
    [libc::RLIMIT_AS, libc::RLIMIT_DATA].into_iter().any(|resource| {
        let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: 0 };
        // SAFETY: `limit` is ours; no new limit is passed.
        let asked = unsafe { libc::prlimit(tid, resource, std::ptr::null(), &mut limit) };
        asked == 0 && limit.rlim_cur != libc::RLIM_INFINITY
    })
}

/// What the scheduler says of a thread: `R` for one that runs or could, `S` and `D` for one that
/// sleeps, others for one that stopped or ended. `None`: there is no such thread.
pub(super) fn state(tid: Tid) -> Option<u8> {
    let stat = std::fs::read(format!("/proc/{tid}/stat")).ok()?;
    // The name may itself hold anything, but ends at the last parenthesis.
    let end = stat.iter().rposition(|&byte| byte == b')')?;
    stat.get(end + 2).copied()
}

/// Opens a file of /proc for one thread.
pub(super) fn proc_file(tid: Tid, name: &str) -> io::Result<File> {
    File::open(format!("/proc/{tid}/{name}"))
}
