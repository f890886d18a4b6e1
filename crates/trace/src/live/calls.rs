//! Selects the system calls to trace, and computes the ranges that each may change.

use crate::{
    abi::*,
    record::{Call, Op},
    span::{self, Span},
};

/// The `prctl` options that change VMAs: THP_DISABLE, SET_MM, MEMORY_MERGE, SET_VMA.
pub(super) const PRCTLS: [u32; 4] = [41, 35, 67, 0x5356_4d41];

/// `MAP_FIXED` and `MAP_FIXED_NOREPLACE`: the caller chooses the address, so it is not predicted.
const MAP_AT_ADDRESS: usize = 0x10_0010;

/// The kind of a traced system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallKind {
    /// A call that changes VMAs.
    Memory(Op),
    /// A call that may make a new process or thread.
    Fork,
    /// execve and execveat.
    Exec,
    /// exit_group, which ends all threads. Before it, the address space can be read for the last
    /// time: afterwards its last thread may end at any moment.
    Exit,
    /// io_uring_setup. Of the operations of a ring, IORING_OP_MADVISE changes VMAs, which no system
    /// call shows. (Maps of rings are made by mmap.)
    Ring,
    /// ptrace, which a traced program cannot use.
    Ptrace,
}

/// Not yet in libc for this target.
const SYS_MAP_SHADOW_STACK: libc::c_long = 453;

/// A table of numbers of calls, of libc or of this module, with their kinds.
macro_rules! memory {
    ($($number:ident $op:ident),* $(,)?) => {{
        use libc::*;
        [$(($number, Op::$op)),*]
    }};
}

/// The memory calls that are always traced, by number. prctl and ioctl are traced depending on
/// their arguments.
pub(super) const MEMORY: [(libc::c_long, Op); 25] = memory![
    SYS_mmap Mmap, SYS_mprotect Mprotect, SYS_munmap Munmap, SYS_brk Brk, SYS_madvise Madvise,
    SYS_mremap Mremap, SYS_mlock Mlock, SYS_munlock Munlock, SYS_mlockall Mlockall,
    SYS_munlockall Munlockall, SYS_mlock2 Mlock2, SYS_mbind Mbind, SYS_shmat Shmat,
    SYS_shmdt Shmdt, SYS_remap_file_pages RemapFilePages, SYS_pkey_mprotect PkeyMprotect,
    SYS_io_setup IoSetup, SYS_io_destroy IoDestroy, SYS_process_madvise ProcessMadvise,
    SYS_set_mempolicy_home_node SetMempolicyHomeNode, SYS_MAP_SHADOW_STACK MapShadowStack,
    SYS_mseal Mseal, SYS_personality Personality, SYS_pkey_alloc PkeyAlloc, SYS_pkey_free PkeyFree,
];

/// The kind of the call with this number; `None` for one that is not traced.
pub(super) fn kind(number: i64) -> Option<CallKind> {
    match number {
        libc::SYS_fork | libc::SYS_clone | libc::SYS_clone3 => Some(CallKind::Fork),
        libc::SYS_execve | libc::SYS_execveat => Some(CallKind::Exec),
        libc::SYS_exit_group => Some(CallKind::Exit),
        libc::SYS_io_uring_setup => Some(CallKind::Ring),
        libc::SYS_ptrace => Some(CallKind::Ptrace),
        libc::SYS_prctl => Some(CallKind::Memory(Op::Prctl)),
        libc::SYS_ioctl => Some(CallKind::Memory(Op::Ioctl)),
        _ => MEMORY.iter().find(|(n, _)| *n == number).map(|&(_, op)| CallKind::Memory(op)),
    }
}

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
pub(super) fn places(op: Op, args: &[usize; 6], brk: usize) -> [Option<Span>; 2] {
    let [a, b, c, d, e, _] = *args;
    let span = |start: usize, length: usize| Some(Span::of(start, length));
    match op {
        Op::Mmap if d & MAP_AT_ADDRESS != 0 => [span(a, b), None],
        // A heap that shrinks or grows. A query of the current end changes nothing.
        Op::Brk if a != 0 && a != brk => [span(a.min(brk), a.abs_diff(brk)), None],
        // Growing in place may meet the next VMA. MREMAP_FIXED: the target, too.
        Op::Mremap => [span(a, b.max(c)), if d & MREMAP_FIXED != 0 { span(e, c) } else { None }],
        Op::Mlockall | Op::Munlockall => [Some(Span::ALL), None],
        // PR_SET_VMA names a range. The others affect the whole address space.
        Op::Prctl if a as u32 == PRCTLS[3] => [span(c, d), None],
        Op::Prctl => [Some(Span::ALL), None],
        // SHM_REMAP replaces existing maps over the segment's length, which is unknown here.
        Op::Shmat if c & SHM_REMAP != 0 => [Some(Span::ALL), None],
        _ if op.takes_range() => [span(a, b), None],
        // The kernel chooses their address, or they affect only later calls. Ranges of ioctl and
        // process_madvise are in memory: the code that reads these looks for first writes there.
        _ => [None, None],
    }
}

/// The length of a new map if the kernel will choose its address, in whole pages.
pub(super) fn length_to_place(op: Op, args: &[usize; 6]) -> Option<usize> {
    const MAYMOVE_ALONE: usize = 1;
    match op {
        Op::Mmap if args[3] & MAP_AT_ADDRESS == 0 => span::length_of_map(args),
        Op::Mremap if args[3] == MAYMOVE_ALONE => {
            let [had, wanted] = [args[1], args[2]].map(span::whole);
            wanted.filter(|_| wanted > had)
        }
        _ => None,
    }
}

