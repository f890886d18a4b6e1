//! The system calls that the tracer needs, each as a safe function.
//!
//! All unsafe code of the tracer is in this folder. Each wrapper is safe, because it passes the
//! kernel only memory that it owns during the call, checks the result, and keeps no pointer. The
//! kernel requires that only the attaching thread waits and resumes, so the process table never
//! leaves its thread.

pub(super) mod heartbeat;
mod inherited;
pub(super) mod pages;
pub(super) mod ptrace;
pub(super) mod spawn;

use std::{
    fs::File,
    io::{self, Read},
    mem::{MaybeUninit, size_of},
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
};

/// A thread id of the kernel. A process has the id of its first thread.
pub(super) type Tid = libc::pid_t;

/// Turns a result of -1 into the error in errno.
fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Reads `out.len()` bytes at `address` of thread `tid`. Fails unless all of them can be read.
pub(super) fn read_memory(tid: Tid, address: usize, out: &mut [u8]) -> io::Result<()> {
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: out.len() };
    // SAFETY: `local` describes `out`, which this function may write. `remote` is only used as an
    // address of the other process, which the kernel checks.
    let got = check(unsafe { libc::process_vm_readv(tid, &local, 1, &remote, 1, 0) } as _)?;
    if got as usize == out.len() { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::EFAULT)) }
}

/// Reads memory of thread `tid` from `address` on, up to the first page that cannot be read.
/// Returns the number of bytes. One system call reads at most 1 MiB.
#[cfg(feature = "stacks")]
pub(super) fn read_pages(tid: Tid, address: usize, out: &mut [u8]) -> usize {
    const PAGE: usize = 4096;
    // The kernel reads whole pieces only. So each piece is a page.
    let mut pieces = Vec::with_capacity(out.len() / PAGE + 2);
    let (mut at, end) = (address, address.saturating_add(out.len()));
    while at < end && pieces.len() < 256 {
        let next = end.min((at | (PAGE - 1)).saturating_add(1));
        pieces.push(libc::iovec { iov_base: at as *mut libc::c_void, iov_len: next - at });
        at = next;
    }
    let local = libc::iovec { iov_base: out.as_mut_ptr().cast(), iov_len: out.len() };
    // SAFETY: `local` describes `out`, which this function may write. The pieces are only used as
    // addresses of the other process, which the kernel checks.
    let got =
        unsafe { libc::process_vm_readv(tid, &local, 1, pieces.as_ptr(), pieces.len() as _, 0) };
    usize::try_from(got).unwrap_or(0)
}

/// Writes a native word at `address` of thread `tid`.
pub(super) fn write_word(tid: Tid, address: usize, word: usize) -> io::Result<()> {
    let bytes = word.to_ne_bytes();
    let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let remote = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: `local` describes `bytes`, which is only read. `remote` is only used as an address of
    // the other process, which the kernel checks.
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

/// A pidfd for thread `tid`, or for its process if the kernel has no pidfds for threads.
pub(super) fn pidfd_open(tid: Tid) -> io::Result<OwnedFd> {
    let open = |flags: libc::c_uint| {
        // SAFETY: no memory is passed.
        check(unsafe { libc::syscall(libc::SYS_pidfd_open, tid, flags) })
    };
    // An unknown flag gives EINVAL (PIDFD_THREAD came with Linux 6.9).
    let fd = open(libc::O_EXCL as libc::c_uint).or_else(|_| open(0))?;
    // SAFETY: the kernel just made this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// A copy of descriptor `fd` of the process behind `pidfd`, with the same open file description.
pub(super) fn pidfd_getfd(pidfd: BorrowedFd<'_>, fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let copy = check(unsafe { libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), fd, 0) })?;
    // SAFETY: the kernel just made this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy as RawFd) })
}

/// Whether two descriptors of this process have the same open file description.
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

/// The magic number of an open file's file system, and whether its mount forbids execution.
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
    // A file without seals gives -1.
    seals > 0 && seals & (libc::F_SEAL_WRITE | libc::F_SEAL_FUTURE_WRITE) != 0
}

/// Sends `signal` to one process. It is no error if the process has ended.
pub(super) fn kill(pid: Tid, signal: libc::c_int) {
    // SAFETY: no memory is passed. The only possible failure is that the process has ended.
    unsafe { libc::kill(pid, signal) };
}

/// The kernel's release, such as `6.18.2`.
pub(super) fn kernel_release() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned())
}

