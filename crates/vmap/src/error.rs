//! Why a call on virtual areas fails.

use core::fmt;
use core::panic::Location;
use machine::{Frame, FrameError, PhysAddr, VirtAddr, VirtRange};
use paging::Cache;

/// Why a call fails. Nothing has changed then (I7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Error {
    /// No pages, or no bytes, were asked for.
    ZeroSize,
    /// So many bytes are more than the whole space has.
    TooLarge(u64),
    /// There is no free run of so many bytes in one zone, even after everything that waited has
    /// been flushed.
    NoSpace(u64),
    /// The heap has no memory for the bookkeeping.
    OutOfMemory,
    /// Memory for the area or for page tables could not be had.
    Frames(FrameError),
    /// The call needs more frames than are free. No frame was taken.
    FewFrames {
        /// Frames that the call needs, page tables included.
        wanted: u64,
        /// Frames that are free.
        free: u64,
    },
    /// The attributes would let programs use memory of the kernel.
    UserAccess,
    /// The attributes would make a page writable and executable at once.
    WritableCode,
    /// The attributes would map RAM with another memory type than its other mappings have.
    MemoryType {
        /// The first frame that is RAM; `None` where all of the memory is.
        frame: Option<Frame>,
        /// The memory type that was asked for.
        cache: Cache,
    },
    /// A range that is to be mapped as a device has RAM in it: this frame is the first.
    Ram(Frame),
    /// The address lies in no area of this space: it was never mapped, or was unmapped long ago.
    NotMapped(VirtAddr),
    /// The area was unmapped before, and its addresses wait.
    Twice(Culprit),
    /// The address lies in an area but does not begin it.
    NotTheStart(Culprit),
    /// So many pages are not what was mapped at the address.
    WrongSize {
        /// The area.
        area: Culprit,
        /// What the caller said.
        pages: usize,
    },
    /// The area was mapped by another call, and must be unmapped by its counterpart.
    WrongKind(Culprit),
    /// The physical range is empty, wraps, or reaches beyond what the format can address.
    NotPhysical(PhysAddr),
    /// The space for areas is no multiple of 4 KiB in the kernel's half, or too small.
    BadSpace(VirtRange),
    /// The page tables refuse it.
    Tables(paging::Error),
}

/// An area that was not what the caller took it for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Culprit {
    /// The address that the caller gave.
    pub at: VirtAddr,
    /// Where the area begins.
    pub start: VirtAddr,
    /// Who mapped it; in release builds nobody keeps account of that without the feature `listing`.
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
            Error::ZeroSize => f.write_str("nothing was asked for: the size is zero"),
            Error::TooLarge(bytes) => write!(f, "{bytes} bytes are more than the space has"),
            Error::NoSpace(bytes) => {
                write!(f, "no zone of the space has a free run of {bytes} bytes left")
            }
            Error::OutOfMemory => f.write_str("the heap has no memory to keep account of the area"),
            Error::Frames(error) => error.fmt(f),
            Error::FewFrames { wanted, free } => write!(
                f,
                "out of memory: {wanted} frames are needed and {free} are free, some of which are left to \
                 others; ask for less, or free memory"
            ),
            Error::UserAccess => f.write_str(
                "the attributes have USER, but areas are the kernel's; map the frames in the program's page tables",
            ),
            Error::WritableCode => f.write_str(
                "the attributes have both WRITE and EXECUTE; map two areas, or write first and then protect",
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
            Error::NotMapped(at) => write!(f, "no area is mapped at {at}"),
            Error::Twice(area) => write!(f, "unmapped a second time: {area}"),
            Error::NotTheStart(area) => write!(f, "not the start of its area: {area}"),
            Error::WrongSize { area, pages } => write!(f, "not {pages} pages were mapped: {area}"),
            Error::WrongKind(area) => write!(f, "mapped by another kind of call: {area}"),
            Error::NotPhysical(at) => write!(f, "no such physical range at {at}"),
            Error::BadSpace(range) => write!(f, "{range:?} cannot be a space for areas"),
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
