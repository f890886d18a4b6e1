//! A kernel that does not permit tracing is an error that names the cure.
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![allow(missing_docs)]

use std::thread;

use singlestep::{Error, operation};

/// Makes ptrace fail with EPERM in this thread and in the children that it forks.
fn forbid_ptrace() {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut filter = [
        // The number of the system call, the first field of the filter's input.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter {
            code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            jt: 0,
            jf: 1,
            k: libc::SYS_ptrace as u32,
        },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program describes the filter, which the kernel copies.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_SET_MODE_FILTER;
        assert_eq!(libc::syscall(libc::SYS_seccomp, mode, 0, &raw const program), 0);
    }
}

#[test]
fn a_filter_of_system_calls_is_named() {
    let refused = thread::spawn(|| {
        forbid_ptrace();
        operation(|| (), |_| ()).count()
    });
    match refused.join().unwrap() {
        Err(Error::NotPermitted { cause, cure }) => {
            assert_eq!(cause.raw_os_error(), Some(libc::EPERM));
            assert!(cure.contains("seccomp"), "{cure}");
        }
        other => panic!("{other:?}"),
    }
    // The filter does not apply to this thread.
    operation(|| (), |_| ()).count().unwrap();
}
