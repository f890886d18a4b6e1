//! Typed addresses, so that virtual and physical addresses cannot be confused.
//!
//! A [`VirtAddr`] and a [`PhysAddr`] may have any 64 bits. The page-table format decides which
//! addresses are canonical, and checks them. All arithmetic is checked: an overflow returns
//! `None`, and never wraps or panics.

use crate::PageSize;
use core::fmt;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// The address with these bits.
            #[inline]
            pub const fn new(bits: u64) -> Self {
                $name(bits)
            }

            /// The bits of the address.
            #[inline]
            pub const fn get(self) -> u64 {
                self.0
            }

            /// `self + bytes`, or `None` past the last address.
            #[inline]
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(bits) => Some($name(bits)),
                    None => None,
                }
            }

            /// `self - bytes`, or `None` below address 0.
            #[inline]
            pub const fn checked_sub(self, bytes: u64) -> Option<Self> {
                match self.0.checked_sub(bytes) {
                    Some(bits) => Some($name(bits)),
                    None => None,
                }
            }

            /// The distance from `base` up to `self`, in bytes. `None` if `self` is below `base`.
            #[inline]
            pub const fn offset_from(self, base: Self) -> Option<u64> {
                self.0.checked_sub(base.0)
            }

            /// The start of the page of this size that contains the address.
            #[inline]
            pub const fn align_down(self, size: PageSize) -> Self {
                $name(self.0 & !(size.bytes() - 1))
            }

            /// The first page start of this size at or above the address. `None` if there is none.
            #[inline]
            pub const fn align_up(self, size: PageSize) -> Option<Self> {
                match self.checked_add(size.bytes() - 1) {
                    Some(above) => Some(above.align_down(size)),
                    None => None,
                }
            }

            /// The offset within its page of this size, in bytes.
            #[inline]
            pub const fn offset_in(self, size: PageSize) -> u64 {
                self.0 & (size.bytes() - 1)
            }

            /// Whether a page of this size begins here.
            #[inline]
            pub const fn is_aligned(self, size: PageSize) -> bool {
                self.offset_in(size) == 0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{:#x}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

address! {
    /// A virtual address, before translation.
    ///
    /// ```
    /// use machine::{PageSize, VirtAddr};
    /// let at = VirtAddr::new(0x20_1234);
    /// assert_eq!(at.align_down(PageSize::Size2M), VirtAddr::new(0x20_0000));
    /// assert_eq!(VirtAddr::new(u64::MAX).checked_add(1), None);
    /// ```
    VirtAddr, "v"
}

address! {
    /// A physical address, after translation.
    ///
    /// ```
    /// use machine::{PageSize, PhysAddr};
    /// assert_eq!(PhysAddr::new(0x1001).align_up(PageSize::Size4K), Some(PhysAddr::new(0x2000)));
    /// ```
    PhysAddr, "p"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_sum_wraps() {
        let top = VirtAddr::new(u64::MAX);
        assert_eq!(top.checked_add(0), Some(top));
        assert_eq!(top.checked_add(1), None);
        assert_eq!(VirtAddr::new(0).checked_sub(1), None);
        assert_eq!(top.align_up(PageSize::Size1G), None);
        assert_eq!(top.align_down(PageSize::Size4K), VirtAddr::new(0xffff_ffff_ffff_f000));
        let page = VirtAddr::new(0xffff_ffff_ffff_f000);
        assert_eq!(page.align_up(PageSize::Size4K), Some(page));
        assert_eq!(PhysAddr::new(5).offset_from(PhysAddr::new(6)), None);
    }
}
