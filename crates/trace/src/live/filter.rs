//! The seccomp filter: it stops memory calls and lets every other call run at native speed.
//!
//! It answers ALLOW for nearly every call, and for these the kernel's bitmap of always-allowed
//! calls skips even the filter. It inspects the arguments of prctl, ioctl and clone: it stops only
//! options that change VMAs, userfaultfd requests, and a clone that copies the address space.

use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W,
    sock_filter,
};

use super::calls::{MEMORY, PRCTLS};
use crate::abi::{UFFDIO_API, UFFDIO_FILLS, UFFDIO_REGISTER, UFFDIO_UNREGISTER};

/// The rule number of a native call. A program's own filter is unlikely to use it.
pub(super) const NATIVE: u32 = 0x5a31;
/// The rule number of a memory call through another ABI (i386, x32).
pub(super) const FOREIGN: u32 = 0x5a32;

const ARCH_X86_64: u32 = 0xc000_003e;
/// Offsets in `struct seccomp_data`.
const NUMBER: u32 = 0;
const ARCH: u32 = 4;
const ARGS: u32 = 16;
/// Calls of the x32 ABI have this bit in their number.
const X32: u32 = 0x4000_0000;
/// i386: brk, old mmap, munmap, ipc, mprotect, mremap, mmap2, madvise, mlock family,
/// remap_file_pages, mbind, pkey_mprotect.
const I386: [u32; 15] = [45, 90, 91, 117, 125, 163, 192, 219, 150, 151, 152, 153, 257, 274, 380];

