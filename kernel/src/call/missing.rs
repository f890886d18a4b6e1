//! The names of calls that are not there, for the line that tells of one.

use linux_raw_sys::general::*;

macro_rules! names {
    ($($number:ident)*) => {
        const NAMES: &[(u32, &str)] = &[$(($number, stringify!($number)),)*];
    };
}

names! {
    __NR_semget __NR_semop __NR_semctl __NR_msgget __NR_msgsnd __NR_msgrcv __NR_msgctl
    __NR_getdents __NR_ptrace __NR_syslog __NR_utime __NR_uselib __NR_personality __NR_ustat
    __NR_sysfs __NR_vhangup __NR_modify_ldt __NR_pivot_root __NR__sysctl __NR_adjtimex
    __NR_chroot __NR_acct __NR_settimeofday __NR_mount __NR_umount2 __NR_swapon __NR_swapoff
    __NR_reboot __NR_sethostname __NR_setdomainname __NR_iopl __NR_ioperm __NR_create_module
    __NR_init_module __NR_delete_module __NR_get_kernel_syms __NR_query_module __NR_quotactl
    __NR_nfsservctl __NR_getpmsg __NR_putpmsg __NR_afs_syscall __NR_tuxcall __NR_security
    __NR_readahead __NR_set_thread_area __NR_io_setup __NR_io_destroy __NR_io_getevents
    __NR_io_submit __NR_io_cancel __NR_get_thread_area __NR_lookup_dcookie __NR_epoll_ctl_old
    __NR_epoll_wait_old __NR_restart_syscall __NR_semtimedop __NR_clock_settime __NR_vserver
    __NR_mbind __NR_set_mempolicy __NR_get_mempolicy __NR_mq_open __NR_mq_unlink
    __NR_mq_timedsend __NR_mq_timedreceive __NR_mq_notify __NR_mq_getsetattr __NR_kexec_load
    __NR_add_key __NR_request_key __NR_keyctl __NR_ioprio_set __NR_ioprio_get __NR_inotify_init
    __NR_inotify_add_watch __NR_inotify_rm_watch __NR_migrate_pages __NR_futimesat __NR_unshare
    __NR_splice __NR_tee __NR_move_pages __NR_signalfd __NR_signalfd4
    __NR_inotify_init1 __NR_perf_event_open __NR_fanotify_init __NR_fanotify_mark
    __NR_name_to_handle_at __NR_open_by_handle_at __NR_clock_adjtime __NR_setns __NR_kcmp
    __NR_finit_module __NR_seccomp __NR_kexec_file_load __NR_bpf __NR_execveat __NR_preadv2
    __NR_pwritev2 __NR_io_pgetevents __NR_rseq __NR_uretprobe __NR_io_uring_setup __NR_io_uring_enter
    __NR_io_uring_register __NR_open_tree __NR_move_mount __NR_fsopen __NR_fsconfig __NR_fsmount
    __NR_fspick __NR_openat2 __NR_mount_setattr __NR_quotactl_fd __NR_landlock_create_ruleset
    __NR_landlock_add_rule __NR_landlock_restrict_self __NR_memfd_secret __NR_process_mrelease
    __NR_futex_waitv __NR_set_mempolicy_home_node __NR_cachestat __NR_fchmodat2
    __NR_map_shadow_stack __NR_futex_wake __NR_futex_wait __NR_futex_requeue __NR_statmount
    __NR_listmount __NR_lsm_get_self_attr __NR_lsm_set_self_attr __NR_lsm_list_modules
    __NR_setxattrat __NR_getxattrat __NR_listxattrat __NR_removexattrat __NR_open_tree_attr
    __NR_file_getattr __NR_file_setattr
}

/// The name of a call that is not there, if Linux has it.
pub(super) fn missing(number: usize) -> Option<&'static str> {
    let found = NAMES.iter().find(|(of, _)| *of as usize == number);
    found.map(|(_, name)| name.trim_start_matches("__NR_"))
}
