//! The calls by number.

use super::{Call, Outcome, file, memory, misc, process, signal, time, wait};
use crate::println;
use crate::stats::CALLS;
use core::sync::atomic::{AtomicBool, Ordering};
use linux_raw_sys::general::*;

/// A call.
pub(crate) type Function = fn(&mut Call<'_>) -> Outcome;

macro_rules! table {
    ($($number:ident $function:expr,)*) => {
        const fn table() -> [Option<(&'static str, Function)>; CALLS] {
            let mut table: [Option<(&'static str, Function)>; CALLS] = [None; CALLS];
            $(table[$number as usize] = Some((stringify!($number), $function));)*
            table
        }
    };
}

table! {
    __NR_mmap memory::mmap,
    __NR_munmap memory::munmap,
    __NR_mprotect memory::mprotect,
    __NR_mremap memory::mremap,
    __NR_brk memory::brk,
    __NR_madvise memory::madvise,
    __NR_mincore memory::mincore,
    __NR_mlock memory::mlock,
    __NR_mlock2 memory::mlock2,
    __NR_munlock memory::munlock,
    __NR_mlockall memory::mlockall,
    __NR_munlockall memory::munlockall,
    __NR_msync memory::msync,
    __NR_process_vm_readv |call| memory::process_vm(call, false),
    __NR_process_vm_writev |call| memory::process_vm(call, true),
    __NR_open file::open::open,
    __NR_openat file::open::openat,
    __NR_creat file::open::creat,
    __NR_close file::open::close,
    __NR_close_range file::open::close_range,
    __NR_dup file::open::dup,
    __NR_dup2 file::open::dup2,
    __NR_dup3 file::open::dup3,
    __NR_pipe file::open::pipe,
    __NR_pipe2 file::open::pipe2,
    __NR_memfd_create file::open::memfd_create,
    __NR_umask file::open::umask,
    __NR_fcntl file::control::fcntl,
    __NR_flock file::control::flock,
    __NR_ioctl file::control::ioctl,
    __NR_read file::transfer::read,
    __NR_write file::transfer::write,
    __NR_pread64 file::transfer::pread64,
    __NR_pwrite64 file::transfer::pwrite64,
    __NR_readv file::transfer::readv,
    __NR_writev file::transfer::writev,
    __NR_preadv file::transfer::preadv,
    __NR_pwritev file::transfer::pwritev,
    __NR_sendfile file::transfer::sendfile,
    __NR_copy_file_range file::transfer::copy_file_range,
    __NR_lseek file::size::lseek,
    __NR_truncate file::size::truncate,
    __NR_ftruncate file::size::ftruncate,
    __NR_fallocate file::size::fallocate,
    __NR_fsync file::size::fsync,
    __NR_fdatasync file::size::fsync,
    __NR_sync file::size::sync,
    __NR_syncfs file::size::syncfs,
    __NR_fadvise64 file::size::fadvise64,
    __NR_mkdir file::names::mkdir,
    __NR_mkdirat file::names::mkdirat,
    __NR_mknod file::names::mknod,
    __NR_mknodat file::names::mknodat,
    __NR_unlink file::names::unlink,
    __NR_unlinkat file::names::unlinkat,
    __NR_rmdir file::names::rmdir,
    __NR_rename file::names::rename,
    __NR_renameat file::names::renameat,
    __NR_renameat2 file::names::renameat2,
    __NR_link file::names::link,
    __NR_linkat file::names::linkat,
    __NR_symlink file::names::symlink,
    __NR_symlinkat file::names::symlinkat,
    __NR_readlink file::names::readlink,
    __NR_readlinkat file::names::readlinkat,
    __NR_chdir file::names::chdir,
    __NR_fchdir file::names::fchdir,
    __NR_getcwd file::names::getcwd,
    __NR_getdents64 file::names::getdents64,
    __NR_stat file::status::stat,
    __NR_lstat file::status::lstat,
    __NR_fstat file::status::fstat,
    __NR_newfstatat file::status::newfstatat,
    __NR_statx file::status::statx,
    __NR_statfs file::status::statfs,
    __NR_fstatfs file::status::fstatfs,
    __NR_access file::status::access,
    __NR_faccessat file::status::faccessat,
    __NR_faccessat2 file::status::faccessat2,
    __NR_chmod file::status::chmod,
    __NR_fchmod file::status::fchmod,
    __NR_fchmodat file::status::fchmodat,
    __NR_chown file::status::chown,
    __NR_lchown file::status::lchown,
    __NR_fchown file::status::fchown,
    __NR_fchownat file::status::fchownat,
    __NR_utimensat file::status::utimensat,
    __NR_utimes file::status::utimes,
    __NR_poll file::poll::poll,
    __NR_ppoll file::poll::ppoll,
    __NR_select file::poll::select,
    __NR_pselect6 file::poll::pselect6,
    __NR_clone process::clone,
    __NR_clone3 process::clone3,
    __NR_fork process::fork,
    __NR_vfork process::vfork,
    __NR_execve process::execve,
    __NR_exit process::exit,
    __NR_exit_group process::exit_group,
    __NR_wait4 wait::wait4,
    __NR_waitid wait::waitid,
    __NR_getpid process::getpid,
    __NR_gettid process::gettid,
    __NR_getppid process::getppid,
    __NR_getpgid process::getpgid,
    __NR_getpgrp process::getpgrp,
    __NR_setpgid process::setpgid,
    __NR_getsid process::getsid,
    __NR_setsid process::setsid,
    __NR_set_tid_address process::set_tid_address,
    __NR_getuid process::root,
    __NR_geteuid process::root,
    __NR_getgid process::root,
    __NR_getegid process::root,
    __NR_arch_prctl misc::arch_prctl,
    __NR_uname misc::uname,
    __NR_getrandom misc::getrandom,
    __NR_getcpu misc::getcpu,
    __NR_sched_yield |_| Err(super::Stop::Yield),
    __NR_sched_getaffinity misc::sched_getaffinity,
    __NR_sched_setaffinity misc::sched_setaffinity,
    __NR_prlimit64 misc::prlimit64,
    __NR_getrlimit misc::getrlimit,
    __NR_setrlimit misc::setrlimit,
    __NR_prctl misc::prctl,
    __NR_futex misc::futex,
    __NR_membarrier misc::membarrier,
    __NR_set_robust_list misc::set_robust_list,
    __NR_get_robust_list misc::get_robust_list,
    __NR_rt_sigaction signal::rt_sigaction,
    __NR_rt_sigprocmask signal::rt_sigprocmask,
    __NR_rt_sigpending signal::rt_sigpending,
    __NR_rt_sigtimedwait signal::rt_sigtimedwait,
    __NR_rt_sigqueueinfo signal::rt_sigqueueinfo,
    __NR_rt_tgsigqueueinfo signal::rt_tgsigqueueinfo,
    __NR_rt_sigsuspend signal::rt_sigsuspend,
    __NR_rt_sigreturn signal::rt_sigreturn,
    __NR_sigaltstack signal::sigaltstack,
    __NR_kill signal::kill,
    __NR_tkill signal::tkill,
    __NR_tgkill signal::tgkill,
    __NR_pause signal::pause,
    __NR_alarm signal::alarm,
    __NR_setitimer signal::setitimer,
    __NR_getitimer signal::getitimer,
    __NR_clock_gettime time::clock_gettime,
    __NR_clock_getres time::clock_getres,
    __NR_clock_nanosleep time::clock_nanosleep,
    __NR_nanosleep time::nanosleep,
    __NR_gettimeofday time::gettimeofday,
    __NR_time time::time,
    __NR_times time::times,
    __NR_getrusage time::getrusage,
    __NR_sysinfo time::sysinfo,
}

static TABLE: [Option<(&str, Function)>; CALLS] = table();

/// The call of this number, with its name.
pub(crate) fn find(number: usize) -> Option<(&'static str, Function)> {
    let (name, function) = (*TABLE.get(number)?)?;
    Some((name.trim_start_matches("__NR_"), function))
}

/// Calls that work while the kernel's heap is short: those that give back, end, wait or only look.
const IN_SHORTAGE: [u32; 19] = [
    __NR_exit,
    __NR_exit_group,
    __NR_munmap,
    __NR_brk,
    __NR_close,
    __NR_write,
    __NR_writev,
    __NR_read,
    __NR_wait4,
    __NR_waitid,
    __NR_futex,
    __NR_kill,
    __NR_tkill,
    __NR_tgkill,
    __NR_rt_sigreturn,
    __NR_rt_sigprocmask,
    __NR_sched_yield,
    __NR_nanosleep,
    __NR_unlink,
];

/// Whether a call is made while the kernel's heap is short. All others fail with ENOMEM.
pub(super) fn works_in_shortage(number: usize) -> bool {
    IN_SHORTAGE.contains(&(number as u32))
}

/// Calls that programs try and do without, whose absence is not told.
const EXPECTED: [u32; 1] = [__NR_rseq];

/// Tells of a call that is not there: once for each.
pub(super) fn complain(number: usize) {
    static TOLD: [AtomicBool; CALLS] = [const { AtomicBool::new(false) }; CALLS];
    // Relaxed: at worst it is told twice.
    let first = TOLD.get(number).is_none_or(|told| !told.swap(true, Ordering::Relaxed));
    if first && !EXPECTED.contains(&(number as u32)) {
        println!("samara: a program makes the call {number}, which is not there: ENOSYS");
    }
}
