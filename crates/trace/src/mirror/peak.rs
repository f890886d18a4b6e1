//! The peak: one moment of one address space, for the picture, the table of memory and the owners.
//!
//! In a live run it is the moment with the most resident memory that the tracer has found, and the
//! tracer tells it before a call, or right before the address space ends. So our VMAs are the
//! kernel's, and each resident byte has the owner that it has at that moment.
//!
//! A recording has no resident memory. There the picture is that of the address space with the most
//! VMAs. A program may unmap most of its memory before it ends. So the listing is kept before a
//! call, whenever the address space has an eighth more VMAs than the picture so far. While a
//! program grows to n VMAs, that writes about 9n lines in all.

use super::{Mirror, Shadow};
use crate::{
    owner::Owner,
    record::MmId,
    report::{ResidentSet, SpaceSnapshot},
};

impl<B: Shadow> Mirror<B> {
    /// Keeps this moment of an address space, which has more resident memory than all before.
    /// O(VMAs, owners and resident ranges).
    pub fn peak(&mut self, mm: MmId, moment: ResidentSet) {
        let Some(mirrored) = self.spaces.get_mut(&mm) else { return };
        let (vmas, _) = mirrored.size();
        let (exe, listing) = (mirrored.figures.exe.clone(), mirrored.listing());
        if let Some(resident) = &moment.resident {
            let space = mirrored.space.get_mut();
            let owned = match &mut mirrored.owners {
                Some(owners) => owners.resident(resident, &space),
                // No call with a stack has mapped anything yet.
                None => [(Owner::Program, moment.bytes)].into(),
            };
            self.summary.stacks.set_peak(owned);
        }
        self.summary.largest = Some(SpaceSnapshot { mm, exe, vmas, listing, moment: Some(moment) });
    }

    /// Keeps the listing of an address space before a call, or if it `ends`, if it is larger than
    /// the largest. Constant time otherwise.
    pub(super) fn keep_picture(&mut self, mm: MmId, ends: bool) {
        let largest = self.summary.largest.as_ref();
        if largest.is_some_and(|largest| largest.moment.is_some()) {
            return;
        }
        let known = largest.map_or(0, |largest| largest.vmas);
        let least = if ends { known } else { known + known / 8 };
        let Some(mirrored) = self.spaces.get_mut(&mm) else { return };
        let (vmas, _) = mirrored.size();
        if vmas > least {
            let exe = mirrored.figures.exe.clone();
            self.summary.offer(mm, &exe, vmas, || mirrored.listing());
        }
    }
}
