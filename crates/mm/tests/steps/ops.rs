//! The operations of programs, and the steps that each is made of.

use crate::common::*;
use crate::{host::TELLS, world::WorldKind};
use mm::{Advice, UserFaultModes};

/// The memory that a map is of.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum What {
    Anon,
    /// Anonymous memory that processes share.
    Zeros,
    Memfd,
    /// A description that was opened for reading.
    MemfdRo,
    /// Two pages further on.
    MemfdOff,
    MemfdPrivate,
    File,
    FilePrivate,
    Device,
    /// Memory that grows down.
    Stack,
}

/// How it is mapped, in addition to FIXED.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum How {
    Plain,
    Populate,
    Locked,
    NoReplace,
}

/// Which object.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Which {
    Memfd,
    File,
}

/// An operation on the pages from `.0` on, `.1` pages long where there are two numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Op {
    Load(u8),
    Store(u8),
    /// A word in the second half of a page.
    LoadTail(u8),
    StoreTail(u8),
    Map(What, u8, u8, u32, How),
    Unmap(u8, u8),
    Protect(u8, u8, u32),
    Pkey(u8, u8, u8),
    Grow(u8, u8),
    Shrink(u8, u8),
    Move(u8, u8, u8),
    DontUnmap(u8, u8, u8),
    /// A second map of shared memory.
    Duplicate(u8, u8, u8),
    /// The heap has so many pages.
    Brk(u8),
    Advise(u8, u8, Advice),
    Lock(u8, u8),
    LockOnFault(u8, u8),
    Unlock(u8, u8),
    LockAll(bool, bool),
    UnlockAll,
    Mincore(u8, u8),
    Msync(u8, u8),
    MsyncInvalidate(u8, u8),
    Fork,
    Exec,
    Mseal(u8, u8),
    Mbind(u8, u8),
    Settle(u8, u8),
    Attach(u8),
    Detach(u8),
    /// Half pages.
    SetSize(Which, u8),
    Punch(Which, u8),
    ReadObject(Which, u8),
    WriteObject(Which, u8),
    Seal(u32),
    Sync(u8, u8),
    Evict(u8),
    Register(u8, u8, UserFaultModes, u64),
    Unregister(u8, u8),
    Close(u64),
    Copy(u8, u8, bool),
    ZeroPage(u8, u8),
    Continue(u8, u8, bool),
    Poison(u8, u8),
    MovePages(u8, u8, u8, bool),
    WriteProtect(u8, u8, bool),
    ClearSoftDirty,
    ClearReferenced,
    SoftDirty(u8, u8),
    Scan(u8, u8, bool),
    Reclaim(u8),
    /// A pin for writing, or for reading, that is held until its program unpins it or ends; an
    /// access through it; its end.
    Pin(u8),
    PinRead(u8),
    PinLong(u8),
    PinnedStore,
    PinnedLoad,
    Unpin,
    Read(u8, u8),
    Write(u8, u8),
    CopyIn(u8),
    CopyOut(u8),
    Peek(u8),
    Poke(u8),
    /// Of the other process.
    ReadOther(u8),
    WriteOther(u8),
    Listing,
    /// Steps of other operations: the changes of VMAs by mmap, mlock and mlockall.
    MapVmas(What, u8, u8, u32, How),
    LockVmas(u8, u8),
    LockAllVmas(bool, bool),
    /// A page is brought in, as far as it can be; if it is locked; or the error is mlock's.
    BringIn(u8),
    BringInIfLocked(u8),
    BringInLocked(u8),
    /// The object behind a page gets the page, for a write or a read.
    ObjectIn(u8, bool),
    /// The fault of a write or a read.
    Touch(u8, bool),
    /// Where MADV_REMOVE finds objects, and the removal of one of the pages that it has found.
    FindToRemove(u8, u8),
    RemoveFound,
    /// Removes pages, as MADV_GUARD_INSTALL does before it installs guard pages.
    Zap(u8),
    /// A monitor is told of a removal, and the removal: the call holds nothing in between.
    Announce(u8),
    Announced(u8, Advice),
}

/// How the results of the parts of an operation make its result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Join {
    /// The first error ends it.
    Stop,
    /// It goes on, and tells of the last error.
    GoOn,
}

