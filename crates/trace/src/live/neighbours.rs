//! Compares the VMAs around what a call has changed, by PROCMAP_QUERY.
//!
//! A whole listing costs the kernel and the mirror time for each VMA. The VMAs that a call can
//! change lie in the ranges of its arguments and its result, and next to them. These cost one short
//! call of the tracer each. Names are left out: they cost more, and a rename is no memory call.
//!
//! This only decides whether to look closer. Where something differs, or a call may change VMAs
//! elsewhere, the whole listing is compared, and a mismatch is reported from that.

use std::ops::Range;

use super::{calls::Changed, follower::Follower, sys::pages, tasks::Space};
use crate::{observer::KernelVma, record::MmId};

/// More VMAs than this are read faster as a listing.
const MOST: usize = 32;

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
