//! Page sizes.

/// The size of a page that a translation can map. A format of page tables has some of them: with a
/// granule of 4 KiB those of 4 KiB, 2 MiB and 1 GiB, with one of 16 KiB those of 16 KiB and 32 MiB,
/// with one of 64 KiB those of 64 KiB and 512 MiB.
///
/// ```
/// use machine::PageSize;
/// assert_eq!(PageSize::Size2M.bytes(), 512 * PageSize::Size4K.bytes());
/// assert_eq!(PageSize::Size1G.order(), 18);
/// assert_eq!(PageSize::from_shift(14), Some(PageSize::Size16K));
/// assert_eq!(PageSize::from_shift(13), None);
/// ```
// The number of each is the base-2 logarithm of its size in bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum PageSize {
    /// 4 KiB: one frame.
    #[default]
    Size4K = 12,
    /// 16 KiB: 4 frames.
    Size16K = 14,
    /// 64 KiB: 16 frames.
    Size64K = 16,
    /// 2 MiB: 512 frames.
    Size2M = 21,
    /// 32 MiB: 8,192 frames.
    Size32M = 25,
    /// 512 MiB: 131,072 frames.
    Size512M = 29,
    /// 1 GiB: 262,144 frames.
    Size1G = 30,
}

impl PageSize {
    /// All sizes, in ascending order.
    pub const ALL: [PageSize; 7] = [
        PageSize::Size4K,
        PageSize::Size16K,
        PageSize::Size64K,
        PageSize::Size2M,
        PageSize::Size32M,
        PageSize::Size512M,
        PageSize::Size1G,
    ];

    /// The size with this base-2 logarithm, in bytes, if there is one.
    #[inline]
    pub const fn from_shift(shift: u32) -> Option<PageSize> {
        match shift {
            12 => Some(PageSize::Size4K),
            14 => Some(PageSize::Size16K),
            16 => Some(PageSize::Size64K),
            21 => Some(PageSize::Size2M),
            25 => Some(PageSize::Size32M),
            29 => Some(PageSize::Size512M),
            30 => Some(PageSize::Size1G),
            _ => None,
        }
    }

    /// The base-2 logarithm of the size in bytes.
    #[inline]
    pub const fn shift(self) -> u32 {
        self as u32
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
        self as u8 - 12
    }

    /// The size in frames.
    #[inline]
    pub const fn frames(self) -> u64 {
        1 << self.order()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_ascend_and_are_known_by_their_shifts() {
        assert!(PageSize::ALL.is_sorted());
        for size in PageSize::ALL {
            assert_eq!(PageSize::from_shift(size.shift()), Some(size));
            assert_eq!((size.bytes(), size.frames() << 12), (1 << size.shift(), size.bytes()));
        }
        let known = (0..64).filter_map(PageSize::from_shift);
        assert!(known.eq(PageSize::ALL));
    }
}
