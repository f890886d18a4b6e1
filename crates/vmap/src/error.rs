//! The errors of calls on virtual areas.

use crate::PAGE;
use core::fmt;
use core::panic::Location;
use machine::{Frame, FrameError, PhysAddr, VirtAddr, VirtRange};
use paging::Cache;

/// An error of a call. The call has changed nothing (I7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Error {
    /// Zero pages or bytes were requested.
    ZeroSize,
    /// The requested bytes exceed the whole space.
    TooLarge(u64),
    /// No zone has so many contiguous free bytes, even after all waiting addresses were flushed.
    NoSpace(u64),
    /// The heap has no memory for the area's record or its tree nodes.
    OutOfMemory,
    /// The frame source has no memory for the area or its page tables.
    Frames(FrameError),
    /// The call needs more frames than are free. No frame was taken.
    FewFrames {
        /// Frames that the call needs, page-table pages included.
        wanted: u64,
        /// Frames that are free.
        free: u64,
    },
    /// The attributes would let programs access kernel memory.
    UserAccess,
    /// The attributes would make a page writable and executable at once.
    WritableCode,
    /// The attributes would map RAM with another memory type than its other mappings have.
    MemoryType {
        /// The first frame that is RAM; `None` if all of the memory is.
        frame: Option<Frame>,
        /// The requested memory type.
        cache: Cache,
    },
    /// The range to be mapped as a device contains RAM; this is the first such frame.
    Ram(Frame),
    /// The alignment of a request is not a power of two.
    BadAlign(u64),
    /// The requested address is not a multiple of the requested alignment, or of a page.
    Unaligned {
        /// The requested address.
        at: VirtAddr,
        /// The alignment in bytes.
        align: u64,
    },
    /// An area at the requested address would not lie in the space.
    Outside {
        /// The requested address.
        at: VirtAddr,
        /// The bytes of the area, guard pages included.
        bytes: u64,
        /// The addresses of the space that areas can have.
        space: VirtRange,
    },
    /// An area at the requested address would lie in two zones.
    AcrossZones {
        /// The requested address.
        at: VirtAddr,
        /// The start of the second zone.
        border: VirtAddr,
    },
    /// Another area has some of the requested addresses.
    InTheWay(Culprit),
    /// The caller has not unmapped this page of the reserved area.
    StillMapped(VirtAddr),
    /// No area of this space contains the address: it was never mapped, or was unmapped long ago.
    NotMapped(VirtAddr),
    /// The area was already unmapped, and its addresses wait.
    Twice(Culprit),
    /// The address lies inside an area, but not at its start.
    NotTheStart(Culprit),
    /// The number of pages differs from the number that was mapped at the address.
    WrongSize {
        /// The area.
        area: Culprit,
        /// The number that the caller passed.
        pages: usize,
    },
    /// Another call mapped the area; its counterpart must unmap it.
    WrongKind(Culprit),
    /// The physical range is empty, wraps, or exceeds the physical addresses of the format.
    NotPhysical(PhysAddr),
    /// The range for areas is empty or too small, not aligned to 4 KiB, or not in the kernel's
    /// half; or the page tables are not the kernel's.
    BadSpace(VirtRange),
    /// The page tables refuse the operation.
    Tables(paging::Error),
}

/// The area that an error is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Culprit {
    /// The address that the caller passed.
    pub at: VirtAddr,
    /// The first page of the area.
    pub start: VirtAddr,
    /// The call site that mapped it; unknown in release builds without the feature `listing`.
    pub by: Option<&'static Location<'static>>,
}

