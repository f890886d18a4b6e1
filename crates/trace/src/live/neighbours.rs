//! Compares the VMAs around what a call has changed, by PROCMAP_QUERY.
//!
//! A whole listing costs the kernel and the mirror time for each VMA. The VMAs that a call can
//! change lie in the ranges of its arguments and its result, and next to them. These cost one short
//! call of the tracer each. Names are left out: they cost more, and a rename is no memory call.
//!
//! This only decides whether to look closer. Where something differs, or a call may change VMAs
//! elsewhere, the whole listing is compared, and a mismatch is reported from that.

use std::ops::Range;

use super::{calls, follower::Follower, sys::pages, tasks::Space};
use crate::{
    observer::KernelVma,
    record::{Call, MmId, Op},
    span::Span,
};

/// Where a call may have changed VMAs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Changed {
    /// Somewhere: the arguments do not tell.
    #[default]
    Anywhere,
    /// In these ranges, or next to them.
    In([Option<Span>; 3]),
}

/// More VMAs than this are read faster as a listing.
const MOST: usize = 32;

impl Changed {
    /// By a call with its result. `brk` was the end of the heap before it.
    pub(super) fn by(call: &Call, brk: usize) -> Changed {
        let advice = || vma::Advice::from_number(call.args[2] as u32);
        match call.op {
            // It is about pages.
            Op::Madvise if advice().is_some_and(|advice| !advice.changes_vmas()) => {
                Changed::In([None, None, None])
            }
            op if op.takes_range() || matches!(op, Op::Mmap | Op::Brk | Op::Mremap) => {
                let [first, second] = calls::places(call.op, &call.args, brk);
                Changed::In([first, second, calls::chosen(call.op, &call.args, call.result)])
            }
            // Their ranges are in memory, or are those of an object; or they concern all VMAs.
            _ => Changed::Anywhere,
        }
    }
}

/// The kernel's VMAs in a range and next to it; `None` if there are too many, or the kernel cannot
/// tell.
fn kernel_around(space: &Space, range: &Range<usize>) -> Option<Vec<KernelVma>> {
    let mut found = Vec::new();
    let mut at = range.start.saturating_sub(1);
    while let Some(vma) = pages::query_next(&space.maps, at).ok()? {
        if vma.range.start > range.end {
            break;
        }
        at = vma.range.end;
        found.push(vma);
        if found.len() > MOST {
            return None;
        }
        // The next one is not next to the range.
        if at > range.end {
            break;
        }
    }
    Some(found)
}

impl Follower<'_> {
    /// Compares what the newest call has changed. Call only while no operation is in flight.
    pub(super) fn compare_changed(&mut self, mm: MmId) {
        let Some(space) = self.spaces.get_mut(&mm) else { return };
        let changed = std::mem::take(&mut space.changed);
        let agrees = match changed {
            Changed::In(ranges) if self.facilities.query => {
                ranges.into_iter().flatten().all(|span| self.agrees_around(mm, span.range()))
            }
            _ => false,
        };
        if !agrees {
            self.compare(mm);
        }
    }

    /// Whether a call that failed has left these ranges as they are on our side, but for flags that
    /// the listing does not show. To read these costs much more.
    pub(super) fn has_no_effect(&mut self, mm: MmId, ranges: &[Range<usize>]) -> bool {
        self.facilities.query && ranges.iter().all(|range| self.agrees_around(mm, range.clone()))
    }

    fn agrees_around(&mut self, mm: MmId, range: Range<usize>) -> bool {
        let Some(space) = self.spaces.get(&mm) else { return true };
        match kernel_around(space, &range) {
            Some(kernel) => self.observer.agrees_around(mm, range, &kernel),
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_changes_its_ranges_and_the_place_of_its_result() {
        let span = |start, length| Some(Span::of(start, length));
        let (drops, keeps) = (libc::MADV_DONTNEED as usize, libc::MADV_DONTFORK as usize);
        for (op, args, result, expected) in [
            (Op::Mmap, &[0, 0x3000, 3, 0x22][..], 0x7000, [None, None, span(0x7000, 0x3000)]),
            (Op::Mmap, &[0, 0x3000, 3, 0x22], -12, [None, None, None]),
            (Op::Brk, &[0x9000], 0x9000, [span(0x5000, 0x4000), None, None]),
            (
                Op::Mremap,
                &[0x1000, 0x1000, 0x2000, 1],
                0xb000,
                [span(0x1000, 0x2000), None, span(0xb000, 0x2000)],
            ),
            (Op::Mseal, &[0x1000, 0x1000], 0, [span(0x1000, 0x1000), None, None]),
            (Op::Madvise, &[0x1000, 0x1000, drops], 0, [None, None, None]),
            (Op::Madvise, &[0x1000, 0x1000, keeps], 0, [span(0x1000, 0x1000), None, None]),
        ] {
            let changed = Changed::by(&Call::new(1, 1, op, args, result), 0x5000);
            assert_eq!(changed, Changed::In(expected), "{op:?} {args:x?}");
        }
        let all = Call::new(1, 1, Op::Mlockall, &[1], 0);
        assert_eq!(Changed::by(&all, 0x5000), Changed::Anywhere);
    }
}
