//! The search for a place among some slots of a leaf.

use super::leaf::Body;
use core::hint::select_unpredictable;

impl Body {
    /// The first of some slots for whose range `place` returns something, or the last if not `UP`,
    /// in a leaf from `min` to `max`.
    ///
    /// Cost of a slot: two bounds next to each other; what form the leaf has is asked once.
    #[inline(always)]
    pub(crate) fn find_place<const UP: bool>(
        &self,
        slots: u32,
        (min, max): (usize, usize),
        place: impl Fn(usize, usize) -> Option<usize>,
    ) -> Option<(usize, usize)> {
        if self.wide {
            // SAFETY: inside the room, which is initialised: there are no more slots than cells.
            self.find_by::<UP>(slots, (min, max), place, |i| unsafe { *self.words_wide().add(i) })
        } else {
            let (base, shift) =
                (self.base.wrapping_add(1 << self.shift).wrapping_sub(1), self.shift);
            self.find_by::<UP>(slots, (min, max), place, |i| {
                // SAFETY: as above.
                base.wrapping_add((unsafe { *self.narrow().add(i) } as usize) << shift)
            })
        }
    }

    #[inline(always)]
    fn find_by<const UP: bool>(
        &self,
        mut slots: u32,
        (min, max): (usize, usize),
        place: impl Fn(usize, usize) -> Option<usize>,
        end: impl Fn(usize) -> usize,
    ) -> Option<(usize, usize)> {
        let last = self.len() - 1;
        while slots != 0 {
            let slot = if UP { slots.trailing_zeros() } else { slots.ilog2() } as usize;
            slots &= !(1 << slot);
            // Which slot it is cannot be foretold, so no branch. (There is a bound, or what is as
            // large, in any leaf.)
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