fn op(code: u32, k: u32) -> sock_filter {
    sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn load(offset: u32) -> sock_filter {
    op(BPF_LD | BPF_W | BPF_ABS, offset)
}

fn answer(action: u32) -> sock_filter {
    op(BPF_RET | BPF_K, action)
}

/// Skips `skip` instructions if `test` (JEQ, JGE) fails.
fn unless(test: u32, k: u32, skip: u8) -> sock_filter {
    sock_filter { code: (BPF_JMP | test | BPF_K) as u16, jt: 0, jf: skip, k }
}

fn trace(rule: u32) -> sock_filter {
    answer(libc::SECCOMP_RET_TRACE | rule)
}

/// The low half of argument `n`. The inspected calls use no more of it.
fn argument(n: u32) -> sock_filter {
    load(ARGS + 8 * n)
}

/// Traces `number` if the accumulator, after `look`, equals one of `values`.
fn inspect(out: &mut Vec<sock_filter>, number: libc::c_long, look: &[sock_filter], values: &[u32]) {
    let body = look.len() + 2 * values.len() + 1;
    out.push(unless(BPF_JEQ, number as u32, body as u8));
    out.extend_from_slice(look);
    for &value in values {
        out.push(unless(BPF_JEQ, value, 1));
        out.push(trace(NATIVE));
    }
    out.push(answer(libc::SECCOMP_RET_ALLOW));
}

/// The filter, in the kernel's classic BPF.
pub(super) fn build() -> Vec<sock_filter> {
    let mut out = vec![load(ARCH)];
    // For another architecture, trace only its memory calls.
    let foreign = 1 + 2 * I386.len() + 1;
    out.push(sock_filter {
        code: (BPF_JMP | BPF_JEQ | BPF_K) as u16,
        jt: foreign as u8,
        jf: 0,
        k: ARCH_X86_64,
    });
    out.push(load(NUMBER));
    for number in I386 {
        out.push(unless(BPF_JEQ, number, 1));
        out.push(trace(FOREIGN));
    }
    out.push(answer(libc::SECCOMP_RET_ALLOW));
    out.push(load(NUMBER));
    // x32 calls have their own bit. -1, which cancels a call, has that bit, too, and is let
    // through.
    out.push(unless(BPF_JGE, X32, 3));
    out.push(unless(BPF_JEQ, u32::MAX, 1));
    out.push(answer(libc::SECCOMP_RET_ALLOW));
    out.push(trace(FOREIGN));
    let mut uffd = vec![UFFDIO_API, UFFDIO_REGISTER, UFFDIO_UNREGISTER];
    uffd.extend(UFFDIO_FILLS.map(|(request, _)| request));
    inspect(&mut out, libc::SYS_ioctl, &[argument(1)], &uffd);
    let [a, b, c, d] = PRCTLS;
    // PR_SET_SECCOMP is the older way to seccomp(2).
    let prctls = [a, b, c, d, libc::PR_SET_SECCOMP as u32];
    inspect(&mut out, libc::SYS_prctl, &[argument(0)], &prctls);
    // SECCOMP_SET_MODE_STRICT and SECCOMP_SET_MODE_FILTER.
    inspect(&mut out, libc::SYS_seccomp, &[argument(0)], &[0, 1]);
    let (shares, untraced) = (libc::CLONE_VM as u32, libc::CLONE_UNTRACED as u32);
    let both = op(BPF_ALU | BPF_AND | BPF_K, shares | untraced);
    let stops = [0, untraced, shares | untraced];
    inspect(&mut out, libc::SYS_clone, &[argument(0), both], &stops);
    // Calls that are traced for all arguments. Those of clone3 are in memory, which a filter cannot
    // read.
    let always = [
        libc::SYS_clone3,
        libc::SYS_fork,
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_exit_group,
        libc::SYS_io_uring_setup,
        libc::SYS_ptrace,
    ];
    let numbers = MEMORY.iter().map(|&(number, _)| number).chain(always);
    for number in numbers {
        out.push(unless(BPF_JEQ, number as u32, 1));
        out.push(trace(NATIVE));
    }
    out.push(answer(libc::SECCOMP_RET_ALLOW));
    out
}

/// Runs a filter that [`build`] has made, as the kernel does: the answer for a call. Some tens of
/// steps.
pub(super) fn answer_of(filter: &[sock_filter], arch: u32, number: u32, args: [u64; 6]) -> u32 {
    const LOAD: u32 = BPF_LD | BPF_W | BPF_ABS;
    const AND: u32 = BPF_ALU | BPF_AND | BPF_K;
    const EQUAL: u32 = BPF_JMP | BPF_JEQ | BPF_K;
    const AT_LEAST: u32 = BPF_JMP | BPF_JGE | BPF_K;
    let (mut pc, mut acc) = (0, 0u32);
    while let Some(&sock_filter { code, jt, jf, k }) = filter.get(pc) {
        pc += 1;
        match u32::from(code) {
            LOAD if k == NUMBER => acc = number,
            LOAD if k == ARCH => acc = arch,
            LOAD => acc = args[(k - ARGS) as usize / 8] as u32,
            AND => acc &= k,
            EQUAL => pc += usize::from(if acc == k { jt } else { jf }),
            AT_LEAST => pc += usize::from(if acc >= k { jt } else { jf }),
            _ => return k,
        }
    }
    unreachable!("each way through the filter ends with an answer")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(arch: u32, number: u32, args: [u64; 6]) -> u32 {
        answer_of(&build(), arch, number, args)
    }

    const NONE: [u64; 6] = [0; 6];
    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const TRACE: u32 = libc::SECCOMP_RET_TRACE;

    #[test]
    fn memory_calls_stop_and_others_run() {
        for (number, _) in MEMORY {
            assert_eq!(run(ARCH_X86_64, number as u32, NONE), TRACE | NATIVE, "{number}");
        }
        let run = |number| run(ARCH_X86_64, number as u32, NONE);
        assert_eq!(run(libc::SYS_execve), TRACE | NATIVE);
        assert_eq!(run(libc::SYS_clone3), TRACE | NATIVE);
        for number in [libc::SYS_read, libc::SYS_vfork, libc::SYS_close, libc::SYS_futex, -1] {
            assert_eq!(run(number), ALLOW, "{number}");
        }
    }

    #[test]
    fn three_calls_are_looked_into() {
        let call = |number: libc::c_long, args| run(ARCH_X86_64, number as u32, args);
        let ioctl = |request: u32| call(libc::SYS_ioctl, [3, request.into(), 0, 0, 0, 0]);
        assert_eq!(ioctl(UFFDIO_REGISTER), TRACE | NATIVE);
        assert_eq!(ioctl(0x5401), ALLOW);
        let prctl = |option: u32| call(libc::SYS_prctl, [option.into(), 0, 0, 0, 0, 0]);
        assert_eq!(prctl(PRCTLS[2]), TRACE | NATIVE);
        assert_eq!(prctl(15), ALLOW);
        let clone = |flags: i32| call(libc::SYS_clone, [flags as u64, 0, 0, 0, 0, 0]);
        assert_eq!(clone(libc::SIGCHLD), TRACE | NATIVE);
        assert_eq!(clone(libc::CLONE_VM | libc::SIGCHLD), ALLOW);
        assert_eq!(clone(libc::CLONE_VM | libc::CLONE_UNTRACED), TRACE | NATIVE);
        let seccomp = |op: u64| call(libc::SYS_seccomp, [op, 0, 0, 0, 0, 0]);
        assert_eq!([seccomp(0), seccomp(1), seccomp(2)], [TRACE | NATIVE, TRACE | NATIVE, ALLOW]);
    }

    #[test]
    fn other_abis_stop_at_memory_calls_only() {
        let i386 = 0x4000_0003;
        assert_eq!(run(i386, 192, NONE), TRACE | FOREIGN);
        assert_eq!(run(i386, 20, NONE), ALLOW);
        assert_eq!(run(ARCH_X86_64, X32 | 9, NONE), TRACE | FOREIGN);
    }
}
