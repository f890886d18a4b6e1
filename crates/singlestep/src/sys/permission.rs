//! The cause and the cure when ptrace is not permitted.

use std::{fs, io};

use crate::Error;

/// The error for a child that the kernel does not allow to be traced.
pub(super) fn refused(errno: i32) -> Error {
    // A file that cannot be read counts as unknown. The advice then names all causes.
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    Error::NotPermitted {
        cause: io::Error::from_raw_os_error(errno),
        cure: cure(scope.trim(), &status).to_owned(),
    }
}

/// The advice, from Yama's scope and this thread's status.
fn cure(scope: &str, status: &str) -> &'static str {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim).filter(|value| *value != "0")
    };
    if field("TracerPid:").is_some() {
        return "a debugger or strace -f traces this process already, and a child can have only one \
                tracer: run without it";
    }
    match scope {
        "2" => {
            "sysctl kernel.yama.ptrace_scope is 2: set it to 1 or 0 as root, or run with \
             CAP_SYS_PTRACE"
        }
        "3" => {
            "sysctl kernel.yama.ptrace_scope is 3, which cannot be undone: boot with another \
             value (/etc/sysctl.d)"
        }
        _ if field("Seccomp:").is_some() => {
            "a seccomp filter restricts this thread, as in a container: start the container with \
             --cap-add=SYS_PTRACE, or with --security-opt seccomp=unconfined"
        }
        _ => {
            "check for sysctl kernel.yama.ptrace_scope of 2 or 3, a container without \
             CAP_SYS_PTRACE, or a security module (SELinux: setsebool deny_ptrace 0)"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_advice_names_the_obstacle() {
        let free = "TracerPid:\t0\nSeccomp:\t0\n";
        assert!(cure("1", "TracerPid:\t77\nSeccomp:\t0\n").contains("strace"));
        assert!(cure("2", free).contains("ptrace_scope is 2"));
        assert!(cure("3", free).contains("boot"));
        assert!(cure("1", "TracerPid:\t0\nSeccomp:\t2\n").contains("--cap-add"));
        assert!(cure("", "").contains("SELinux"));
    }
}
