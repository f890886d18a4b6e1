//! Address spaces that are hard for a search for free space: almost every hole looks good enough,
//! and none of these fits.

use crate::workload::{BASE, PAGE, RARE, Span, Value};
use alloc::vec::Vec;

/// The length and alignment of the searches between holes that are long but misaligned.
const HUGE: usize = 2 << 20;

/// The number of hints, which are used in turn.
const HINTS: usize = 1 << 12;

/// The flaw of the holes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flaw {
    /// Each hole is a page too short.
    Short,
    /// Each hole is much longer than needed, but no aligned address in it leaves enough room.
    Skewed,
}

/// A space with two holes that fit: one after the first range, and one before the last.
pub(crate) struct Adverse {
    /// In ascending order.
    pub(crate) spans: Vec<Span>,
    /// Random indices in the middle half: both holes that fit are at least a quarter of all ranges
    /// away.
    pub(crate) hints: Vec<usize>,
    pub(crate) size: usize,
    pub(crate) align: usize,
}

impl Adverse {
    /// A space of `size` ranges.
    pub(crate) fn new(flaw: Flaw, size: usize) -> Self {
        let (want, align) = match flaw {
            Flaw::Short => (RARE, PAGE),
            Flaw::Skewed => (HUGE, HUGE),
        };
        let mut at = BASE;
        let spans: Vec<Span> = (0..size)
            .map(|i| {
                let good = i == 0 || i + 2 >= size;
                let (pages, hole) = match flaw {
                    Flaw::Short if good => (2, RARE),
                    Flaw::Short => (2, RARE - PAGE),
                    // Each range covers a multiple of twice the alignment, with a page on either
                    // side. So a hole begins a page after one such multiple and ends a page before
                    // the next.
                    Flaw::Skewed if good => (2, 4 * HUGE - 2 * PAGE),
                    Flaw::Skewed => (2, 2 * HUGE - 2 * PAGE),
                };
                let start = if flaw == Flaw::Skewed { at - PAGE } else { at };
                let end = start + pages * PAGE - 1;
                at += pages * PAGE + hole;
                Span { start, end, value: Value::MIN.saturating_add(i) }
            })
            .collect();
        let mut rng = fastrand::Rng::with_seed(size as u64);
        let middle = size / 4..size - size / 4;
        let hints = (0..HINTS).map(|_| spans[rng.usize(middle.clone())].start).collect();
        Adverse { spans, hints, size: want, align }
    }
}
