//! Frames: 4 KiB pieces of physical memory, by number.

use crate::{PageSize, PhysAddr};
use core::fmt;

/// A 4 KiB frame of physical memory, by its number (physical address divided by 4096).
///
/// Numbers are below 2^52, so that every frame has a physical address.
///
/// ```
/// use machine::{Frame, PhysAddr};
/// let frame = Frame::containing(PhysAddr::new(0x1_2345));
/// assert_eq!(frame.number(), 0x12);
/// assert_eq!(frame.start(), PhysAddr::new(0x1_2000));
/// assert_eq!(Frame::new(1 << 52), None);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct Frame(u64);

impl Frame {
    /// One more than the largest frame number.
    pub const LIMIT: u64 = 1 << 52;

    /// The frame with this number. `None` if the number is [`LIMIT`](Self::LIMIT) or more.
    #[inline]
    pub const fn new(number: u64) -> Option<Frame> {
        if number < Self::LIMIT { Some(Frame(number)) } else { None }
    }

    /// The frame that contains the byte at `at`.
    #[inline]
    pub const fn containing(at: PhysAddr) -> Frame {
        Frame(at.get() >> 12)
    }

    /// The number.
    #[inline]
    pub const fn number(self) -> u64 {
        self.0
    }

    /// The address of the first byte.
    #[inline]
    pub const fn start(self) -> PhysAddr {
        PhysAddr::new(self.0 << 12)
    }

    /// The frame `frames` after this one. `None` past the last frame.
    #[inline]
    pub const fn checked_add(self, frames: u64) -> Option<Frame> {
        match self.0.checked_add(frames) {
            Some(number) => Frame::new(number),
            None => None,
        }
    }

    /// The first frame of the page of this size that contains the frame.
    #[inline]
    pub const fn align_down(self, size: PageSize) -> Frame {
        Frame(self.0 & !(size.frames() - 1))
    }

    /// Whether a page of this size can begin at this frame.
    #[inline]
    pub const fn is_aligned(self, size: PageSize) -> bool {
        self.0 & (size.frames() - 1) == 0
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "f{:#x}", self.0)
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
