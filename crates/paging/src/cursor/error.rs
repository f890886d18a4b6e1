//! Why page tables cannot be changed.

use crate::format::{Format, FormatError};
use crate::pending::PendingFlush;
use core::fmt;
use grace::Concurrent;
use machine::{Asid, Frame, FrameError, Machine, Owner, PageSize, VirtAddr};

/// Why page tables cannot be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// The range is empty.
    Empty,
    /// The range does not begin, or does not end, at the border of a page of 4 KiB.
    Misaligned(VirtAddr),
    /// The address is not canonical, or the range reaches over such addresses.
    NotCanonical(VirtAddr),
    /// The address is the kernel's, and these tables are a program's.
    Kernel(VirtAddr),
    /// Something is mapped already where pages were to be mapped: the first page that is in the
    /// way.
    Occupied(VirtAddr),
    /// Where a large page was to be mapped lies a table for smaller ones, which has no pages any
    /// more: [`prune`](crate::PageTables::prune) takes it out.
    EmptyTable(VirtAddr),
    /// The range cuts this page in two: split it first.
    Cut(VirtAddr, PageSize),
    /// An entry on the way to the address has bits that no entry may have, or leads to no memory.
    Malformed(VirtAddr),
    /// What was to be mapped at the address is larger than what was asked for.
    TooLarge(VirtAddr, PageSize),
    /// The kernel's tables would need a new top-level entry for the address, but spaces of programs
    /// have copies of those.
    TopLevelFixed(VirtAddr),
    /// There are, or were, tables of the kernel already.
    SecondKernel,
    /// The tables that were given as the kernel's are not those of the same
    /// [`Paging`](crate::Paging).
    NotTheKernels,
    /// A program cannot have the tag: it is the kernel's, or the machine has no such tag.
    Tag(Asid),
    /// A page of a program cannot be global: its translation would outlive the flushes of its
    /// space.
    Global(VirtAddr),
    /// A page of a program must have [`Flags::USER`](crate::Flags::USER): what programs may not use
    /// belongs in the kernel's half.
    NotUser(VirtAddr),
    /// The frame cannot be a program's page, at the address: it is a page table, waits on a
    /// quicklist, or is free.
    Frame(VirtAddr, Frame, Owner),
    /// There is no entry for it.
    Format(FormatError),
    /// Memory for a table, or what was to be mapped, could not be had.
    Frames(FrameError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Empty => f.write_str("the range is empty"),
            Error::Misaligned(at) => write!(f, "{at} is not the border of a page"),
            Error::NotCanonical(at) => write!(f, "{at} is not canonical, or lies across such"),
            Error::Kernel(at) => write!(f, "{at} is the kernel's"),
            Error::Occupied(at) => write!(f, "something is mapped at {at} already"),
            Error::EmptyTable(at) => {
                write!(f, "an empty table for smaller pages is in the way at {at}: prune the range")
            }
            Error::Cut(at, size) => write!(f, "the range cuts the page of {size:?} at {at}"),
            Error::Malformed(at) => write!(f, "an entry for {at} is malformed"),
            Error::TooLarge(at, size) => write!(f, "a page of {size:?} does not fit at {at}"),
            Error::TopLevelFixed(at) => {
                write!(f, "the kernel's top-level entries are fixed, and there is none for {at}")
            }
            Error::SecondKernel => f.write_str("there are, or were, tables of the kernel already"),
            Error::NotTheKernels => f.write_str("the tables that were given are not the kernel's"),
            Error::Tag(tag) => write!(f, "no program can have the tag {}", tag.0),
            Error::Global(at) => write!(f, "{at} is a program's: no page there can be global"),
            Error::NotUser(at) => {
                write!(f, "{at} is a program's: pages there need Flags::USER among their rights")
            }
            Error::Frame(at, frame, owner) => {
                let what = match owner {
                    Owner::Table(_) => "is a page table",
                    Owner::Quick(_) => "waits on a quicklist to become a page table",
                    _ => "is free: allocate it first",
                };
                write!(f, "frame {frame} cannot be a program's page at {at}: it {what}")
            }
            Error::Format(error) => error.fmt(f),
            Error::Frames(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for Error {}

impl From<FormatError> for Error {
    fn from(error: FormatError) -> Error {
        Error::Format(error)
    }
}

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Error {
        Error::Frames(error)
    }
}

/// An operation that has failed. The tables translate as they did before (I7), but something may be
/// owed for what was there in between; dropping this flushes.
#[must_use = "stale translations remain until what is owed is flushed"]
pub struct Failed<'p, M: Machine, F: Format, G: Concurrent> {
    /// The cause.
    pub error: Error,
    /// What is owed all the same.
    pub owed: PendingFlush<'p, M, F, G>,
}

impl<M: Machine, F: Format, G: Concurrent> fmt::Debug for Failed<'_, M, F, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failed").field("error", &self.error).field("owed", &self.owed).finish()
    }
}

impl<M: Machine, F: Format, G: Concurrent> fmt::Display for Failed<'_, M, F, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<M: Machine, F: Format, G: Concurrent> core::error::Error for Failed<'_, M, F, G> {}