/// The range of a new map if the kernel chose its address.
pub(super) fn chosen(op: Op, args: &[usize; 6], result: isize) -> Option<Span> {
    let start = usize::try_from(result).ok()?;
    match op {
        Op::Mmap if args[3] & MAP_AT_ADDRESS == 0 => {
            Some(Span::of(start, span::length_of_map(args)?))
        }
        Op::Mremap if start != args[0] && args[3] & MREMAP_FIXED == 0 => {
            Some(Span::of(start, args[2]))
        }
        _ => None,
    }
}

/// Where a call may have changed VMAs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Changed {
    /// Somewhere: the arguments do not tell.
    #[default]
    Anywhere,
    /// In these ranges, or next to them.
    In([Option<Span>; 3]),
}

impl Changed {
    /// By a call with its result. `brk` was the end of the heap before it.
    pub(super) fn by(call: &Call, brk: usize) -> Changed {
        let advice = || vma::Advice::from_number(call.args[2] as u32);
        match call.op {
            // It is about pages.
            Op::Madvise if advice().is_some_and(|advice| !advice.changes_vmas()) => {
                Changed::In([None, None, None])
            }
            op if op.takes_range() || matches!(op, Op::Mmap | Op::Brk | Op::Mremap) => {
                let [first, second] = places(call.op, &call.args, brk);
                Changed::In([first, second, chosen(call.op, &call.args, call.result)])
            }
            // Their ranges are in memory, or are those of an object; or they concern all VMAs.
            _ => Changed::Anywhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel rounds these lengths, and the next VMA begins where the rounded range ends.
    #[test]
    fn odd_lengths_mean_whole_pages() {
        let page = |first: usize, pages: usize| Some(Span::of(first << 12, pages << 12));
        let odd = [0x1000, 20, 0, 0, 0, 0];
        assert_eq!(places(Op::Mprotect, &odd, 0), [page(1, 1), None]);
        assert_eq!(places(Op::Mlock, &[0x1fff, 2, 0, 0, 0, 0], 0), [page(1, 2), None]);
        assert_eq!(places(Op::Brk, &[0x2001, 0, 0, 0, 0, 0], 0x1fff), [page(1, 2), None]);
        let moves = [0x1000, 10, 5000, 3, 0x8000, 0];
        assert_eq!(places(Op::Mremap, &moves, 0), [page(1, 2), page(8, 2)]);
        let anywhere = [0, 20, 3, 0x22, 0, 0];
        assert_eq!(length_to_place(Op::Mmap, &anywhere), Some(4096));
        assert_eq!(chosen(Op::Mmap, &anywhere, 0x7000), page(7, 1));
        let huge = [0, 20, 3, 0x4_0022, 0, 0];
        assert_eq!(chosen(Op::Mmap, &huge, 0x20_0000), page(512, 512));
        let grows = [0x1000, 4096, 5000, 1, 0, 0];
        assert_eq!(length_to_place(Op::Mremap, &grows), Some(8192));
        assert_eq!(chosen(Op::Mremap, &grows, 0x7000), page(7, 2));
        // Both lengths mean the same page, so it does not move.
        assert_eq!(length_to_place(Op::Mremap, &[0x1000, 1, 20, 1, 0, 0]), None);
    }

    #[test]
    fn brk_looks_between_the_old_end_and_the_new() {
        let args = [0x9000, 0, 0, 0, 0, 0];
        assert_eq!(places(Op::Brk, &args, 0x5000)[0], Some(Span::of(0x5000, 0x4000)));
        assert_eq!(places(Op::Brk, &args, 0x9000)[0], None);
    }

    #[test]
    fn the_kernels_choice_is_looked_at_afterwards() {
        let args = [0, 0x3000, 3, 0x22, 0xffff_ffff, 0];
        assert_eq!(places(Op::Mmap, &args, 0), [None, None]);
        assert_eq!(chosen(Op::Mmap, &args, 0x7000), Some(Span::of(0x7000, 0x3000)));
        assert_eq!(chosen(Op::Mmap, &args, -12), None);
        let fixed = [0x7000, 0x3000, 3, 0x32, 0xffff_ffff, 0];
        assert_eq!(chosen(Op::Mmap, &fixed, 0x7000), None);
    }

    #[test]
    fn a_call_changes_its_ranges_and_the_place_of_its_result() {
        let span = |start, length| Some(Span::of(start, length));
        let (drops, keeps) = (libc::MADV_DONTNEED as usize, libc::MADV_DONTFORK as usize);
        for (op, args, result, expected) in [
            (Op::Mmap, &[0, 0x3000, 3, 0x22][..], 0x7000, [None, None, span(0x7000, 0x3000)]),
            (Op::Mmap, &[0, 0x3000, 3, 0x22], -12, [None, None, None]),
            (Op::Brk, &[0x9000], 0x9000, [span(0x5000, 0x4000), None, None]),
            (
                Op::Mremap,
                &[0x1000, 0x1000, 0x2000, 1],
                0xb000,
                [span(0x1000, 0x2000), None, span(0xb000, 0x2000)],
            ),
            (Op::Mseal, &[0x1000, 0x1000], 0, [span(0x1000, 0x1000), None, None]),
            (Op::Madvise, &[0x1000, 0x1000, drops], 0, [None, None, None]),
            (Op::Madvise, &[0x1000, 0x1000, keeps], 0, [span(0x1000, 0x1000), None, None]),
        ] {
            let changed = Changed::by(&Call::new(1, 1, op, args, result), 0x5000);
            assert_eq!(changed, Changed::In(expected), "{op:?} {args:x?}");
        }
        let all = Call::new(1, 1, Op::Mlockall, &[1], 0);
        assert_eq!(Changed::by(&all, 0x5000), Changed::Anywhere);
    }
}
