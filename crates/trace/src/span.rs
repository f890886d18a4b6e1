//! Ranges of whole pages, as the kernel takes them from a call's address and length.
//!
//! The kernel rounds an address down and an end up to whole pages, or refuses the call. So the
//! pages that hold a byte of the range are all that a call can change. A range that looks for
//! VMAs next to it must end where its last page ends: the neighbour begins there. Code of this
//! crate that needs the range of a call makes a [`Span`], which is rounded whatever it is made of.

use std::ops::{Deref, Range};

use crate::abi::MAP_HUGETLB;

const PAGE: usize = vma::PAGE_SIZE;
/// The end of the last whole page.
const TOP: usize = usize::MAX & !(PAGE - 1);

/// A range of whole pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Span(Range<usize>);

impl Span {
    /// The whole address space.
    pub(crate) const ALL: Span = Span(0..TOP);

    /// The pages that hold `length` bytes from `start`. If these wrap, they end with the last page.
    pub(crate) fn of(start: usize, length: usize) -> Span {
        (start..start.saturating_add(length)).into()
    }

    /// As [`of`](Self::of); `None` if they wrap, which the kernel refuses in each call.
    pub(crate) fn checked(start: usize, length: usize) -> Option<Span> {
        start.checked_add(length).filter(|&end| end <= TOP).map(|_| Span::of(start, length))
    }

    /// Its addresses.
    pub(crate) fn range(&self) -> Range<usize> {
        self.0.clone()
    }
}

/// Rounds outwards.
impl From<Range<usize>> for Span {
    fn from(Range { start, end }: Range<usize>) -> Span {
        let first = start & !(PAGE - 1);
        Span(first..end.checked_next_multiple_of(PAGE).unwrap_or(TOP).max(first))
    }
}

impl Deref for Span {
    type Target = Range<usize>;

    fn deref(&self) -> &Range<usize> {
        &self.0
    }
}

/// A length in whole pages, as mmap and mremap take it; `None` if it wraps, which they refuse.
pub(crate) fn whole(length: usize) -> Option<usize> {
    length.checked_next_multiple_of(PAGE)
}

/// The length that mmap gives a map: whole pages, for MAP_HUGETLB huge ones.
pub(crate) fn length_of_map(args: &[usize; 6]) -> Option<usize> {
    /// The logarithm of the size of a huge page is in six bits from here on; 0 for the default.
    const SIZE: usize = 26;
    const DEFAULT: usize = 21;
    if args[3] & MAP_HUGETLB == 0 {
        return whole(args[1]);
    }
    let size = match args[3] >> SIZE & 63 {
        0 => DEFAULT,
        size => size,
    };
    args[1].checked_next_multiple_of(1 << size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_rounded_outwards_and_never_wraps() {
        assert_eq!(Span::of(0x1234, 0x10).range(), 0x1000..0x2000);
        assert_eq!(Span::of(0x1fff, 2).range(), 0x1000..0x3000);
        assert_eq!(Span::of(0x1000, 0x1000).range(), 0x1000..0x2000);
        assert_eq!(Span::of(0x1000, 0).range(), 0x1000..0x1000);
        assert_eq!(Span::of(usize::MAX - 1, usize::MAX).range(), TOP..TOP);
        assert_eq!(Span::from(0..usize::MAX), Span::ALL);
    }

    #[test]
    fn a_range_that_wraps_is_none() {
        assert_eq!(Span::checked(0x1001, 1).map(|span| span.range()), Some(0x1000..0x2000));
        assert_eq!(Span::checked(0x1000, usize::MAX), None);
        assert_eq!(Span::checked(0x1000, usize::MAX - 0x1001), None);
        assert_eq!((whole(1), whole(0x1000), whole(usize::MAX)), (Some(4096), Some(4096), None));
    }
}
