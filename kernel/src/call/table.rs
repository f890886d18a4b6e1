//! The calls by number.

use super::file::attributes::{self, By};
use super::{
    Call, Outcome, capability, file, identity, memory, misc, names, process, schedule, shm, signal,
    time, timers, wait,
};
use crate::println;
use crate::stats::CALLS;
use crate::task::identity::Which;
use core::sync::atomic::{AtomicBool, Ordering};
use linux_raw_sys::errno::EINVAL;
use linux_raw_sys::general::*;

/// A call.
pub(crate) type Function = fn(&mut Call<'_>) -> Outcome;

#[derive(Clone, Copy)]
pub(crate) struct Entry {
    name: &'static str,
    /// The arguments of 32 bits: a bit for each.
    ints: u8,
    pub(super) function: Function,
}

/// The number, the places of the arguments that Linux declares as int or unsigned int, and the
/// function.
macro_rules! table {
    ($($number:ident [$($int:literal)*] $function:expr,)*) => {
        const fn table() -> [Option<Entry>; CALLS] {
            let mut table: [Option<Entry>; CALLS] = [None; CALLS];
            $(table[$number as usize] = Some(Entry {
                name: stringify!($number),
                ints: $(1 << $int |)* 0,
                function: $function,
            });)*
            table
        }
    };
}

table! {
    __NR_mmap [] memory::mmap,
    __NR_munmap [] memory::munmap,
    __NR_mprotect [] memory::mprotect,
    __NR_mremap [] memory::mremap,
    __NR_brk [] memory::brk,
    __NR_madvise [2] memory::madvise,
    __NR_mincore [] memory::mincore,
    __NR_mlock [] memory::mlock,
    __NR_mlock2 [2] memory::mlock2,
    __NR_munlock [] memory::munlock,
    __NR_mlockall [0] memory::mlockall,
    __NR_munlockall [] memory::munlockall,
    __NR_msync [2] memory::msync,
    __NR_mseal [] memory::mseal,
    __NR_process_vm_readv [0] |call| memory::process_vm(call, false),
    __NR_process_vm_writev [0] |call| memory::process_vm(call, true),
    __NR_open [1 2] file::open::open,
    __NR_openat [0 2 3] file::open::openat,
    __NR_creat [1] file::open::creat,
    __NR_close [0] file::open::close,
    __NR_close_range [0 1 2] file::open::close_range,
    __NR_dup [0] file::open::dup,
    __NR_dup2 [0 1] file::open::dup2,
    __NR_dup3 [0 1 2] file::open::dup3,
    __NR_pipe [] file::open::pipe,
    __NR_pipe2 [1] file::open::pipe2,
    __NR_userfaultfd [0] file::monitor::userfaultfd,
    __NR_memfd_create [1] file::open::memfd_create,
    __NR_umask [0] file::open::umask,
    __NR_fcntl [0 1] file::control::fcntl,
    __NR_flock [0 1] file::control::flock,
    __NR_ioctl [0 1] file::control::ioctl,
    __NR_read [0] file::transfer::read,
    __NR_write [0] file::transfer::write,
    __NR_pread64 [0] file::transfer::pread64,
    __NR_pwrite64 [0] file::transfer::pwrite64,
    __NR_readv [0] file::transfer::readv,
    __NR_writev [0] file::transfer::writev,
    __NR_preadv [0] file::transfer::preadv,
    __NR_pwritev [0] file::transfer::pwritev,
    __NR_vmsplice [0 3] file::transfer::vmsplice,
    __NR_sendfile [0 1] file::copy::sendfile,
    __NR_copy_file_range [0 2 5] file::copy::copy_file_range,
    __NR_lseek [0 2] file::size::lseek,
    __NR_truncate [] file::size::truncate,
    __NR_ftruncate [0] file::size::ftruncate,
    __NR_fallocate [0 1] file::size::fallocate,
    __NR_fsync [0] file::size::fsync,
    __NR_fdatasync [0] file::size::fsync,
    __NR_sync [] file::size::sync,
    __NR_syncfs [0] file::size::syncfs,
    __NR_fadvise64 [0 3] file::size::fadvise64,
    __NR_mkdir [1] file::names::mkdir,
    __NR_mkdirat [0 2] file::names::mkdirat,
    __NR_mknod [1 2] file::names::mknod,
    __NR_mknodat [0 2 3] file::names::mknodat,
    __NR_unlink [] file::names::unlink,
    __NR_unlinkat [0 2] file::names::unlinkat,
    __NR_rmdir [] file::names::rmdir,
    __NR_rename [] file::names::rename,
    __NR_renameat [0 2] file::names::renameat,
    __NR_renameat2 [0 2 4] file::names::renameat2,
    __NR_link [] file::names::link,
    __NR_linkat [0 2 4] file::names::linkat,
    __NR_symlink [] file::names::symlink,
    __NR_symlinkat [1] file::names::symlinkat,
    __NR_readlink [2] file::names::readlink,
    __NR_readlinkat [0 3] file::names::readlinkat,
    __NR_chdir [] file::names::chdir,
    __NR_fchdir [0] file::names::fchdir,
    __NR_getcwd [] file::names::getcwd,
    __NR_getdents64 [0 2] file::names::getdents64,
    __NR_stat [] file::status::stat,
    __NR_lstat [] file::status::lstat,
    __NR_fstat [0] file::status::fstat,
    __NR_newfstatat [0 3] file::status::newfstatat,
    __NR_statx [0 2 3] file::status::statx,
    __NR_statfs [] file::status::statfs,
    __NR_fstatfs [0] file::status::fstatfs,
    __NR_access [1] file::status::access,
    __NR_faccessat [0 2] file::status::faccessat,
    __NR_faccessat2 [0 2 3] file::status::faccessat2,
    __NR_chmod [1] file::status::chmod,
    __NR_fchmod [0 1] file::status::fchmod,
    __NR_fchmodat [0 2] file::status::fchmodat,
    __NR_chown [1 2] file::status::chown,
    __NR_lchown [1 2] file::status::lchown,
    __NR_fchown [0 1 2] file::status::fchown,
    __NR_fchownat [0 2 3 4] file::status::fchownat,
    __NR_utimensat [0 3] file::status::utimensat,
    __NR_utimes [] file::status::utimes,
    __NR_poll [1 2] file::poll::poll,
    __NR_ppoll [1] file::poll::ppoll,
    __NR_select [0] file::poll::select,
    __NR_pselect6 [0] file::poll::pselect6,
    __NR_epoll_create [0] file::epoll::epoll_create,
    __NR_epoll_create1 [0] file::epoll::epoll_create1,
    __NR_epoll_ctl [0 1 2] file::epoll::epoll_ctl,
    __NR_epoll_wait [0 2 3] file::epoll::epoll_wait,
    __NR_epoll_pwait [0 2 3] file::epoll::epoll_pwait,
    __NR_epoll_pwait2 [0 2] file::epoll::epoll_pwait2,
    __NR_eventfd [0] file::eventfd::eventfd,
    __NR_eventfd2 [0 1] file::eventfd::eventfd2,
    __NR_timerfd_create [0 1] file::timerfd::timerfd_create,
    __NR_timerfd_settime [0 1] file::timerfd::timerfd_settime,
    __NR_timerfd_gettime [0] file::timerfd::timerfd_gettime,
    __NR_socket [0 1 2] file::socket::socket,
    __NR_socketpair [0 1 2] file::socket::socketpair,
    __NR_bind [0 2] file::socket::bind,
    __NR_listen [0 1] file::socket::listen,
    __NR_accept [0] file::socket::accept,
    __NR_accept4 [0 3] file::socket::accept4,
    __NR_connect [0 2] file::socket::connect,
    __NR_getsockname [0] file::socket::getsockname,
    __NR_getpeername [0] file::socket::getpeername,
    __NR_shutdown [0 1] file::socket::shutdown,
    __NR_getsockopt [0 1 2] file::socket::option::getsockopt,
    __NR_setsockopt [0 1 2 4] file::socket::option::setsockopt,
    __NR_sendto [0 3 5] file::socket::message::sendto,
    __NR_recvfrom [0 3] file::socket::message::recvfrom,
    __NR_sendmsg [0 2] file::socket::message::sendmsg,
    __NR_recvmsg [0 2] file::socket::message::recvmsg,
    __NR_sendmmsg [0 2 3] file::socket::message::sendmmsg,
    __NR_recvmmsg [0 2 3] file::socket::message::recvmmsg,
    __NR_clone [] process::clone,
    __NR_clone3 [] process::clone3,
    __NR_fork [] process::fork,
    __NR_vfork [] process::vfork,
    __NR_execve [] process::execve,
    __NR_exit [0] process::exit,
    __NR_exit_group [0] process::exit_group,
    __NR_wait4 [0 2] wait::wait4,
    __NR_waitid [0 1 3] wait::waitid,
    __NR_getpid [] process::getpid,
    __NR_gettid [] process::gettid,
    __NR_getppid [] process::getppid,
    __NR_getpgid [0] process::getpgid,
    __NR_getpgrp [] process::getpgrp,
    __NR_setpgid [0 1] process::setpgid,
    __NR_getsid [0] process::getsid,
    __NR_setsid [] process::setsid,
    __NR_set_tid_address [] process::set_tid_address,
    __NR_getuid [] |call| identity::get(call, Which::User, 0),
    __NR_geteuid [] |call| identity::get(call, Which::User, 1),
    __NR_getgid [] |call| identity::get(call, Which::Group, 0),
    __NR_getegid [] |call| identity::get(call, Which::Group, 1),
    __NR_getresuid [] |call| identity::get_three(call, Which::User),
    __NR_getresgid [] |call| identity::get_three(call, Which::Group),
    __NR_setuid [0] |call| identity::set(call, Which::User),
    __NR_setgid [0] |call| identity::set(call, Which::Group),
    __NR_setreuid [0 1] |call| identity::set_two(call, Which::User),
    __NR_setregid [0 1] |call| identity::set_two(call, Which::Group),
    __NR_setresuid [0 1 2] |call| identity::set_three(call, Which::User),
    __NR_setresgid [0 1 2] |call| identity::set_three(call, Which::Group),
    __NR_setfsuid [0] |call| identity::set_of_files(call, Which::User),
    __NR_setfsgid [0] |call| identity::set_of_files(call, Which::Group),
    __NR_getgroups [0] identity::getgroups,
    __NR_setgroups [0] identity::setgroups,
    __NR_getpriority [0 1] schedule::getpriority,
    __NR_setpriority [0 1 2] schedule::setpriority,
    __NR_sched_getparam [0] schedule::sched_getparam,
    __NR_sched_setparam [0] schedule::sched_setparam,
    __NR_sched_getscheduler [0] schedule::sched_getscheduler,
    __NR_sched_setscheduler [0 1] schedule::sched_setscheduler,
    __NR_sched_get_priority_max [0] |call| schedule::priority_range(call, false),
    __NR_sched_get_priority_min [0] |call| schedule::priority_range(call, true),
    __NR_sched_rr_get_interval [0] schedule::sched_rr_get_interval,
    __NR_sched_getattr [0 2 3] schedule::sched_getattr,
    __NR_sched_setattr [0 2] schedule::sched_setattr,
    __NR_timer_create [0] timers::timer_create,
    __NR_timer_settime [0 1] timers::timer_settime,
    __NR_timer_gettime [0] timers::timer_gettime,
    __NR_timer_getoverrun [0] timers::timer_getoverrun,
    __NR_timer_delete [0] timers::timer_delete,
    __NR_pidfd_open [0 1] file::pidfd::pidfd_open,
    __NR_pidfd_send_signal [0 1 3] file::pidfd::pidfd_send_signal,
    __NR_pidfd_getfd [0 1 2] file::pidfd::pidfd_getfd,
    __NR_process_madvise [0 3 4] file::pidfd::process_madvise,
    __NR_shmget [0 2] shm::shmget,
    __NR_shmat [0 2] shm::shmat,
    __NR_shmdt [] shm::shmdt,
    __NR_shmctl [0 1] shm::shmctl,
    __NR_remap_file_pages [] memory::remap_file_pages,
    __NR_pkey_alloc [] memory::pkey_alloc,
    __NR_pkey_free [0] |_| super::fail(EINVAL),
    __NR_pkey_mprotect [3] memory::pkey_mprotect,
    __NR_getxattr [] |call| attributes::get(call, By::Path),
    __NR_lgetxattr [] |call| attributes::get(call, By::Link),
    __NR_fgetxattr [0] |call| attributes::get(call, By::Descriptor),
    __NR_setxattr [4] |call| attributes::set(call, By::Path),
    __NR_lsetxattr [4] |call| attributes::set(call, By::Link),
    __NR_fsetxattr [0 4] |call| attributes::set(call, By::Descriptor),
    __NR_listxattr [] |call| attributes::list(call, By::Path),
    __NR_llistxattr [] |call| attributes::list(call, By::Link),
    __NR_flistxattr [0] |call| attributes::list(call, By::Descriptor),
    __NR_removexattr [] |call| attributes::get(call, By::Path),
    __NR_lremovexattr [] |call| attributes::get(call, By::Link),
    __NR_fremovexattr [0] |call| attributes::get(call, By::Descriptor),
    __NR_arch_prctl [0] misc::arch_prctl,
    __NR_uname [] misc::uname,
    __NR_getrandom [2] misc::getrandom,
    __NR_getcpu [] misc::getcpu,
    __NR_sched_yield [] |_| Err(super::Stop::Yield),
    __NR_sched_getaffinity [0 1] misc::sched_getaffinity,
    __NR_sched_setaffinity [0 1] misc::sched_setaffinity,
    __NR_prlimit64 [0 1] misc::prlimit64,
    __NR_getrlimit [0] misc::getrlimit,
    __NR_setrlimit [0] misc::setrlimit,
    __NR_capget [] capability::capget,
    __NR_capset [] capability::capset,
    __NR_prctl [0] misc::prctl,
    __NR_futex [1 2 5] misc::futex,
    __NR_membarrier [0 1 2] misc::membarrier,
    __NR_set_robust_list [] misc::set_robust_list,
    __NR_get_robust_list [0] misc::get_robust_list,
    __NR_rt_sigaction [0] signal::rt_sigaction,
    __NR_rt_sigprocmask [0] signal::rt_sigprocmask,
    __NR_rt_sigpending [] signal::rt_sigpending,
    __NR_rt_sigtimedwait [] signal::rt_sigtimedwait,
    __NR_rt_sigqueueinfo [0 1] signal::rt_sigqueueinfo,
    __NR_rt_tgsigqueueinfo [0 1 2] signal::rt_tgsigqueueinfo,
    __NR_rt_sigsuspend [] signal::rt_sigsuspend,
    __NR_rt_sigreturn [] signal::rt_sigreturn,
    __NR_sigaltstack [] signal::sigaltstack,
    __NR_kill [0 1] signal::kill,
    __NR_tkill [0 1] signal::tkill,
    __NR_tgkill [0 1 2] signal::tgkill,
    __NR_pause [] signal::pause,
    __NR_alarm [0] signal::alarm,
    __NR_setitimer [0] signal::setitimer,
    __NR_getitimer [0] signal::getitimer,
    __NR_clock_gettime [0] time::clock_gettime,
    __NR_clock_getres [0] time::clock_getres,
    __NR_clock_nanosleep [0 1] time::clock_nanosleep,
    __NR_nanosleep [] time::nanosleep,
    __NR_gettimeofday [] time::gettimeofday,
    __NR_time [] time::time,
    __NR_times [] time::times,
    __NR_getrusage [0] time::getrusage,
    __NR_sysinfo [] time::sysinfo,
}

static TABLE: [Option<Entry>; CALLS] = table();

/// The call of this number.
pub(crate) fn find(number: usize) -> Option<&'static Entry> {
    TABLE.get(number)?.as_ref()
}

