//! Programs: their steps, and how they are written.
//!
//! A program is a text with one step a line. Addresses and lengths are bytes in hexadecimal.
//! Addresses count from the start of the window, so that both runners may put it anywhere.

use std::{fmt, str::FromStr};

use crate::monitor::{self, Call};

pub(crate) const PAGE: usize = 4096;
pub(crate) use crate::PAGES;
/// The pages of the file at first.
pub(crate) const FILE_PAGES: usize = 6;
/// The most processes of a program.
pub(crate) const PROCESSES: usize = 4;
/// The most threads of a process.
pub(crate) const THREADS: usize = 3;

/// Where mmap puts a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Hint,
    Fixed,
    NoReplace,
}

/// The memory of a map, and whether it is shared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Of {
    /// The file, shared.
    Shared,
    /// The file, with copies of the pages that are written.
    Private,
    /// Shared anonymous memory.
    Anonymous,
    /// The file with MAP_POPULATE or MAP_LOCKED.
    SharedPopulate,
    PrivatePopulate,
    SharedLocked,
    PrivateLocked,
    /// The file, opened for reading only.
    ReadShared,
    ReadPrivate,
}

/// The other flags of an mmap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Lazy,
    Populate,
    GrowsDown,
    Locked,
    NoReserve,
    Stack,
}

/// How the kernel copies a program's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Copied {
    /// process_vm_readv and process_vm_writev.
    Read,
    Write,
    /// /proc/PID/mem.
    Peek,
    Poke,
}

/// The flags of mremap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Stay,
    MayMove,
    Fixed,
    DontUnmap,
    FixedDontUnmap,
}

/// The advice of madvise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Advice {
    DontNeed,
    DontNeedLocked,
    Cold,
    Remove,
    Random,
    Normal,
    PopulateRead,
    PopulateWrite,
    GuardInstall,
    GuardRemove,
    HugePage,
    NoHugePage,
    Collapse,
    /// MADV_DONTNEED and then MADV_FREE: Linux takes freed pages at any time, ours at once.
    Free,
    Sequential,
    WillNeed,
    DontFork,
    DoFork,
    DontDump,
    DoDump,
    WipeOnFork,
    KeepOnFork,
}

/// A range of the window in bytes; for errors it need not begin at a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) at: usize,
    pub(crate) len: usize,
}

/// One call or touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// mmap of private anonymous memory.
    Map {
        span: Span,
        prot: u32,
        place: Place,
        kind: Kind,
    },
    /// mmap of the program's file, a memfd, or of shared anonymous memory.
    Share {
        span: Span,
        prot: u32,
        place: Place,
        of: Of,
        offset: usize,
    },
    /// ftruncate of the file.
    SetSize {
        len: usize,
    },
    /// fallocate with FALLOC_FL_PUNCH_HOLE, on bytes of the file.
    Punch(Span),
    /// pread of a byte of the file.
    Get {
        at: usize,
    },
    /// pwrite of a byte.
    Put {
        at: usize,
        byte: u8,
    },
    /// msync.
    Sync {
        span: Span,
        flags: u32,
    },
    /// fork. Processes count from 0 on, in the order of their forks.
    Fork,
    /// The steps that follow are this process's.
    Switch {
        to: usize,
    },
    /// The process ends, and the steps that follow are another one's.
    Exit {
        to: usize,
    },
    /// The steps that follow are this thread's of the same process, also after other processes had
    /// their turn. A process begins with one thread: 0, or the thread that forked. The others start
    /// with their first turn.
    Thread {
        to: usize,
    },
    Unmap(Span),
    Protect {
        span: Span,
        prot: u32,
    },
    Advise {
        span: Span,
        advice: Advice,
    },
    /// mlock2: at once, or when pages are touched.
    Lock {
        span: Span,
        on_fault: bool,
    },
    Unlock(Span),
    /// mlockall, with MCL_*.
    LockAll {
        flags: u32,
    },
    UnlockAll,
    /// Copies bytes, or writes this one to all of them.
    Copy {
        way: Copied,
        span: Span,
        byte: u8,
    },
    /// mremap to the length `len`.
    Remap {
        span: Span,
        len: usize,
        way: Way,
        to: usize,
    },
    /// Moves the end of the heap, which begins far below the window.
    Brk {
        to: usize,
    },
    Read {
        at: usize,
    },
    Write {
        at: usize,
        byte: u8,
    },
    /// mincore.
    InCore(Span),
    /// The present bits of /proc/self/pagemap.
    PageMap(Span),
    /// The VMAs of the window, from /proc/self/maps.
    Maps,
    /// Rss, Anonymous and AnonHugePages of the VMAs, from /proc/self/smaps.
    Smaps,
    /// The present pages of each 2 MiB of the window, and the guard pages, with their categories,
    /// by PAGEMAP_SCAN.
    Chunks,
    /// The sizes of the window's VMAs, from /proc/self/status: all, data, stacks.
    Sizes,
    /// RLIMIT_AS, for the window alone; 0: none.
    Limit {
        bytes: usize,
    },
    /// A call of a monitor, or a scan.
    Monitor(Call),
}

