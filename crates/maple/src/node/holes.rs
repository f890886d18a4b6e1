//! The search for a free range among some slots of a leaf.

use super::leaf::Body;
use crate::Index;
use core::hint::select_unpredictable;

impl Body {
    /// The first slot of `slots` for whose range `place` returns `Some`, and the result; the last
    /// such slot if not `UP`. The leaf reaches from `min` to `max`.
    ///
    /// Cost: per slot two adjacent bounds; one branch per call for the leaf's form.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) fn find_place<const UP: bool>(
        &self,
        slots: u32,
        (min, max): (Index, Index),
        place: impl Fn(Index, Index) -> Option<Index>,
    ) -> Option<(usize, Index)> {
        if self.wide {
            // SAFETY: inside the room, which is initialised: a leaf has no more slots than cells.
            self.find_by::<UP>(slots, (min, max), place, |i| unsafe { *self.words_wide().add(i) })
        } else {
            let (base, shift) =
                (self.base.wrapping_add(1 << self.shift).wrapping_sub(1), self.shift);
            self.find_by::<UP>(slots, (min, max), place, |i| {
                // SAFETY: as above.
                base.wrapping_add((unsafe { *self.narrow().add(i) } as Index) << shift)
            })
        }
    }

    #[cfg_attr(not(unoptimized), inline(always))]
    fn find_by<const UP: bool>(
        &self,
        mut slots: u32,
        (min, max): (Index, Index),
        place: impl Fn(Index, Index) -> Option<Index>,
        end: impl Fn(usize) -> Index,
    ) -> Option<(usize, Index)> {
        let last = self.len() - 1;
        while slots != 0 {
            let slot = if UP { slots.trailing_zeros() } else { slots.ilog2() } as usize;
            slots &= !(1 << slot);
            // The slot is unpredictable, so these are branchless. Reading the bound of the last
            // slot is allowed: the room holds an initialised value there.
            let after = end(slot.saturating_sub(1)).wrapping_add(1);
            let from = select_unpredictable(slot == 0, min, after);
            let to = select_unpredictable(slot == last, max, end(slot));
            if let Some(found) = place(from, to) {
                return Some((slot, found));
            }
        }
        None
    }
}
