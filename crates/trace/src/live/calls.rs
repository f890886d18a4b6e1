//! Selects the system calls to trace, and computes the ranges that each may change.

use std::ops::Range;

use crate::record::Op;

/// The `prctl` options that change VMAs: THP_DISABLE, SET_MM, MEMORY_MERGE, SET_VMA.
pub(super) const PRCTLS: [u32; 4] = [41, 35, 67, 0x5356_4d41];

/// `MAP_FIXED` and `MAP_FIXED_NOREPLACE`: the caller chooses the address, so it is not predicted.
const MAP_AT_ADDRESS: usize = 0x10_0010;
const PAGE: usize = 4096;

/// The kind of a traced system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A call that changes VMAs.
    Memory(Op),
    /// A call that may make a new process or thread.
    Fork,
    /// execve and execveat.
    Exec,
    /// ptrace, which a traced program cannot use.
    Ptrace,
}

/// The memory calls that are always traced, by number. prctl and ioctl are traced depending on
/// their arguments.
pub(super) const MEMORY: [(libc::c_long, Op); 25] = [
    (libc::SYS_mmap, Op::Mmap),
    (libc::SYS_mprotect, Op::Mprotect),
    (libc::SYS_munmap, Op::Munmap),
    (libc::SYS_brk, Op::Brk),
    (libc::SYS_madvise, Op::Madvise),
    (libc::SYS_mremap, Op::Mremap),
    (libc::SYS_mlock, Op::Mlock),
    (libc::SYS_munlock, Op::Munlock),
    (libc::SYS_mlockall, Op::Mlockall),
    (libc::SYS_munlockall, Op::Munlockall),
    (libc::SYS_mlock2, Op::Mlock2),
    (libc::SYS_mbind, Op::Mbind),
    (libc::SYS_shmat, Op::Shmat),
    (libc::SYS_shmdt, Op::Shmdt),
    (libc::SYS_remap_file_pages, Op::RemapFilePages),
    (libc::SYS_pkey_mprotect, Op::PkeyMprotect),
    (libc::SYS_io_setup, Op::IoSetup),
    (libc::SYS_io_destroy, Op::IoDestroy),
    (libc::SYS_process_madvise, Op::ProcessMadvise),
    (libc::SYS_set_mempolicy_home_node, Op::SetMempolicyHomeNode),
    (MAP_SHADOW_STACK, Op::MapShadowStack),
    (libc::SYS_mseal, Op::Mseal),
    (libc::SYS_personality, Op::Personality),
    (libc::SYS_pkey_alloc, Op::PkeyAlloc),
    (libc::SYS_pkey_free, Op::PkeyFree),
];

/// Not yet in libc for this target.
const MAP_SHADOW_STACK: libc::c_long = 453;

/// The kind of the call with this number; `None` for one that is not traced.
pub(super) fn kind(number: i64) -> Option<Kind> {
    match number {
        libc::SYS_fork | libc::SYS_clone | libc::SYS_clone3 => Some(Kind::Fork),
        libc::SYS_execve | libc::SYS_execveat => Some(Kind::Exec),
        libc::SYS_ptrace => Some(Kind::Ptrace),
        libc::SYS_prctl => Some(Kind::Memory(Op::Prctl)),
        libc::SYS_ioctl => Some(Kind::Memory(Op::Ioctl)),
        _ => MEMORY.iter().find(|(n, _)| *n == number).map(|&(_, op)| Kind::Memory(op)),
    }
}

const PR_SET_MM: usize = 35;
const PR_SET_MM_START_STACK: usize = 5;
const PR_SET_MM_START_BRK: usize = 6;
const PR_SET_MM_BRK: usize = 7;
const PR_SET_MM_MAP: usize = 14;

/// Whether it is the prctl that sets all marks of the address space at once, from a struct in
/// memory.
pub(super) fn sets_whole_map(args: &[usize; 6]) -> bool {
    args[0] == PR_SET_MM && args[1] == PR_SET_MM_MAP
}

/// The prctl calls that set the same marks one by one.
pub(super) fn marks_one_by_one([start_brk, brk, start_stack]: [usize; 3]) -> [[usize; 6]; 3] {
    [(PR_SET_MM_START_BRK, start_brk), (PR_SET_MM_BRK, brk), (PR_SET_MM_START_STACK, start_stack)]
        .map(|(mark, value)| [PR_SET_MM, mark, value, 0, 0, 0])
}

/// The new end of the heap, if the call sets it.
pub(super) fn brk_set(op: Op, args: &[usize; 6]) -> Option<usize> {
    let sets = op == Op::Prctl && args[0] == PR_SET_MM && args[1] == PR_SET_MM_BRK;
    sets.then_some(args[2])
}