/// The parts of an operation: each is one step. One that has a single part is a step itself.
pub(crate) struct Parts {
    pub(crate) ops: Vec<Op>,
    pub(crate) join: Join,
}

const AT: usize = 0x4000_0000;
/// Pages from here on are those of the heap.
pub(crate) const HEAP_PAGE: u8 = 10;
/// Pages from here on are where maps are moved to.
pub(crate) const FAR: u8 = 12;
/// The pages of worlds with huge pages: near the borders, and both sides of the middle.
const HUGE_PAGES: [usize; 9] = [0, 1, 255, 256, 511, 512, 513, 1023, 1024];

std::thread_local! {
    /// Whether pages lie as in worlds with huge pages.
    pub(crate) static IS_HUGE: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// The address of a page.
pub(crate) fn at(page: u8) -> usize {
    let page = usize::from(page);
    match page {
        0..=8 if IS_HUGE.get() => AT + HUGE_PAGES[page] * PAGE,
        0..=8 => AT + page * PAGE,
        _ if page < usize::from(FAR) => HEAP + (page - usize::from(HEAP_PAGE)) * PAGE,
        // In a huge world, places are alike within 2 MiB.
        _ if IS_HUGE.get() => AT + (8 << 20) + HUGE_PAGES[page - usize::from(FAR)] * PAGE,
        _ => AT + (8 << 20) + (page - usize::from(FAR)) * PAGE,
    }
}

/// The end of the part of the address space for which a page stands: up to the next one.
pub(crate) fn end(page: u8) -> usize {
    at(page + 1)
}

/// The bytes of some pages from one on.
pub(crate) fn len(page: u8, pages: u8) -> usize {
    end(page + pages - 1) - at(page)
}

impl Op {
    /// Whether it accesses memory, by the program or by the kernel for one.
    pub(crate) fn is_access(self) -> bool {
        self.accesses_pages().is_some() || matches!(self, Op::ReadOther(_) | Op::WriteOther(_))
    }

    /// Its name, without the pages: as in the tables of this test.
    pub(crate) fn name(self) -> String {
        let text = format!("{self:?}");
        match self {
            Op::Advise(_, _, advice) => format!("{advice:?}"),
            Op::Map(what, ..) => format!("Map{what:?}"),
            Op::SetSize(of, _)
            | Op::Punch(of, _)
            | Op::ReadObject(of, _)
            | Op::WriteObject(of, _) => {
                format!("{}{of:?}", &text[..text.find('(').unwrap()])
            }
            _ => text[..text.find('(').unwrap_or(text.len())].into(),
        }
    }

    /// The page that it accesses, and whether it writes, if it is an access of one page: by the
    /// program, or by the kernel for it.
    fn accesses(self) -> Option<(u8, bool)> {
        match self {
            Op::Load(page)
            | Op::LoadTail(page)
            | Op::PinRead(page)
            | Op::Read(page, 1)
            | Op::CopyIn(page)
            | Op::Peek(page) => Some((page, false)),
            Op::Store(page)
            | Op::StoreTail(page)
            | Op::Pin(page)
            | Op::PinLong(page)
            | Op::Write(page, 1)
            | Op::CopyOut(page)
            | Op::Poke(page) => Some((page, true)),
            _ => None,
        }
    }

    /// The pages that it accesses, if it does so: the first one and their number.
    pub(crate) fn accesses_pages(self) -> Option<(u8, u8)> {
        match self {
            Op::Read(page, pages) | Op::Write(page, pages) => Some((page, pages)),
            _ => self.accesses().map(|(page, _)| (page, 1)),
        }
    }

    /// The operation as its steps. Calls that change what is mapped are one.
    ///
    /// As on any hardware, an access may be a fault and, after it, the access; so is that of the
    /// kernel for a program. As in Linux, a fault
    /// may let the object get its page before the page is mapped; MADV_REMOVE gives up the mmap
    /// lock between the VMAs and the objects; and MADV_GUARD_INSTALL removes pages before it
    /// installs guard pages.
    pub(crate) fn parts(self, kind: WorldKind) -> Parts {
        use Join::{GoOn, Stop};
        let each = |page: u8, pages: u8, one: &dyn Fn(u8) -> Op| -> Vec<Op> {
            (page..page + pages).map(one).collect()
        };
        if let Some((page, writes)) = self.accesses() {
            let mut ops = vec![Op::Touch(page, writes), self];
            if kind.has_object() {
                ops.insert(0, Op::ObjectIn(page, writes));
            }
            return Parts { ops, join: Stop };
        }
        let (ops, join) = match self {
            Op::Advise(page, pages, Advice::Remove) => {
                let mut ops = vec![Op::FindToRemove(page, pages)];
                ops.extend((0..pages).map(|_| Op::RemoveFound));
                (ops, GoOn)
            }
            Op::Advise(page, pages, advice) => {
                let one = |page| Op::Advise(page, 1, advice);
                match advice {
                    Advice::GuardInstall => {
                        let both = |page| [Op::Zap(page), one(page)];
                        ((page..page + pages).flat_map(both).collect(), GoOn)
                    }
                    Advice::PopulateRead | Advice::PopulateWrite => (each(page, pages, &one), Stop),
                    Advice::DontNeed | Advice::Free | Advice::DontNeedLocked
                        if kind == WorldKind::Told =>
                    {
                        let mut ops = each(page, pages, &Op::Announce);
                        ops.extend(each(page, pages, &|page| Op::Announced(page, advice)));
                        (ops, Stop)
                    }
                    Advice::DontNeed
                    | Advice::Free
                    | Advice::Cold
                    | Advice::PageOut
                    | Advice::DontNeedLocked
                    | Advice::WillNeed
                    | Advice::GuardRemove => (each(page, pages, &one), GoOn),
                    _ => (vec![self], Stop),
                }
            }
            Op::Map(what, page, pages, prot, how) if what != What::Zeros => {
                let mut ops = vec![Op::MapVmas(what, page, pages, prot, how)];
                let one = match how {
                    How::Populate => Op::BringIn,
                    _ => Op::BringInIfLocked,
                };
                ops.extend(each(page, pages, &one));
                (ops, Stop)
            }
            Op::Lock(page, pages) => {
                let mut ops = vec![Op::LockVmas(page, pages)];
                ops.extend(each(page, pages, &Op::BringInLocked));
                (ops, Stop)
            }
            Op::LockAll(true, future) => {
                let mut ops = vec![Op::LockAllVmas(true, future)];
                ops.extend(each(0, 8, &Op::BringIn));
                (ops, GoOn)
            }
            Op::Mincore(page, pages) => (each(page, pages, &|page| Op::Mincore(page, 1)), Stop),
            Op::SoftDirty(page, pages) => (each(page, pages, &|page| Op::SoftDirty(page, 1)), Stop),
            Op::Scan(page, pages, marks) => {
                (each(page, pages, &|page| Op::Scan(page, 1, marks)), Stop)
            }
            Op::Msync(page, pages) => (each(page, pages, &|page| Op::Msync(page, 1)), GoOn),
            Op::Sync(page, pages) => (each(page, pages, &|page| Op::Sync(page, 1)), GoOn),
            Op::Copy(page, pages, protect) => {
                (each(page, pages, &|page| Op::Copy(page, 1, protect)), Stop)
            }
            Op::ZeroPage(page, pages) => (each(page, pages, &|page| Op::ZeroPage(page, 1)), Stop),
            Op::Continue(page, pages, protect) => {
                (each(page, pages, &|page| Op::Continue(page, 1, protect)), Stop)
            }
            Op::Poison(page, pages) => (each(page, pages, &|page| Op::Poison(page, 1)), Stop),
            Op::MovePages(to, from, pages, holes) => {
                let one = |page: u8| Op::MovePages(to + page, from + page, 1, holes);
                ((0..pages).map(one).collect(), Stop)
            }
            Op::WriteProtect(page, pages, protect) => {
                (each(page, pages, &|page| Op::WriteProtect(page, 1, protect)), Stop)
            }
            Op::Read(page, pages) => {
                let both = |page| [Op::Touch(page, false), Op::Read(page, 1)];
                ((page..page + pages).flat_map(both).collect(), Stop)
            }
            Op::Write(page, pages) => {
                let both = |page| [Op::Touch(page, true), Op::Write(page, 1)];
                ((page..page + pages).flat_map(both).collect(), Stop)
            }
            _ => (vec![self], Stop),
        };
        Parts { ops, join }
    }
}

/// Whether some pages are one step each: in a huge world, only those that stand for one page.
fn are_pages(page: u8, pages: u8, kind: WorldKind) -> bool {
    !kind.is_huge() || !(page..page + pages).any(|page| matches!(page, 1 | 3 | 6))
}

/// Whether an operation means something in a world.
pub(crate) fn fits(op: Op, kind: WorldKind) -> bool {
    match op {
        Op::Read(page, pages)
        | Op::Write(page, pages)
        | Op::Lock(page, pages)
        | Op::Advise(page, pages, Advice::PopulateRead | Advice::PopulateWrite)
        | Op::Map(_, page, pages, _, How::Populate | How::Locked)
            if !are_pages(page, pages, kind) =>
        {
            false
        }
        Op::Punch(..) | Op::SetSize(..) | Op::Advise(_, _, Advice::Remove)
            if kind == WorldKind::Minor =>
        {
            false
        }
        Op::Close(TELLS) | Op::Register(_, _, _, TELLS) => kind == WorldKind::Told,
        Op::LockAll(..) => !kind.is_huge(),
        // It chooses pages by their accessed bits. The next access of one asks the monitor.
        Op::Reclaim(_) if kind == WorldKind::Minor => false,
        Op::Map(What::Memfd | What::MemfdRo | What::MemfdOff | What::MemfdPrivate, ..)
        | Op::Seal(_)
        | Op::SetSize(Which::Memfd, _)
        | Op::Punch(Which::Memfd, _)
        | Op::ReadObject(Which::Memfd, _)
        | Op::WriteObject(Which::Memfd, _) => kind.has_memfd(),
        Op::Map(What::File | What::FilePrivate, ..)
        | Op::SetSize(Which::File, _)
        | Op::ReadObject(Which::File, _)
        | Op::WriteObject(Which::File, _)
        | Op::Sync(..)
        | Op::Evict(_)
        | Op::Msync(..)
        | Op::MsyncInvalidate(..) => kind == WorldKind::File,
        Op::Map(What::Device, ..) => kind == WorldKind::Device,
        Op::Map(What::Stack, ..) => kind == WorldKind::Anon,
        Op::LoadTail(_)
        | Op::StoreTail(_)
        | Op::Advise(_, _, Advice::Remove | Advice::WillNeed) => {
            kind.has_memfd() || kind == WorldKind::File
        }
        Op::Copy(..)
        | Op::ZeroPage(..)
        | Op::Continue(..)
        | Op::Poison(..)
        | Op::MovePages(..)
        | Op::WriteProtect(..)
        | Op::Unregister(..)
        | Op::Close(_) => kind.is_watched(),
        Op::Scan(..) => kind == WorldKind::Tracked,
        // In Linux, too, the page that a fault has let the object get is a minor fault of others,
        // and whether it is mapped already depends on the faults around. So there the object has
        // all its pages.
        Op::Register(_, _, UserFaultModes::MINOR, _) => kind == WorldKind::Minor,
        Op::Register(..) => !matches!(kind, WorldKind::Device | WorldKind::File),
        Op::Advise(_, _, Advice::Collapse | Advice::HugePage | Advice::NoHugePage) => {
            kind.is_huge()
        }
        // A heap, and places that are chosen, are the same in all worlds.
        Op::Brk(_) | Op::Attach(_) | Op::Detach(_) => kind == WorldKind::Anon,
        // A copy is one step for each page.
        Op::ReadOther(page) | Op::WriteOther(page) => {
            kind.processes() > 1 && are_pages(page, 1, kind)
        }
        // The memory of a device is there only to be mapped.
        Op::Load(_) | Op::Store(_) | Op::CopyIn(_) | Op::CopyOut(_) => kind != WorldKind::Device,
        Op::Read(..) | Op::Write(..) | Op::Reclaim(_) => kind != WorldKind::Device,
        _ => true,
    }
}
