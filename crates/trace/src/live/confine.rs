//! Calls that behave differently under a tracer, or would escape it: seccomp, and clones with
//! CLONE_UNTRACED. Where possible they get the result that they have without a tracer. Otherwise a
//! notice reports the difference.

use libc::{BPF_K, BPF_RET};

use super::{
    follower::Follower,
    sys::{self, Tid, ptrace},
};

/// Without a change, the child of such a clone would run under the tracer's filter without a
/// tracer, so each of its memory calls would fail.
const CLONE_UNTRACED: usize = libc::CLONE_UNTRACED as usize;

const MODE_STRICT: usize = 1;
const MODE_FILTER: usize = 2;

/// The answers of a seccomp filter that affect tracing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FilterActions {
    trace: bool,
    notify: bool,
}

/// Finds the constant answers of a filter in classic BPF, with 8 bytes per instruction.
fn answers(filter: &[u8]) -> FilterActions {
    let mut found = FilterActions { trace: false, notify: false };
    for op in filter.as_chunks::<8>().0 {
        let [a, b, _, _, k @ ..] = *op;
        if u32::from(u16::from_ne_bytes([a, b])) == BPF_RET | BPF_K {
            let action = u32::from_ne_bytes(k) & libc::SECCOMP_RET_ACTION_FULL;
            found.trace |= action == libc::SECCOMP_RET_TRACE;
            found.notify |= action == libc::SECCOMP_RET_USER_NOTIF;
        }
    }
    found
}

/// If a call sets seccomp: the mode, and for a filter the address of its `struct sock_fprog`.
fn seccomp(number: i64, args: &[usize; 6]) -> Option<(usize, usize)> {
    match number {
        // SECCOMP_SET_MODE_STRICT and SECCOMP_SET_MODE_FILTER are one less than the modes.
        libc::SYS_seccomp if args[0] as u32 <= 1 => Some((args[0] as u32 as usize + 1, args[2])),
        libc::SYS_prctl if args[0] as u32 == libc::PR_SET_SECCOMP as u32 => {
            Some((args[1], args[2]))
        }
        _ => None,
    }
}

impl Follower<'_> {
    /// Handles a call for which the program's own filter asks a tracer. As without a tracer, the
    /// call fails.
    pub(super) fn refuse(&mut self, tid: Tid) {
        self.notice(
            "a program's own seccomp filter asks its tracer about calls (SECCOMP_RET_TRACE); they \
             fail with ENOSYS, as they do without a tracer",
        );
        // It fails only if the thread was killed. Its end is reported then.
        let _gone = ptrace::refuse(tid);
        self.run(tid);
    }

    /// Whether this is a seccomp call. It is not changed, but may cause a notice.
    pub(super) fn look_at_seccomp(&mut self, tid: Tid, number: i64, args: &[usize; 6]) -> bool {
        let Some((mode, address)) = seccomp(number, args) else { return false };
        match mode {
            MODE_STRICT => self.notice(
                "a program asks for seccomp's strict mode, which fails with EINVAL because of the \
                 tracer's own filter; it runs on without it",
            ),
            MODE_FILTER => {
                let mut filter = Vec::new();
                // The low 16 bits of the first word are its length; the rest is padding.
                if let Ok([length, place]) = sys::read_words::<2>(tid, address) {
                    filter.resize((length & 0xffff) * 8, 0);
                    if sys::read_memory(tid, place, &mut filter).is_err() {
                        filter.clear();
                    }
                }
                let FilterActions { trace, notify } = answers(&filter);
                if trace {
                    self.notice(
                        "a program installs a seccomp filter that asks a tracer about calls \
                         (SECCOMP_RET_TRACE); they fail with ENOSYS, as they do without a tracer",
                    );
                }
                if notify {
                    self.notice(
                        "a program installs a seccomp filter that asks a supervisor about calls \
                         (SECCOMP_RET_USER_NOTIF); memory calls that it allows are not seen",
                    );
                }
            }
            _ => {}
        }
        true
    }

    /// Clears CLONE_UNTRACED in the registers or the memory of a clone that is about to be made.
    pub(super) fn trace_clone(&mut self, tid: Tid, number: i64, args: &mut [usize; 6]) {
        let done = match number {
            libc::SYS_clone if args[0] & CLONE_UNTRACED != 0 => {
                args[0] &= !CLONE_UNTRACED;
                ptrace::set_first_argument(tid, args[0])
            }
            libc::SYS_clone3 => match sys::read_words::<1>(tid, args[0]) {
                Ok([flags]) if flags & CLONE_UNTRACED != 0 => {
                    sys::write_word(tid, args[0], flags & !CLONE_UNTRACED)
                }
                _ => return,
            },
            _ => return,
        };
        match done {
            Ok(()) => self.notice(
                "a program makes a process that asks not to be traced (CLONE_UNTRACED); it is \
                 still traced, because it could not run under the tracer's filter otherwise",
            ),
            Err(error) => self.unfollowed(
                tid,
                &format!("a process that asks not to be traced cannot be followed ({error})"),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_found_in_a_filter() {
        let op = |code: u16, k: u32| {
            let mut op = [0; 8];
            op[..2].copy_from_slice(&code.to_ne_bytes());
            op[4..].copy_from_slice(&k.to_ne_bytes());
            op
        };
        let (load, answer) = (0x20, 0x06);
        let filter = |k| [op(load, 0x7ff0_0000), op(answer, k), op(answer, 0x7fff_0000)].concat();
        assert_eq!(answers(&filter(0x0005_0001)), FilterActions { trace: false, notify: false });
        assert_eq!(answers(&filter(0x7ff0_0007)), FilterActions { trace: true, notify: false });
        assert_eq!(answers(&filter(0x7fc0_0000)), FilterActions { trace: false, notify: true });
        assert_eq!(answers(&[]), FilterActions { trace: false, notify: false });
    }
}