const PLACES: [(Place, &str); 3] =
    [(Place::Hint, "hint"), (Place::Fixed, "fixed"), (Place::NoReplace, "noreplace")];
const KINDS: [(Kind, &str); 6] = [
    (Kind::Lazy, "lazy"),
    (Kind::Populate, "populate"),
    (Kind::GrowsDown, "growsdown"),
    (Kind::Locked, "locked"),
    (Kind::NoReserve, "noreserve"),
    (Kind::Stack, "stack"),
];
const OF: [(Of, &str); 9] = [
    (Of::Shared, "shared"),
    (Of::Private, "private"),
    (Of::Anonymous, "anonymous"),
    (Of::SharedPopulate, "shared_populate"),
    (Of::PrivatePopulate, "private_populate"),
    (Of::SharedLocked, "shared_locked"),
    (Of::PrivateLocked, "private_locked"),
    (Of::ReadShared, "read_shared"),
    (Of::ReadPrivate, "read_private"),
];
const COPIED: [(Copied, &str); 4] = [
    (Copied::Read, "read"),
    (Copied::Write, "write"),
    (Copied::Peek, "peek"),
    (Copied::Poke, "poke"),
];
const WAYS: [(Way, &str); 5] = [
    (Way::Stay, "stay"),
    (Way::MayMove, "maymove"),
    (Way::Fixed, "fixed"),
    (Way::DontUnmap, "dontunmap"),
    (Way::FixedDontUnmap, "fixed_dontunmap"),
];
pub(crate) const ADVICE: [(Advice, &str); 22] = [
    (Advice::DontNeed, "dontneed"),
    (Advice::DontNeedLocked, "dontneed_locked"),
    (Advice::Cold, "cold"),
    (Advice::Remove, "remove"),
    (Advice::Random, "random"),
    (Advice::Normal, "normal"),
    (Advice::PopulateRead, "populate_read"),
    (Advice::PopulateWrite, "populate_write"),
    (Advice::GuardInstall, "guard_install"),
    (Advice::GuardRemove, "guard_remove"),
    (Advice::HugePage, "hugepage"),
    (Advice::NoHugePage, "nohugepage"),
    (Advice::Collapse, "collapse"),
    (Advice::Free, "free"),
    (Advice::Sequential, "sequential"),
    (Advice::WillNeed, "willneed"),
    (Advice::DontFork, "dontfork"),
    (Advice::DoFork, "dofork"),
    (Advice::DontDump, "dontdump"),
    (Advice::DoDump, "dodump"),
    (Advice::WipeOnFork, "wipeonfork"),
    (Advice::KeepOnFork, "keeponfork"),
];

fn word<T: Copy + PartialEq>(table: &[(T, &'static str)], value: T) -> &'static str {
    table.iter().find(|(one, _)| *one == value).expect("the table is complete").1
}

fn value<T: Copy>(table: &[(T, &str)], word: &str) -> Option<T> {
    table.iter().find(|(_, name)| *name == word).map(|(one, _)| *one)
}

/// `PROT_*` as in the listing of VMAs.
pub(crate) fn rights(prot: u32) -> String {
    let letters = ['r', 'w', 'x'].into_iter().enumerate();
    letters.map(|(bit, letter)| if prot >> bit & 1 != 0 { letter } else { '-' }).collect()
}

fn prot(rights: &str) -> Option<u32> {
    (0..8).find(|prot| self::rights(*prot) == rights)
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x} {:x}", self.at, self.len)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Step::Map { span, prot, place, kind } => {
                let (place, kind) = (word(&PLACES, place), word(&KINDS, kind));
                write!(f, "map {span} {} {place} {kind}", rights(prot))
            }
            Step::Share { span, prot, place, of, offset } => {
                let (place, of) = (word(&PLACES, place), word(&OF, of));
                write!(f, "share {span} {} {place} {of} {offset:x}", rights(prot))
            }
            Step::SetSize { len } => write!(f, "setsize {len:x}"),
            Step::Punch(span) => write!(f, "punch {span}"),
            Step::Get { at } => write!(f, "get {at:x}"),
            Step::Put { at, byte } => write!(f, "put {at:x} {byte:x}"),
            Step::Sync { span, flags } => write!(f, "sync {span} {flags:x}"),
            Step::Fork => write!(f, "fork"),
            Step::Switch { to } => write!(f, "switch {to:x}"),
            Step::Exit { to } => write!(f, "exit {to:x}"),
            Step::Thread { to } => write!(f, "thread {to:x}"),
            Step::Unmap(span) => write!(f, "unmap {span}"),
            Step::Protect { span, prot } => write!(f, "protect {span} {}", rights(prot)),
            Step::Advise { span, advice } => write!(f, "advise {span} {}", word(&ADVICE, advice)),
            Step::Lock { span, on_fault } => write!(f, "lock {span} {}", on_fault as u8),
            Step::Unlock(span) => write!(f, "unlock {span}"),
            Step::LockAll { flags } => write!(f, "lockall {flags:x}"),
            Step::UnlockAll => write!(f, "unlockall"),
            Step::Copy { way, span, byte } => {
                write!(f, "copy {} {span} {byte:x}", word(&COPIED, way))
            }
            Step::Remap { span, len, way, to } => {
                write!(f, "remap {span} {len:x} {} {to:x}", word(&WAYS, way))
            }
            Step::Brk { to } => write!(f, "brk {to:x}"),
            Step::Read { at } => write!(f, "read {at:x}"),
            Step::Write { at, byte } => write!(f, "write {at:x} {byte:x}"),
            Step::InCore(span) => write!(f, "incore {span}"),
            Step::PageMap(span) => write!(f, "pagemap {span}"),
            Step::Maps => write!(f, "maps"),
            Step::Smaps => write!(f, "smaps"),
            Step::Chunks => write!(f, "chunks"),
            Step::Sizes => write!(f, "sizes"),
            Step::Limit { bytes } => write!(f, "limit {bytes:x}"),
            Step::Monitor(call) => call.fmt(f),
        }
    }
}

