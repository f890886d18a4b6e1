//! Errors of changes of page tables.

use crate::format::FormatError;
use core::fmt;
use machine::{Asid, Frame, FrameError, Owner, PageSize, VirtAddr};

/// The reason why page tables cannot be changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Error {
    /// The range is empty.
    Empty,
    /// The range does not begin, or does not end, at a page boundary (4 KiB).
    Misaligned(VirtAddr),
    /// The address is not canonical, or the range crosses non-canonical addresses.
    NotCanonical(VirtAddr),
    /// The address is in the kernel's half, and these are user tables.
    Kernel(VirtAddr),
    /// A page is already mapped in the range to be mapped: the first such page.
    Occupied(VirtAddr),
    /// The range of a move and its target overlap: the first such address.
    Overlap(VirtAddr),
    /// A table for smaller pages is in the way of a large page. It maps no page any more:
    /// [`prune`](crate::PageTables::prune) removes it.
    EmptyTable(VirtAddr),
    /// The range cuts this page in two: split it first.
    Cut(VirtAddr, PageSize),
    /// An entry on the way to the address is malformed, or leads to no memory.
    Malformed(VirtAddr),
    /// The supplied page for the address is larger than was asked for.
    TooLarge(VirtAddr, PageSize),
    /// The kernel's tables would need a new top-level entry for the address, but user spaces
    /// already have copies of these entries. [`reserve`](crate::PageTables::reserve) the range
    /// earlier.
    TopLevelFixed(VirtAddr),
    /// This [`Paging`](crate::Paging) has, or had, kernel tables.
    SecondKernel,
    /// These are not the kernel's tables of this [`Paging`](crate::Paging).
    NotTheKernels,
    /// The pending flush belongs to other page tables.
    /// [`no_flush`](crate::PageTables::no_flush) of these tables makes the right one.
    NotTheTables,
    /// A user space cannot have the tag: it is the kernel's, the machine has no such tag, or it may
    /// be [assigned](crate::Tag::Assigned) to another space.
    Tag(Asid),
    /// All tags are [fixed](crate::Tag::Fixed), so none can be assigned.
    NoTag,
    /// A user page cannot be global: its translation would survive the flushes of its space.
    Global(VirtAddr),
    /// A user page needs [`Flags::USER`](crate::Flags::USER). Pages that only the kernel may use
    /// belong in the kernel's half, or are mapped by
    /// [`map_supervisor`](crate::PageTables::map_supervisor).
    NotUser(VirtAddr),
    /// A page for the kernel alone has rights, and not [`Flags::USER`](crate::Flags::USER).
    NotSupervisor(VirtAddr),
    /// The call would make this page a program's, which is for the kernel alone: unmap it first.
    Supervisor(VirtAddr),
    /// These tables have, or had, pages for the kernel alone
    /// ([`map_supervisor`](crate::PageTables::map_supervisor)): they cannot be forked.
    SupervisorFork,
    /// The frame cannot be a user page at the address: it is a page table, waits on a quicklist, or
    /// is free.
    Frame(VirtAddr, Frame, Owner),
    /// The format has no entry for the page.
    Format(FormatError),
    /// A fork of these tables is under way: try again after it.
    Fork,
    /// No memory for a table, or the supplier of frames failed.
    Frames(FrameError),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Empty => f.write_str("the range is empty"),
            Error::Misaligned(at) => write!(f, "{at} is not at a page boundary (4 KiB)"),
            Error::NotCanonical(at) => {
                write!(f, "{at} is not canonical, or the range crosses non-canonical addresses")
            }
            Error::Kernel(at) => {
                write!(f, "{at} is in the kernel's half: use the kernel's page tables")
            }
            Error::Occupied(at) => write!(f, "a page is already mapped at {at}: unmap it first"),
            Error::Overlap(at) => {
                write!(f, "the range to move and its target overlap at {at}: choose another target")
            }
            Error::EmptyTable(at) => {
                write!(f, "an empty table for smaller pages is in the way at {at}: prune the range")
            }
            Error::Cut(at, size) => {
                write!(f, "the range cuts the page of {size:?} at {at}: split it first")
            }
            Error::Malformed(at) => {
                write!(f, "an entry for {at} is malformed: the page tables are corrupt")
            }
            Error::TooLarge(at, size) => {
                write!(f, "the page of {size:?} supplied for {at} is larger than was asked for")
            }
            Error::TopLevelFixed(at) => write!(
                f,
                "there is no top-level entry for {at}: reserve it before the first user space"
            ),
            Error::SecondKernel => f.write_str("kernel page tables were already made"),
            Error::NotTheKernels => f.write_str("these are not the kernel's page tables"),
            Error::NotTheTables => f.write_str(
                "the pending flush is of other page tables: make it by no_flush of these",
            ),
            Error::Tag(tag) => write!(
                f,
                "the tag {} is the kernel's, the machine has none such, or it is assigned to \
                 spaces: choose another, before the first space with an assigned tag",
                tag.0
            ),
            Error::NoTag => f.write_str("all tags are fixed: let spaces have fewer"),
            Error::Global(at) => {
                write!(f, "a user page cannot be global: remove Flags::GLOBAL for {at}")
            }
            Error::NotUser(at) => {
                write!(f, "a user page needs Flags::USER: add it for {at}")
            }
            Error::NotSupervisor(at) => write!(
                f,
                "a page for the kernel alone needs rights without Flags::USER: remove it for {at}"
            ),
            Error::Supervisor(at) => {
                write!(f, "the page at {at} is for the kernel alone: unmap it first")
            }
            Error::SupervisorFork => f.write_str(
                "the tables have, or had, pages for the kernel alone: make new ones instead of a \
                 fork",
            ),
            Error::Frame(at, frame, owner) => {
                let what = match owner {
                    Owner::Table(_) => "is a page table",
                    Owner::Quick(_) => "waits on a quicklist to become a page table",
                    _ => "is free: allocate it first",
                };
                write!(f, "frame {frame} cannot be a user page at {at}: it {what}")
            }
            Error::Fork => f.write_str("the tables are being forked: try again after that"),
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
