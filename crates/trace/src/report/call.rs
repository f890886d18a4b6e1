//! Prints a memory call as C source, with the names of flags and errors.
//!
//! A recording holds the numbers of Linux on x86-64, and may be read on any platform. So the tables
//! here hold that ABI's values, and never those of the host's C library.

use crate::record::{Call, Op};

/// Names of bits or of values, from the ABI of Linux on x86-64.
type Names = &'static [(usize, &'static str)];

/// A table of names with their values.
macro_rules! names {
    ($($name:ident $value:literal),* $(,)?) => { &[$(($value, stringify!($name))),*] };
}

const PROT: Names = names![
    PROT_READ 0x1, PROT_WRITE 0x2, PROT_EXEC 0x4, PROT_GROWSDOWN 0x100_0000,
    PROT_GROWSUP 0x200_0000,
];
/// The flags above the four bits of the mapping's type.
const MAP: Names = names![
    MAP_FIXED 0x10, MAP_ANONYMOUS 0x20, MAP_32BIT 0x40, MAP_GROWSDOWN 0x100, MAP_DENYWRITE 0x800,
    MAP_EXECUTABLE 0x1000, MAP_LOCKED 0x2000, MAP_NORESERVE 0x4000, MAP_POPULATE 0x8000,
    MAP_NONBLOCK 0x1_0000, MAP_STACK 0x2_0000, MAP_HUGETLB 0x4_0000, MAP_SYNC 0x8_0000,
    MAP_FIXED_NOREPLACE 0x10_0000,
];
const MREMAP: Names = names![
    MREMAP_MAYMOVE 1, MREMAP_FIXED 2, MREMAP_DONTUNMAP 4,
];
const MLOCKALL: Names = names![
    MCL_CURRENT 1, MCL_FUTURE 2, MCL_ONFAULT 4,
];
const ADVICE: Names = names![
    MADV_NORMAL 0, MADV_RANDOM 1, MADV_SEQUENTIAL 2, MADV_WILLNEED 3, MADV_DONTNEED 4, MADV_FREE 8,
    MADV_REMOVE 9, MADV_DONTFORK 10, MADV_DOFORK 11, MADV_MERGEABLE 12, MADV_UNMERGEABLE 13,
    MADV_HUGEPAGE 14, MADV_NOHUGEPAGE 15, MADV_DONTDUMP 16, MADV_DODUMP 17, MADV_WIPEONFORK 18,
    MADV_KEEPONFORK 19, MADV_COLD 20, MADV_PAGEOUT 21, MADV_POPULATE_READ 22,
    MADV_POPULATE_WRITE 23, MADV_DONTNEED_LOCKED 24, MADV_COLLAPSE 25, MADV_HWPOISON 100,
    MADV_SOFT_OFFLINE 101, MADV_GUARD_INSTALL 102, MADV_GUARD_REMOVE 103,
];
const SHM: Names = names![
    SHM_RDONLY 0x1000, SHM_RND 0x2000, SHM_REMAP 0x4000, SHM_EXEC 0x8000,
];
/// The errors that memory calls return.
const ERRORS: Names = names![
    EPERM 1, ENOENT 2, ESRCH 3, EINTR 4, EIO 5, E2BIG 7, EBADF 9, EAGAIN 11, ENOMEM 12, EACCES 13,
    EFAULT 14, EBUSY 16, EEXIST 17, ENODEV 19, EINVAL 22, ENFILE 23, EMFILE 24, ENOTTY 25,
    ETXTBSY 26, ENOSPC 28, ENOSYS 38, EIDRM 43, EOVERFLOW 75, EOPNOTSUPP 95, EHWPOISON 133,
];