/// The ranges in which a first write affects the call, as far as its arguments show: at most two.
/// `brk` is the current end of the heap. An address that the kernel chooses is checked afterwards.
pub(super) fn places(op: Op, args: &[usize; 6], brk: usize) -> [Option<Range<usize>>; 2] {
    let [a, b, c, d, e, _] = *args;
    let span = |start: usize, length: usize| {
        let first = start & !(PAGE - 1);
        let last = start.saturating_add(length).checked_next_multiple_of(PAGE);
        Some(first..last.unwrap_or(usize::MAX & !(PAGE - 1)).max(first))
    };
    match op {
        Op::Mmap if d & MAP_AT_ADDRESS != 0 => [span(a, b), None],
        Op::Mmap | Op::IoSetup | Op::IoDestroy | Op::MapShadowStack => [None, None],
        // A heap that shrinks or grows. A query of the current end changes nothing.
        Op::Brk if a == 0 || a == brk => [None, None],
        Op::Brk => [span(a.min(brk), a.abs_diff(brk)), None],
        // Growing in place may meet the next VMA. MREMAP_FIXED: the target, too.
        Op::Mremap => [span(a, b.max(c)), if d & 2 != 0 { span(e, c) } else { None }],
        Op::Mlockall | Op::Munlockall => [Some(0..usize::MAX), None],
        // PR_SET_VMA names a range. The others affect the whole address space.
        Op::Prctl if a as u32 == PRCTLS[3] => [span(c, d), None],
        Op::Prctl => [Some(0..usize::MAX), None],
        // SHM_REMAP replaces existing maps over the segment's length, which is unknown here.
        Op::Shmat if c & 0o40_000 != 0 => [Some(0..usize::MAX), None],
        Op::Shmat | Op::Shmdt | Op::Close => [None, None],
        // Their ranges are in memory. The code that reads them looks for first writes there.
        Op::Ioctl | Op::ProcessMadvise => [None, None],
        // They affect only later calls.
        Op::Personality | Op::PkeyAlloc | Op::PkeyFree => [None, None],
        Op::Munmap
        | Op::Mprotect
        | Op::PkeyMprotect
        | Op::Madvise
        | Op::Mlock
        | Op::Mlock2
        | Op::Munlock
        | Op::Mbind
        | Op::RemapFilePages
        | Op::Mseal
        | Op::SetMempolicyHomeNode => [span(a, b), None],
    }
}

/// The length of a new map if the kernel will choose its address.
pub(super) fn length_to_place(op: Op, args: &[usize; 6]) -> Option<usize> {
    const MAYMOVE_ALONE: usize = 1;
    match op {
        Op::Mmap if args[3] & MAP_AT_ADDRESS == 0 => Some(args[1]),
        Op::Mremap if args[3] == MAYMOVE_ALONE && args[2] > args[1] => Some(args[2]),
        _ => None,
    }
}

/// The range of a new map if the kernel chose its address.
pub(super) fn chosen(op: Op, args: &[usize; 6], result: isize) -> Option<Range<usize>> {
    let start = usize::try_from(result).ok()?;
    match op {
        Op::Mmap if args[3] & MAP_AT_ADDRESS == 0 => Some(start..start.saturating_add(args[1])),
        Op::Mremap if start != args[0] && args[3] & 2 == 0 => {
            Some(start..start.saturating_add(args[2]))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_whole_pages_and_never_wrap() {
        let args = [0x1234, 0x10, 0, 0, 0, 0];
        assert_eq!(places(Op::Munmap, &args, 0)[0], Some(0x1000..0x2000));
        let args = [usize::MAX - 1, usize::MAX, 0, 0, 0, 0];
        let range = places(Op::Munmap, &args, 0)[0].clone().unwrap();
        assert!(range.start <= range.end);
    }

    #[test]
    fn brk_looks_between_the_old_end_and_the_new() {
        let args = [0x9000, 0, 0, 0, 0, 0];
        assert_eq!(places(Op::Brk, &args, 0x5000)[0], Some(0x5000..0x9000));
        assert_eq!(places(Op::Brk, &args, 0x9000)[0], None);
    }

    #[test]
    fn the_kernels_choice_is_looked_at_afterwards() {
        let args = [0, 0x3000, 3, 0x22, 0xffff_ffff, 0];
        assert_eq!(places(Op::Mmap, &args, 0), [None, None]);
        assert_eq!(chosen(Op::Mmap, &args, 0x7000), Some(0x7000..0xa000));
        assert_eq!(chosen(Op::Mmap, &args, -12), None);
        let fixed = [0x7000, 0x3000, 3, 0x32, 0xffff_ffff, 0];
        assert_eq!(chosen(Op::Mmap, &fixed, 0x7000), None);
    }
}
