//! The picture of the largest address space, as it was near its peak.
//!
//! A program may unmap most of its memory before it ends. So the listing is kept before a call,
//! whenever the address space has an eighth more VMAs than the picture so far. While a program
//! grows to n VMAs, that writes about 9n lines in all. In a live run, the tracer scans for the
//! resident pages as often.

use std::ops::Range;

use super::{Beside, Mirror};
use crate::record::MmId;

impl<B: Beside> Mirror<B> {
    /// The number of VMAs above which a picture is kept.
    fn least(&self, ends: bool) -> usize {
        let known = self.summary.largest.as_ref().map_or(0, |largest| largest.vmas);
        if ends { known } else { known + known / 8 }
    }

    /// Whether a picture of the address space will be kept at its next call, or now if it ends.
    pub fn wants_pages(&mut self, mm: MmId, ends: bool) -> bool {
        let least = self.least(ends);
        self.spaces.get_mut(&mm).is_some_and(|mirrored| mirrored.size().0 > least)
    }

    /// The resident ranges for that picture, in order.
    pub fn pages(&mut self, mm: MmId, resident: Vec<Range<usize>>) {
        if let Some(mirrored) = self.spaces.get_mut(&mm) {
            mirrored.pages = Some(resident);
        }
    }

    /// Keeps the listing of an address space before a call, or if it `ends`, if it is larger than
    /// the largest. Constant time otherwise.
    pub(super) fn keep_picture(&mut self, mm: MmId, ends: bool) {
        let least = self.least(ends);
        let Some(mirrored) = self.spaces.get_mut(&mm) else { return };
        let (vmas, _) = mirrored.size();
        // Those of another moment are of no use.
        let pages = mirrored.pages.take();
        if vmas > least {
            let exe = mirrored.figures.exe.clone();
            self.summary.offer(mm, &exe, vmas, || (mirrored.listing(), pages));
        }
    }
}
