//! The calls by number.

use super::file::transfer::Form;
use super::file::xattr::{self, By};
use super::{
    Call, Outcome, capability, credentials, file, memory, misc, missing, process, schedule, shm,
    signal, time, timers, wait,
};
use crate::println;
use crate::stats::CALLS;
use crate::task::credentials::IdKind;
use core::sync::atomic::{AtomicBool, Ordering};
use linux_raw_sys::errno::EINVAL;
use linux_raw_sys::general::*;

/// A call.
pub(crate) type Function = fn(&mut Call<'_>) -> Outcome;

#[derive(Clone, Copy)]
pub(crate) struct SystemCall {
    name: &'static str,
    signature: &'static str,
    /// The arguments of 32 bits: a bit for each.
    ints: u8,
    pub(super) function: Function,
}

/// The number, the arguments, and the function. A letter for each argument says how `strace` shows
/// it. Those that Linux declares as int or unsigned int are `d`, `x` for flags, and `o` for a mode;
/// of 64 bits are `n` for a number, `a` for an address and all else, `p` for a path or a name, and
/// `w` for bytes that are written, as many as the next argument says.
macro_rules! table {
    ($($number:ident $signature:literal $function:expr,)*) => {
        const fn table() -> [Option<SystemCall>; CALLS] {
            let mut table: [Option<SystemCall>; CALLS] = [None; CALLS];
            $(table[$number as usize] = Some(SystemCall {
                name: stringify!($number),
                signature: $signature,
                ints: ints($signature),
                function: $function,
            });)*
            table
        }
    };
}

/// The places of the arguments of 32 bits: a bit for each.
const fn ints(signature: &str) -> u8 {
    let (letters, mut place, mut ints) = (signature.as_bytes(), 0, 0);
    while place < letters.len() {
        if matches!(letters[place], b'd' | b'x' | b'o') {
            ints |= 1 << place;
        }
        place += 1;
    }
    ints
}

table! {
    __NR_mmap "anaaan" memory::mmap,
    __NR_munmap "an" memory::munmap,
    __NR_mprotect "ana" memory::mprotect,
    __NR_mremap "annaa" memory::mremap,
    __NR_brk "a" memory::brk,
    __NR_madvise "and" memory::madvise,
    __NR_mincore "ana" memory::mincore,
    __NR_mlock "an" memory::mlock,
    __NR_mlock2 "anx" memory::mlock2,
    __NR_munlock "an" memory::munlock,
    __NR_mlockall "x" memory::mlockall,
    __NR_munlockall "" memory::munlockall,
    __NR_msync "anx" memory::msync,
    __NR_mseal "ana" memory::mseal,
    __NR_process_vm_readv "danana" |call| memory::process_vm(call, false),
    __NR_process_vm_writev "danana" |call| memory::process_vm(call, true),
    __NR_open "pxo" file::open::open,
    __NR_openat "dpxo" file::open::openat,
    __NR_creat "po" file::open::creat,
    __NR_close "d" file::open::close,
    __NR_close_range "ddx" file::open::close_range,
    __NR_dup "d" file::open::dup,
    __NR_dup2 "dd" file::open::dup2,
    __NR_dup3 "ddx" file::open::dup3,
    __NR_pipe "a" file::open::pipe,
    __NR_pipe2 "ax" file::open::pipe2,
    __NR_userfaultfd "x" file::userfaultfd::userfaultfd,
    __NR_memfd_create "px" file::open::memfd_create,
    __NR_umask "o" file::open::umask,
    __NR_fcntl "dda" file::control::fcntl,
    __NR_flock "dd" file::control::flock,
    __NR_ioctl "dxa" file::control::ioctl,
    __NR_read "dan" |call| file::transfer::read(call, Form::ONE),
    __NR_write "dwn" |call| file::transfer::write(call, Form::ONE),
    __NR_pread64 "dann" |call| file::transfer::read(call, Form::ONE_AT),
    __NR_pwrite64 "dwnn" |call| file::transfer::write(call, Form::ONE_AT),
    __NR_readv "dan" |call| file::transfer::read(call, Form::VECTOR),
    __NR_writev "dan" |call| file::transfer::write(call, Form::VECTOR),
    __NR_preadv "dann" |call| file::transfer::read(call, Form::VECTOR_AT),
    __NR_pwritev "dann" |call| file::transfer::write(call, Form::VECTOR_AT),
    __NR_vmsplice "danx" file::transfer::vmsplice,
    __NR_sendfile "ddan" file::copy::sendfile,
    __NR_copy_file_range "dadanx" file::copy::copy_file_range,
    __NR_lseek "dnd" file::size::lseek,
    __NR_truncate "pn" file::size::truncate,
    __NR_ftruncate "dn" file::size::ftruncate,
    __NR_fallocate "dxnn" file::size::fallocate,
    __NR_fsync "d" file::size::fsync,
    __NR_fdatasync "d" file::size::fsync,
    __NR_sync "" file::size::sync,
    __NR_syncfs "d" file::size::syncfs,
    __NR_sync_file_range "dnnx" file::size::sync_file_range,
    __NR_fadvise64 "dnnd" file::size::fadvise64,
    __NR_mkdir "po" file::names::mkdir,
    __NR_mkdirat "dpo" file::names::mkdirat,
    __NR_mknod "pox" file::names::mknod,
    __NR_mknodat "dpox" file::names::mknodat,
    __NR_unlink "p" file::names::unlink,
    __NR_unlinkat "dpx" file::names::unlinkat,
    __NR_rmdir "p" file::names::rmdir,
    __NR_rename "pp" file::names::rename,
    __NR_renameat "dpdp" file::names::renameat,
    __NR_renameat2 "dpdpx" file::names::renameat2,
    __NR_link "pp" file::names::link,
    __NR_linkat "dpdpx" file::names::linkat,
    __NR_symlink "pp" file::names::symlink,
    __NR_symlinkat "pdp" file::names::symlinkat,
    __NR_readlink "pad" file::names::readlink,
    __NR_readlinkat "dpad" file::names::readlinkat,
    __NR_chdir "p" file::names::chdir,
    __NR_fchdir "d" file::names::fchdir,
    __NR_getcwd "an" file::names::getcwd,
    __NR_getdents64 "dad" file::names::getdents64,
    __NR_stat "pa" file::status::stat,
    __NR_lstat "pa" file::status::lstat,
    __NR_fstat "da" file::status::fstat,
    __NR_newfstatat "dpax" file::status::newfstatat,
    __NR_statx "dpxxa" file::status::statx,
    __NR_statfs "pa" file::status::statfs,
    __NR_fstatfs "da" file::status::fstatfs,
    __NR_access "po" file::status::access,
    __NR_faccessat "dpo" file::status::faccessat,
    __NR_faccessat2 "dpox" file::status::faccessat2,
    __NR_chmod "po" file::status::chmod,
    __NR_fchmod "do" file::status::fchmod,
    __NR_fchmodat "dpo" file::status::fchmodat,
    __NR_chown "pdd" file::status::chown,
    __NR_lchown "pdd" file::status::lchown,
    __NR_fchown "ddd" file::status::fchown,
    __NR_fchownat "dpddx" file::status::fchownat,
    __NR_utimensat "dpax" file::status::utimensat,
    __NR_utimes "pa" file::status::utimes,
    __NR_poll "add" file::poll::poll,
    __NR_ppoll "adaan" file::poll::ppoll,
    __NR_select "daaaa" file::poll::select,
    __NR_pselect6 "daaaaa" file::poll::pselect6,
    __NR_epoll_create "d" file::epoll::epoll_create,
    __NR_epoll_create1 "x" file::epoll::epoll_create1,
    __NR_epoll_ctl "ddda" file::epoll::epoll_ctl,
    __NR_epoll_wait "dadd" file::epoll::epoll_wait,
    __NR_epoll_pwait "daddan" file::epoll::epoll_pwait,
    __NR_epoll_pwait2 "dadaan" file::epoll::epoll_pwait2,
    __NR_eventfd "d" file::eventfd::eventfd,
    __NR_eventfd2 "dx" file::eventfd::eventfd2,
    __NR_timerfd_create "dx" file::timerfd::timerfd_create,
    __NR_timerfd_settime "dxaa" file::timerfd::timerfd_settime,
    __NR_timerfd_gettime "da" file::timerfd::timerfd_gettime,
    __NR_socket "dxd" file::socket::socket,
    __NR_socketpair "dxda" file::socket::socketpair,
    __NR_bind "dad" file::socket::bind,
    __NR_listen "dd" file::socket::listen,
    __NR_accept "daa" file::socket::accept,
    __NR_accept4 "daax" file::socket::accept4,
    __NR_connect "dad" file::socket::connect,
    __NR_getsockname "daa" file::socket::getsockname,
    __NR_getpeername "daa" file::socket::getpeername,
    __NR_shutdown "dd" file::socket::shutdown,
    __NR_getsockopt "dddaa" file::socket::option::getsockopt,
    __NR_setsockopt "dddad" file::socket::option::setsockopt,
    __NR_sendto "dwnxad" file::socket::message::sendto,
    __NR_recvfrom "danxaa" file::socket::message::recvfrom,
    __NR_sendmsg "dax" file::socket::message::sendmsg,
    __NR_recvmsg "dax" file::socket::message::recvmsg,
    __NR_sendmmsg "dadx" file::socket::message::sendmmsg,
    __NR_recvmmsg "dadxa" file::socket::message::recvmmsg,
    __NR_clone "aaaaa" process::clone,
    __NR_clone3 "an" process::clone3,
    __NR_fork "" process::fork,
    __NR_vfork "" process::vfork,
    __NR_execve "paa" process::execve,
    __NR_exit "d" process::exit,
    __NR_exit_group "d" process::exit_group,
    __NR_wait4 "daxa" wait::wait4,
    __NR_waitid "ddaxa" wait::waitid,
    __NR_getpid "" process::getpid,
    __NR_gettid "" process::gettid,
    __NR_getppid "" process::getppid,
    __NR_getpgid "d" process::getpgid,
    __NR_getpgrp "" process::getpgrp,
    __NR_setpgid "dd" process::setpgid,
    __NR_getsid "d" process::getsid,
    __NR_setsid "" process::setsid,
    __NR_set_tid_address "a" process::set_tid_address,
    __NR_getuid "" |call| credentials::get(call, IdKind::User, 0),
    __NR_geteuid "" |call| credentials::get(call, IdKind::User, 1),
    __NR_getgid "" |call| credentials::get(call, IdKind::Group, 0),
    __NR_getegid "" |call| credentials::get(call, IdKind::Group, 1),
    __NR_getresuid "aaa" |call| credentials::get_three(call, IdKind::User),
    __NR_getresgid "aaa" |call| credentials::get_three(call, IdKind::Group),
    __NR_setuid "d" |call| credentials::set(call, IdKind::User),
    __NR_setgid "d" |call| credentials::set(call, IdKind::Group),
    __NR_setreuid "dd" |call| credentials::set_two(call, IdKind::User),
    __NR_setregid "dd" |call| credentials::set_two(call, IdKind::Group),
    __NR_setresuid "ddd" |call| credentials::set_three(call, IdKind::User),
    __NR_setresgid "ddd" |call| credentials::set_three(call, IdKind::Group),
    __NR_setfsuid "d" |call| credentials::set_of_files(call, IdKind::User),
    __NR_setfsgid "d" |call| credentials::set_of_files(call, IdKind::Group),
    __NR_getgroups "da" credentials::getgroups,
    __NR_setgroups "da" credentials::setgroups,
    __NR_getpriority "dd" schedule::getpriority,
    __NR_setpriority "ddd" schedule::setpriority,
    __NR_sched_getparam "da" schedule::sched_getparam,
    __NR_sched_setparam "da" schedule::sched_setparam,
    __NR_sched_getscheduler "d" schedule::sched_getscheduler,
    __NR_sched_setscheduler "dda" schedule::sched_setscheduler,
    __NR_sched_get_priority_max "d" |call| schedule::priority_range(call, false),
    __NR_sched_get_priority_min "d" |call| schedule::priority_range(call, true),
    __NR_sched_rr_get_interval "da" schedule::sched_rr_get_interval,
    __NR_sched_getattr "dadx" schedule::sched_getattr,
    __NR_sched_setattr "dax" schedule::sched_setattr,
    __NR_timer_create "daa" timers::timer_create,
    __NR_timer_settime "dxaa" timers::timer_settime,
    __NR_timer_gettime "da" timers::timer_gettime,
    __NR_timer_getoverrun "d" timers::timer_getoverrun,
    __NR_timer_delete "d" timers::timer_delete,
    __NR_pidfd_open "dx" file::pidfd::pidfd_open,
    __NR_pidfd_send_signal "ddax" file::pidfd::pidfd_send_signal,
    __NR_pidfd_getfd "ddx" file::pidfd::pidfd_getfd,
    __NR_process_madvise "dandx" file::pidfd::process_madvise,
    __NR_shmget "dnx" shm::shmget,
    __NR_shmat "dax" shm::shmat,
    __NR_shmdt "a" shm::shmdt,
    __NR_shmctl "dda" shm::shmctl,
    __NR_remap_file_pages "annna" memory::remap_file_pages,
    __NR_pkey_alloc "aa" memory::pkey_alloc,
    __NR_pkey_free "d" |_| super::fail(EINVAL),
    __NR_pkey_mprotect "anad" memory::pkey_mprotect,
    __NR_getxattr "ppan" |call| xattr::get(call, By::Path),
    __NR_lgetxattr "ppan" |call| xattr::get(call, By::Link),
    __NR_fgetxattr "dpan" |call| xattr::get(call, By::Descriptor),
    __NR_setxattr "ppanx" |call| xattr::set(call, By::Path),
    __NR_lsetxattr "ppanx" |call| xattr::set(call, By::Link),
    __NR_fsetxattr "dpanx" |call| xattr::set(call, By::Descriptor),
    __NR_listxattr "pan" |call| xattr::list(call, By::Path),
    __NR_llistxattr "pan" |call| xattr::list(call, By::Link),
    __NR_flistxattr "dan" |call| xattr::list(call, By::Descriptor),
    __NR_removexattr "pp" |call| xattr::get(call, By::Path),
    __NR_lremovexattr "pp" |call| xattr::get(call, By::Link),
    __NR_fremovexattr "dp" |call| xattr::get(call, By::Descriptor),
    __NR_arch_prctl "xa" misc::arch_prctl,
    __NR_uname "a" misc::uname,
    __NR_getrandom "anx" misc::getrandom,
    __NR_getcpu "aaa" misc::getcpu,
    __NR_sched_yield "" |_| Err(super::Stop::Yield),
    __NR_sched_getaffinity "dda" misc::sched_getaffinity,
    __NR_sched_setaffinity "dda" misc::sched_setaffinity,
    __NR_prlimit64 "ddaa" misc::prlimit64,
    __NR_getrlimit "da" misc::getrlimit,
    __NR_setrlimit "da" misc::setrlimit,
    __NR_capget "aa" capability::capget,
    __NR_capset "aa" capability::capset,
    __NR_prctl "daaaa" misc::prctl,
    __NR_futex "axdaad" misc::futex,
    __NR_membarrier "dxd" misc::membarrier,
    __NR_set_robust_list "an" misc::set_robust_list,
    __NR_get_robust_list "daa" misc::get_robust_list,
    __NR_rt_sigaction "daan" signal::rt_sigaction,
    __NR_rt_sigprocmask "daan" signal::rt_sigprocmask,
    __NR_rt_sigpending "an" signal::rt_sigpending,
    __NR_rt_sigtimedwait "aaan" signal::rt_sigtimedwait,
    __NR_rt_sigqueueinfo "dda" signal::rt_sigqueueinfo,
    __NR_rt_tgsigqueueinfo "ddda" signal::rt_tgsigqueueinfo,
    __NR_rt_sigsuspend "an" signal::rt_sigsuspend,
    __NR_rt_sigreturn "" signal::rt_sigreturn,
    __NR_sigaltstack "aa" signal::sigaltstack,
    __NR_kill "dd" signal::kill,
    __NR_tkill "dd" signal::tkill,
    __NR_tgkill "ddd" signal::tgkill,
    __NR_pause "" signal::pause,
    __NR_alarm "d" signal::alarm,
    __NR_setitimer "daa" signal::setitimer,
    __NR_getitimer "da" signal::getitimer,
    __NR_clock_gettime "da" time::clock_gettime,
    __NR_clock_getres "da" time::clock_getres,
    __NR_clock_nanosleep "dxaa" time::clock_nanosleep,
    __NR_nanosleep "aa" time::nanosleep,
    __NR_gettimeofday "aa" time::gettimeofday,
    __NR_time "a" time::time,
    __NR_times "a" time::times,
    __NR_getrusage "da" time::getrusage,
    __NR_sysinfo "a" time::sysinfo,
}

static TABLE: [Option<SystemCall>; CALLS] = table();

/// The call of this number.
pub(crate) fn find(number: usize) -> Option<&'static SystemCall> {
    TABLE.get(number)?.as_ref()
}

/// The name of a call, also of one that is not there.
pub(crate) fn name(number: usize) -> Option<&'static str> {
    find(number).map(|entry| entry.name()).or_else(|| missing::missing(number))
}

impl SystemCall {
    pub(crate) fn name(&self) -> &'static str {
        self.name.trim_start_matches("__NR_")
    }

    /// A letter for each argument.
    pub(super) fn signature(&self) -> &'static str {
        self.signature
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
        match missing::missing(number) {
            Some(name) => println!("samara: there is no call {name}: ENOSYS"),
            None => println!("samara: there is no call {number}: ENOSYS"),
        }
    }
}
