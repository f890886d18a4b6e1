//! Ranges of a program's addresses.

use core::ops::Range;

use machine::{PageSize, VirtAddr, VirtRange};
use paging::Format;
use vma::PAGE_SIZE;

/// The bytes of a huge page.
pub(crate) const HUGE: usize = PageSize::Size2M.bytes() as usize;

/// The bytes of a program's half of the addresses.
pub(crate) fn lower_half<F: Format>() -> usize {
    1 << (12 + 9 * usize::from(F::LEVELS) - 1)
}

/// The addresses of a range of bytes; `None` if it is empty, or ends before it starts.
pub(crate) fn virt(range: Range<usize>) -> Option<VirtRange> {
    let len = range.end.checked_sub(range.start).filter(|len| *len > 0)?;
    VirtRange::new(VirtAddr::new(range.start as u64), len as u64)
}

/// The huge page around an address, if it lies wholly in the range.
pub(crate) fn huge_around(addr: usize, range: &Range<usize>) -> Option<Range<usize>> {
    let start = addr & !(HUGE - 1);
    let huge = start..start + HUGE;
    (range.start <= huge.start && huge.end <= range.end).then_some(huge)
}

/// The pages that a call unmaps, as far as there are addresses.
pub(crate) fn pages_of(addr: usize, len: usize) -> Range<usize> {
    addr..addr
        .checked_add(len)
        .and_then(|end| end.checked_next_multiple_of(PAGE_SIZE))
        .unwrap_or(addr)
}

#[test]
fn an_empty_range_has_no_addresses() {
    let reversed = Range { start: 8192, end: 4096 };
    assert_eq!([virt(4096..4096), virt(reversed)], [None, None]);
    assert_eq!(virt(4096..8192).unwrap().len(), 4096);
}