/// Calls `test` with a new private page of this process; `None` if there is none.
fn with_page<T>(test: impl FnOnce(*mut libc::c_void) -> T) -> Option<T> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new map, at an address that the kernel chooses.
    let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, libc::PROT_READ, flags, -1, 0) };
    (page != libc::MAP_FAILED).then(|| {
        let result = test(page);
        // SAFETY: the page is ours, and `test` has ended.
        unsafe { libc::munmap(page, 4096) };
        result
    })
}

/// Whether this kernel can name anonymous memory.
pub(super) fn names_anonymous_memory() -> bool {
    const PR_SET_VMA: libc::c_int = 0x5356_4d41;
    // SAFETY: the page is ours. Naming memory changes no contents.
    let name = |page: *mut libc::c_void| unsafe {
        libc::prctl(PR_SET_VMA, 0, page, 4096, c"samara".as_ptr()) == 0
    };
    with_page(name).unwrap_or(false)
}

/// Calls `test` while a page of this process is guarded; `None` if it cannot be.
pub(super) fn with_guarded_page<T>(test: impl FnOnce() -> T) -> Option<T> {
    const MADV_GUARD_INSTALL: libc::c_int = 102;
    // SAFETY: the page is ours and never accessed, guarded or not.
    let guard = |page| unsafe { libc::madvise(page, 4096, MADV_GUARD_INSTALL) == 0 };
    with_page(|page| guard(page).then(test)).flatten()
}

/// Raises the descriptor limit of this process to its maximum, and returns it. The limit affects
/// only this process and processes that it starts later.
pub(super) fn raise_descriptor_limit() -> u64 {
    let most = std::fs::read_to_string("/proc/sys/fs/nr_open");
    let most = most.ok().and_then(|most| most.trim().parse().ok()).unwrap_or(0);
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is ours during all calls. On failure the limit stays unchanged, which is
    // safe.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) != 0 {
            return u64::MAX;
        }
        // Raising the hard limit needs privilege.
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

/// Whether RLIMIT_AS or RLIMIT_DATA may stop calls of `tid`.
pub(super) fn is_limited(tid: Tid) -> bool {
    [libc::RLIMIT_AS, libc::RLIMIT_DATA].into_iter().any(|resource| {
        let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: 0 };
        // SAFETY: `limit` is ours; no new limit is passed.
        let asked = unsafe { libc::prlimit(tid, resource, std::ptr::null(), &mut limit) };
        asked == 0 && limit.rlim_cur != libc::RLIM_INFINITY
    })
}

/// The scheduling state of a thread: `R` if it runs or is runnable, `S` and `D` if it sleeps,
/// others if it stopped or ended. `None`: there is no such thread.
pub(super) fn state(tid: Tid) -> Option<u8> {
    let mut stat = [0; 128];
    // For a process, as `/proc/TID/stat` is, the kernel goes through all of its threads.
    let file = proc_file(tid, &format!("task/{tid}/stat"));
    let read = file.and_then(|mut file| file.read(&mut stat)).ok()?;
    // The name has at most 64 bytes. It may contain anything, but ends at the last parenthesis.
    let end = stat[..read].iter().rposition(|&byte| byte == b')')?;
    stat.get(end + 2).copied()
}

/// The process of a thread; `None` if it has ended.
pub(super) fn process_of(tid: Tid) -> Option<Tid> {
    // The name in it may be no UTF-8.
    let status = std::fs::read(format!("/proc/{tid}/status")).ok()?;
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(b"Tgid:"))?;
    str::from_utf8(line).ok()?.trim().parse().ok()
}

/// Opens a file of a thread in `/proc`.
pub(super) fn proc_file(tid: Tid, name: &str) -> io::Result<File> {
    File::open(format!("/proc/{tid}/{name}"))
}