impl FromStr for Step {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |text: &str| usize::from_str_radix(text, 16).ok();
        let span = |at, len| Some(Span { at: number(at)?, len: number(len)? });
        let byte_at = |at, byte| number(at).zip(u8::from_str_radix(byte, 16).ok());
        let step = match words[..] {
            ["map", at, len, rights, place, kind] => (|| {
                let (place, kind) = (value(&PLACES, place)?, value(&KINDS, kind)?);
                Some(Step::Map { span: span(at, len)?, prot: prot(rights)?, place, kind })
            })(),
            ["share", at, len, rights, place, of, offset] => (|| {
                let (place, of) = (value(&PLACES, place)?, value(&OF, of)?);
                let (span, offset) = (span(at, len)?, number(offset)?);
                Some(Step::Share { span, prot: prot(rights)?, place, of, offset })
            })(),
            ["setsize", len] => number(len).map(|len| Step::SetSize { len }),
            ["punch", at, len] => span(at, len).map(Step::Punch),
            ["get", at] => number(at).map(|at| Step::Get { at }),
            ["put", at, byte] => byte_at(at, byte).map(|(at, byte)| Step::Put { at, byte }),
            ["sync", at, len, flags] => span(at, len)
                .zip(flags.parse().ok())
                .map(|(span, flags)| Step::Sync { span, flags }),
            ["fork"] => Some(Step::Fork),
            ["switch", to] => number(to).map(|to| Step::Switch { to }),
            ["exit", to] => number(to).map(|to| Step::Exit { to }),
            ["thread", to] => number(to).map(|to| Step::Thread { to }),
            ["unmap", at, len] => span(at, len).map(Step::Unmap),
            ["protect", at, len, rights] => {
                span(at, len).zip(prot(rights)).map(|(span, prot)| Step::Protect { span, prot })
            }
            ["advise", at, len, advice] => span(at, len)
                .zip(value(&ADVICE, advice))
                .map(|(span, advice)| Step::Advise { span, advice }),
            ["lock", at, len, on_fault] => span(at, len)
                .zip(number(on_fault))
                .map(|(span, on_fault)| Step::Lock { span, on_fault: on_fault != 0 }),
            ["unlock", at, len] => span(at, len).map(Step::Unlock),
            ["lockall", flags] => number(flags).map(|flags| Step::LockAll { flags: flags as u32 }),
            ["unlockall"] => Some(Step::UnlockAll),
            ["copy", way, at, len, byte] => (|| {
                let (way, span) = (value(&COPIED, way)?, span(at, len)?);
                Some(Step::Copy { way, span, byte: u8::from_str_radix(byte, 16).ok()? })
            })(),
            ["remap", at, old, len, way, to] => (|| {
                let (way, to) = (value(&WAYS, way)?, number(to)?);
                Some(Step::Remap { span: span(at, old)?, len: number(len)?, way, to })
            })(),
            ["brk", to] => number(to).map(|to| Step::Brk { to }),
            ["read", at] => number(at).map(|at| Step::Read { at }),
            ["write", at, byte] => byte_at(at, byte).map(|(at, byte)| Step::Write { at, byte }),
            ["incore", at, len] => span(at, len).map(Step::InCore),
            ["pagemap", at, len] => span(at, len).map(Step::PageMap),
            ["maps"] => Some(Step::Maps),
            ["smaps"] => Some(Step::Smaps),
            ["chunks"] => Some(Step::Chunks),
            ["sizes"] => Some(Step::Sizes),
            ["limit", bytes] => number(bytes).map(|bytes| Step::Limit { bytes }),
            _ => monitor::parse(&words).map(Step::Monitor),
        };
        step.ok_or_else(|| format!("not a step: {line}"))
    }
}

/// Reads a program. Skips empty and indented lines.
pub(crate) fn parse(text: &str) -> Result<Vec<Step>, String> {
    let is_step = |line: &&str| !line.is_empty() && !line.starts_with(' ');
    text.lines().filter(is_step).map(str::parse).collect()
}