/// The call and its result: `mmap(NULL, 8192, PROT_READ, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) =
/// 0x7f..`. `path` is the mapped file's, if known.
pub fn describe(call: &Call, path: Option<&str>) -> String {
    let mut arguments: Vec<String> =
        (0..call.op.arity()).map(|i| argument(call.op, i, call.args[i])).collect();
    if let (Op::Mmap, Some(path)) = (call.op, path) {
        arguments[4] = format!("{}<{path}>", arguments[4]);
    }
    if let (Op::Mbind, Some([mask, ..])) = (call.op, call.memory) {
        arguments[3] = format!("{}<{mask:#x}>", arguments[3]);
    }
    if let (Op::Ioctl, Some([start, length, mode])) = (call.op, call.memory) {
        arguments[2] = format!("{}<{start:#x}, {length}, {mode:#x}>", arguments[2]);
    }
    format!("{}({}) = {}", call.op.name(), arguments.join(", "), result(call.result))
}

/// A result: an address, a small number, or an error's name.
pub fn result(result: isize) -> String {
    match result {
        ..0 => match name(ERRORS, result.unsigned_abs()) {
            Some(name) => format!("-{name}"),
            None => result.to_string(),
        },
        0..4096 => result.to_string(),
        _ => format!("{result:#x}"),
    }
}

fn argument(op: Op, index: usize, value: usize) -> String {
    match (op, index) {
        (Op::Mmap | Op::Mprotect | Op::PkeyMprotect, 2) | (Op::RemapFilePages, 2) => {
            bits(value, PROT, "PROT_NONE")
        }
        (Op::Mmap, 3) => map_flags(value),
        (Op::Mmap, 4) | (Op::Ioctl | Op::Close, 0) | (Op::PkeyMprotect, 3) => {
            (value as i32).to_string()
        }
        (Op::Mmap, 5) => address(value, "0"),
        (Op::Mremap, 3) => bits(value, MREMAP, "0"),
        (Op::Madvise, 2) | (Op::ProcessMadvise, 3) => {
            name(ADVICE, value).map_or_else(|| value.to_string(), str::to_owned)
        }
        (Op::Mlockall, 0) => bits(value, MLOCKALL, "0"),
        (Op::Shmat, 2) => bits(value, SHM, "0"),
        (_, 0) | (Op::Mremap, 4) | (Op::Shmat, 1) | (Op::Mbind, 3) => address(value, "NULL"),
        _ if value >> 20 != 0 => format!("{value:#x}"),
        _ => value.to_string(),
    }
}

fn address(value: usize, zero: &str) -> String {
    if value == 0 { zero.into() } else { format!("{value:#x}") }
}

fn map_flags(value: usize) -> String {
    let kind = match value & 15 {
        1 => "MAP_SHARED",
        2 => "MAP_PRIVATE",
        3 => "MAP_SHARED_VALIDATE",
        8 => "MAP_DROPPABLE",
        _ => return bits(value, MAP, "0"),
    };
    match value & !15 {
        0 => kind.into(),
        rest => format!("{kind}|{}", bits(rest, MAP, "0")),
    }
}

/// The names of the bits, joined by `|`. Bits without a name follow as a number.
fn bits(value: usize, names: Names, none: &str) -> String {
    if value == 0 {
        return none.into();
    }
    let mut parts = Vec::new();
    let mut rest = value;
    for &(bit, name) in names {
        if bit != 0 && rest & bit == bit {
            parts.push(name.to_string());
            rest &= !bit;
        }
    }
    if rest != 0 {
        parts.push(format!("{rest:#x}"));
    }
    parts.join("|")
}

