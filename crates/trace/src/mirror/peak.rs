//! The picture of the largest address space, as it was near its peak.
//!
//! A program may unmap most of its memory before it ends. So the listing is kept before a call,
//! whenever the address space has an eighth more VMAs than the picture so far. While a program
//! grows to n VMAs, that writes about 9n lines in all.

use super::{Beside, Mirror};
use crate::record::MmId;

impl<B: Beside> Mirror<B> {
    /// Keeps the listing of an address space before a call, if it is much larger than the largest.
    /// Constant time otherwise.
    pub(super) fn keep_peak(&mut self, mm: MmId) {
        let known = self.summary.largest.as_ref().map_or(0, |largest| largest.vmas);
        self.keep_picture(mm, known + known / 8);
    }

    /// Keeps the listing of an address space, if it has more VMAs than `least` and the largest.
    pub(super) fn keep_picture(&mut self, mm: MmId, least: usize) {
        let Some(mirrored) = self.spaces.get_mut(&mm) else { return };
        let (vmas, _) = mirrored.size();
        if vmas > least {
            let exe = mirrored.figures.exe.clone();
            self.summary.offer(mm, &exe, vmas, || mirrored.listing());
        }
    }
}