impl Entry {
    pub(crate) fn name(&self) -> &'static str {
        self.name.trim_start_matches("__NR_")
    }

    /// The arguments, without the upper halves of those of 32 bits: programs may leave anything
    /// there.
    pub(super) fn arguments(&self, mut args: [u64; 6]) -> [u64; 6] {
        for (place, argument) in args.iter_mut().enumerate() {
            if self.ints & 1 << place != 0 {
                *argument = u64::from(*argument as u32);
            }
        }
        args
    }
}

/// Calls that work while the kernel's heap is short: those that give back, end, wait or only look.
const IN_SHORTAGE: [u32; 22] = [
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
    __NR_epoll_wait,
    __NR_epoll_pwait,
    __NR_epoll_pwait2,
];

/// Whether a call is made while the kernel's heap is short. All others fail with ENOMEM.
pub(super) fn works_in_shortage(number: usize) -> bool {
    IN_SHORTAGE.contains(&(number as u32))
}

/// Calls that programs try and do without, whose absence is not told.
const EXPECTED: [u32; 1] = [__NR_rseq];

/// Tells of a call that is not there: once for each, on a line of its own.
pub(super) fn complain(number: usize) {
    static TOLD: [AtomicBool; CALLS] = [const { AtomicBool::new(false) }; CALLS];
    // Relaxed: at worst it is told twice.
    let first = TOLD.get(number).is_none_or(|told| !told.swap(true, Ordering::Relaxed));
    if first && !EXPECTED.contains(&(number as u32)) {
        match names::missing(number) {
            Some(name) => println!("samara: there is no call {name}: ENOSYS"),
            None => println!("samara: there is no call {number}: ENOSYS"),
        }
    }
}
