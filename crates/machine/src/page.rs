//! Page sizes.

/// The size of a page that a translation can map.
///
/// ```
/// use machine::PageSize;
/// assert_eq!(PageSize::Size2M.bytes(), 512 * PageSize::Size4K.bytes());
/// assert_eq!(PageSize::Size1G.order(), 18);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum PageSize {
    /// 4 KiB: one frame.
    #[default]
    Size4K,
    /// 2 MiB: 512 frames.
    Size2M,
    /// 1 GiB: 262,144 frames.
    Size1G,
}

impl PageSize {
    /// All sizes, in ascending order.
    pub const ALL: [PageSize; 3] = [PageSize::Size4K, PageSize::Size2M, PageSize::Size1G];

    /// The base-2 logarithm of the size in bytes.
    #[inline]
    pub const fn shift(self) -> u32 {
        match self {
            PageSize::Size4K => 12,
            PageSize::Size2M => 21,
            PageSize::Size1G => 30,
        }
    }

    /// The size in bytes.
    #[inline]
    pub const fn bytes(self) -> u64 {
        1 << self.shift()
    }

    /// The base-2 logarithm of the size in frames: the order for
    /// [`FrameSource::alloc`](crate::FrameSource::alloc).
    #[inline]
    pub const fn order(self) -> u8 {
        (self.shift() - 12) as u8
    }

    /// The size in frames.
    #[inline]
    pub const fn frames(self) -> u64 {
        1 << self.order()
    }
}