/// The name of exactly this value.
fn name(names: Names, value: usize) -> Option<&'static str> {
    names.iter().find(|(named, _)| *named == value).map(|(_, name)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(op: Op, args: &[usize], result: isize) -> String {
        describe(&Call::new(1, 1, op, args, result), None)
    }

    /// The tables hold the values that the C library has for this ABI.
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    #[test]
    fn tables_agree_with_the_c_library() {
        macro_rules! agrees {
            ($table:ident $($name:ident)*) => {
                $(assert_eq!(name($table, libc::$name as usize), Some(stringify!($name)));)*
            };
        }
        agrees!(PROT PROT_READ PROT_WRITE PROT_EXEC PROT_GROWSDOWN PROT_GROWSUP);
        agrees!(MAP MAP_FIXED MAP_ANONYMOUS MAP_32BIT MAP_GROWSDOWN MAP_DENYWRITE MAP_EXECUTABLE
            MAP_LOCKED MAP_NORESERVE MAP_POPULATE MAP_NONBLOCK MAP_STACK MAP_HUGETLB MAP_SYNC
            MAP_FIXED_NOREPLACE);
        agrees!(MREMAP MREMAP_MAYMOVE MREMAP_FIXED MREMAP_DONTUNMAP);
        agrees!(MLOCKALL MCL_CURRENT MCL_FUTURE MCL_ONFAULT);
        agrees!(ADVICE MADV_NORMAL MADV_RANDOM MADV_SEQUENTIAL MADV_WILLNEED MADV_DONTNEED
            MADV_FREE MADV_REMOVE MADV_DONTFORK MADV_DOFORK MADV_MERGEABLE MADV_UNMERGEABLE
            MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_DONTDUMP MADV_DODUMP MADV_WIPEONFORK
            MADV_KEEPONFORK MADV_COLD MADV_PAGEOUT MADV_POPULATE_READ MADV_POPULATE_WRITE
            MADV_DONTNEED_LOCKED MADV_HWPOISON MADV_SOFT_OFFLINE);
        let known = |advice: &vma::Advice| name(ADVICE, *advice as usize).is_some();
        assert!(vma::Advice::ALL.iter().all(known));
        agrees!(SHM SHM_RDONLY SHM_RND SHM_REMAP SHM_EXEC);
        agrees!(ERRORS EPERM ENOENT ESRCH EINTR EIO E2BIG EBADF EAGAIN ENOMEM EACCES EFAULT EBUSY
            EEXIST ENODEV EINVAL ENFILE EMFILE ENOTTY ETXTBSY ENOSPC ENOSYS EIDRM EOVERFLOW
            EOPNOTSUPP EHWPOISON);
    }

    #[test]
    fn calls_read_as_people_write_them() {
        for (op, args, result, expected) in [
            (
                Op::Mmap,
                &[0, 8192, 3, 0x22, 0xffff_ffff][..],
                0x7f12_3456_7000,
                "(NULL, 8192, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) \
                 = 0x7f1234567000",
            ),
            (
                Op::Mmap,
                &[0x1000, 4096, 0, 0x8000_0013, 3, 0x2000],
                -22,
                "(0x1000, 4096, PROT_NONE, MAP_SHARED_VALIDATE|MAP_FIXED|0x80000000, 3, 0x2000) \
                 = -EINVAL",
            ),
            (
                Op::Mremap,
                &[0x1000, 4096, 8192, 3, 0x5000],
                0x5000,
                "(0x1000, 4096, 8192, MREMAP_MAYMOVE|MREMAP_FIXED, 0x5000) = 0x5000",
            ),
            (
                Op::Madvise,
                &[0x1000, 4096, 102],
                -12,
                "(0x1000, 4096, MADV_GUARD_INSTALL) = -ENOMEM",
            ),
            (Op::Madvise, &[0, 0, 77], 0, "(NULL, 0, 77) = 0"),
            (Op::Munlockall, &[], -4000, "() = -4000"),
            (Op::Mlockall, &[3], 0, "(MCL_CURRENT|MCL_FUTURE) = 0"),
        ] {
            assert_eq!(call(op, args, result), format!("{}{expected}", op.name()));
        }
    }

    #[test]
    fn arguments_read_from_memory_are_shown() {
        let mbind = Call::new(1, 1, Op::Mbind, &[0x1000, 4096, 2, 0x7ffc_0000_0000, 8], 0);
        let mbind = Call { memory: Some([1, 0, 0]), ..mbind };
        assert_eq!(describe(&mbind, None), "mbind(0x1000, 4096, 2, 0x7ffc00000000<0x1>, 8, 0) = 0");
        let mmap = Call::new(1, 1, Op::Mmap, &[0, 4096, 1, 2, 3], 0);
        assert_eq!(
            describe(&mmap, Some("/x")),
            "mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, 3</x>, 0) = 0"
        );
    }
}
