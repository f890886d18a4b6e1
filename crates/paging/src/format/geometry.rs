//! Values derived from a format: the sizes of tables and pages, and the parts of addresses.

use super::Format;
use machine::{ENTRIES, PageSize, VirtAddr};

/// The sizes, levels and addresses that follow from the constants of a [`Format`]. Each format has
/// it, and cannot change it.
///
/// ```
/// use machine::{PageSize, VirtAddr};
/// use paging::{Geometry, X86_64L4};
/// assert!(X86_64L4::sizes().eq([PageSize::Size1G, PageSize::Size2M, PageSize::Size4K]));
/// assert_eq!(X86_64L4::level_of(PageSize::Size2M), Some(1));
/// assert_eq!(X86_64L4::index(VirtAddr::new(3 << 21), 1), 3);
/// assert_eq!(X86_64L4::upper_half().get(), 0xffff_8000_0000_0000);
/// ```
pub trait Geometry: Format {
    /// The address bits that a level translates.
    const INDEX_BITS: u32 = Self::PAGE.shift() - 3;
    /// The number of entries of a table: 512 with a granule of 4 KiB, fewer in models.
    const ENTRIES: usize = ENTRIES << Self::PAGE.order();
    /// The page that an entry of level 1 maps.
    const LARGE: PageSize = match PageSize::from_shift(Self::PAGE.shift() + Self::INDEX_BITS) {
        Some(size) => size,
        None => panic!("the granule is none of 4, 16 and 64 KiB"),
    };
    /// The base-2 logarithm of the size in bytes of what is not the kernel's: the lower half, or
    /// all addresses of a guest.
    const LOWER_BITS: u32 = Self::VIRTUAL_BITS - if Self::SECOND_STAGE { 0 } else { 1 };

    /// Whether the tables translate the address: the bits above the translated ones repeat the
    /// highest of these, or, in a second stage, are clear.
    #[inline]
    fn is_canonical(at: VirtAddr) -> bool {
        if Self::SECOND_STAGE {
            return at.get() >> Self::VIRTUAL_BITS == 0;
        }
        let unused = 64 - Self::VIRTUAL_BITS;
        ((at.get() << unused) as i64 >> unused) as u64 == at.get()
    }

    /// Whether the address lies in the upper half, which is the kernel's.
    #[inline]
    fn is_upper(at: VirtAddr) -> bool {
        !Self::SECOND_STAGE && at.get() >> 63 != 0
    }

    /// The first address of the upper half. A second stage has none.
    #[inline]
    fn upper_half() -> VirtAddr {
        VirtAddr::new((i64::MIN >> (64 - Self::VIRTUAL_BITS)) as u64)
    }

    /// The index of the entry for `at` in a table of this level.
    #[inline]
    fn index(at: VirtAddr, level: u8) -> usize {
        // 1 << INDEX_BITS, but in models, where the upper half has entries, too.
        (at.get() >> Self::shift(level)) as usize & (Self::ENTRIES - 1)
    }

    /// The base-2 logarithm of the bytes that an entry of this level decides about.
    #[inline]
    fn shift(level: u8) -> u32 {
        Self::PAGE.shift() + Self::INDEX_BITS * u32::from(level)
    }

    /// The size of the pages that entries at this level map; `None` if there are none.
    #[inline]
    fn size_at(level: u8) -> Option<PageSize> {
        match level {
            0 => Some(Self::PAGE),
            1 => Some(Self::LARGE),
            2 => const { PageSize::from_shift(Self::PAGE.shift() + Self::INDEX_BITS * 2) },
            _ => None,
        }
    }

    /// The level of the tables whose entries map pages of this size; `None` if the format has no
    /// such pages.
    #[inline]
    fn level_of(size: PageSize) -> Option<u8> {
        let level = u8::from(size > Self::PAGE) + u8::from(size > Self::LARGE);
        (Self::size_at(level) == Some(size)).then_some(level)
    }

    /// The page sizes of the format, the largest first.
    #[inline]
    fn sizes() -> impl Iterator<Item = PageSize> {
        [2, 1, 0].into_iter().filter_map(Self::size_at)
    }
}

impl<F: Format> Geometry for F {}
