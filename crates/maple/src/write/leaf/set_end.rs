//! The fast path of a moved end, inside the hole behind the entry.

use super::fast::Fast;
use super::finger::{Finger, Spot};
use super::place::{Holes, Place};
use crate::Index;
use crate::alloc::NodeAlloc;
use crate::cold_path::cold_path;
use crate::entry::Entry;
use crate::node::{Bound, Change, Job, Run, Search};
use crate::write::Target;
use core::hint::assert_unchecked;
use core::ptr;
use grace::Reclaim;

/// Moves the end of the entry that holds an index, inside the hole behind it. Only one bound
/// changes. `NEAR`: the slot is near the last write.
pub(in crate::write) struct SetEnd<'q, 't, E: Entry, R: Reclaim, A: NodeAlloc, const NEAR: bool> {
    pub(in crate::write) target: &'q mut Target<'t, E, R, A>,
    pub(in crate::write) finger: &'q mut Finger,
    pub(in crate::write) index: Index,
    pub(in crate::write) end: Index,
    /// Receives the entry's new range.
    pub(in crate::write) range: &'q mut (Index, Index),
}

impl<E: Entry, R: Reclaim, A: NodeAlloc, const NEAR: bool> Job for SetEnd<'_, '_, E, R, A, NEAR> {
    type Out = Fast;

    #[cfg_attr(not(unoptimized), inline(always))]
    fn run<S: Search>(mut self, search: S) -> Fast {
        let Spot { place, slot, start, end: old, shared, .. } = if NEAR {
            self.finger.near(self.target, search, self.index)
        } else {
            self.target.spot(search, self.index, &mut self.finger.descent)
        };
        if shared {
            return Fast::Other;
        }
        if place.body.is_wide() {
            cold_path();
            return self.slide::<S, true>(search, slot, (start, old));
        }
        self.slide::<S, false>(search, slot, (start, old))
    }
}

impl<E: Entry, R: Reclaim, A: NodeAlloc, const NEAR: bool> SetEnd<'_, '_, E, R, A, NEAR> {
    /// Moves the end of a slot, whose range is `start..=old`. The finger has the path to it.
    #[cfg_attr(not(unoptimized), inline(always))]
    fn slide<S: Search, const WIDE: bool>(
        &mut self,
        search: S,
        slot: usize,
        (start, old): (Index, Index),
    ) -> Fast {
        let SetEnd { target, finger, end, range, .. } = self;
        let (end, descent) = (*end, &finger.descent);
        // SAFETY: the promise of `Target::new`; the caller has asked for the form.
        let body = unsafe { descent.leaf().as_leaf().body() };
        // SAFETY: as above.
        unsafe { assert_unchecked(body.is_wide() == WIDE) }
        let place = Place { descent, body };
        let behind = slot + 1;
        if behind >= body.len() || !body.is_hole(behind) {
            return Fast::Other;
        }
        let last = place.end(behind);
        let fits = start <= end && end < last && !body.is_hole(slot);
        let (true, Some(value)) = (fits, body.encode_if_taken(end)) else {
            return Fast::Other;
        };
        **range = (start, end);
        // Usually the end moves by about a page and this hole is not the largest, so measuring
        // every time would cost a fifth more. A hole that grows removes none.
        let gone = if end < old { 0 } else { 1 << behind };
        let holes =
            Holes { gone, before: last - old, after: last - end, start, end: last, measure: false };
        if target.supplies.bin.in_place() {
            target.supplies.drop_spare();
            // SAFETY: the owner is alone, and `body` is not used any more.
            unsafe {
                let leaf = descent.leaf();
                if descent.is_gap_safe(holes) {
                    leaf.as_leaf().body_mut().put_encoded(slot, value);
                } else {
                    let gap = descent.gap_after(search, leaf.as_leaf().body(), holes);
                    leaf.as_leaf().body_mut().put_encoded(slot, value);
                    descent.settle_gap(search, gap);
                }
            }
            finger.note(slot, (start, end), (start, last));
            return Fast::Done;
        }
        let change = Change {
            len: body.len(),
            mask: body.entries(),
            count: body.count(),
            bounds: Run::default(),
            words: Run::default(),
            new: [Bound { is: true, slot, value }, Bound::NONE],
            word: ptr::null_mut(),
            rank: 0,
            splits: false,
        };
        let done = target.commit(search, descent, &change, holes, (Some(WIDE), false));
        // Not earlier: the write may fail, or it may drop a spare duplicate whose `drop` panics.
        if let Ok(leaf) = done {
            finger.end_at(leaf);
            finger.note(slot, (start, end), (start, last));
        }
        Fast::of(done)
    }
}