impl fmt::Display for Culprit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (area at {}", self.at, self.start)?;
        if let Some(by) = self.by {
            write!(f, ", mapped by {}:{}", by.file(), by.line())?;
        }
        f.write_str(")")
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::ZeroSize => {
                f.write_str("the size is zero; ask for at least one byte, or one page")
            }
            Error::TooLarge(bytes) => write!(
                f,
                "{bytes} bytes are more than the space has; ask for less, or create a larger space"
            ),
            Error::NoSpace(bytes) => write!(
                f,
                "no zone of the space has {bytes} contiguous free bytes with the requested \
                 alignment; unmap areas, or create a larger space"
            ),
            Error::OutOfMemory => {
                f.write_str("the heap has no memory for the area's record; free memory and retry")
            }
            Error::Frames(error) => error.fmt(f),
            Error::FewFrames { wanted, free } => write!(
                f,
                "out of memory: {wanted} frames are needed and {free} are free, some of which are \
                 reserved; ask for less, or free memory"
            ),
            Error::UserAccess => f.write_str(
                "the attributes have USER, but areas are the kernel's; map the frames in the \
                 program's page tables",
            ),
            Error::WritableCode => f.write_str(
                "the attributes have both WRITE and EXECUTE; map the frames twice, or write first \
                 and then protect",
            ),
            Error::MemoryType { frame, cache } => {
                match frame {
                    Some(frame) => write!(f, "frame {frame} is RAM")?,
                    None => f.write_str("the memory is RAM")?,
                }
                write!(f, ", which is mapped write-back elsewhere; it cannot be {cache:?} here")
            }
            Error::Ram(frame) => {
                write!(f, "frame {frame} is RAM, not a device; map it with vmap")
            }
            Error::BadAlign(align) => write!(
                f,
                "the alignment {align} is not a power of two; pass one, for example {PAGE} for \
                 whole pages"
            ),
            Error::Unaligned { at, align } => write!(
                f,
                "{at} is not a multiple of the alignment {align}; round it, or request a smaller \
                 alignment"
            ),
            Error::Outside { at, bytes, space } => write!(
                f,
                "{bytes} bytes at {at}, guard pages included, are outside of the space, whose \
                 areas lie in {space:?}; choose an address there"
            ),
            Error::AcrossZones { at, border } => write!(
                f,
                "the area at {at}, guard pages included, would cross the border between two zones \
                 at {border}; choose an address on one side of it"
            ),
            Error::InTheWay(area) => write!(
                f,
                "another area has some of the requested addresses: {area}; unmap it, or choose \
                 another address"
            ),
            Error::StillMapped(at) => write!(
                f,
                "the page at {at} is still mapped in the reserved area; unmap it in the page \
                 tables first"
            ),
            Error::NotMapped(at) => write!(
                f,
                "no area is mapped at {at}: it was never mapped, or was unmapped long ago"
            ),
            Error::Twice(area) => write!(f, "already unmapped: {area}"),
            Error::NotTheStart(area) => write!(
                f,
                "not the start of its area: {area}; pass the address that the mapping call \
                 returned"
            ),
            Error::WrongSize { area, pages } => write!(
                f,
                "{pages} pages are not the size of {area}; pass the number that was mapped"
            ),
            Error::WrongKind(area) => write!(
                f,
                "mapped by another kind of call: {area}; unmap it with the counterpart of that call"
            ),
            Error::NotPhysical(at) => write!(
                f,
                "no physical range at {at}: it is empty, wraps, or exceeds the format's physical \
                 addresses"
            ),
            Error::BadSpace(range) => write!(
                f,
                "{range:?} cannot be a space for areas: it must be a range of 4 KiB pages in the \
                 kernel's half of the kernel's page tables"
            ),
            Error::Tables(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for Error {}

impl From<paging::Error> for Error {
    fn from(error: paging::Error) -> Error {
        match error {
            paging::Error::Frames(error) => Error::Frames(error),
            error => Error::Tables(error),
        }
    }
}

impl From<FrameError> for Error {
    fn from(error: FrameError) -> Error {
        Error::Frames(error)
    }
}

impl From<maple::AllocError> for Error {
    fn from(_: maple::AllocError) -> Error {
        Error::OutOfMemory
    }
}
