//! The first index of each slot of a leaf, as whole words. An iteration reads these, not the packed
//! bounds.

use super::leaf::Body;
use crate::Index;
use core::mem::MaybeUninit;

/// The number of starts that fit: SIMD writes 32 for narrow bounds, 24 for wide ones.
pub(crate) const LANES: usize = 32;
const _: () = assert!(LANES >= crate::layout::LEAF_SLOTS);

/// The padding before the start of slot 0. The starts of the other slots then begin at a cache
/// line, so SIMD stores whole lines.
const BEFORE: usize = 7;

/// The first index of each slot, and the index after the last slot (0 after `Index::MAX`).
#[derive(Clone)]
#[repr(C, align(64))]
pub(crate) struct Starts(MaybeUninit<[Index; BEFORE + 1 + LANES]>);

impl Starts {
    /// The place for the starts of all slots but the first: [`LANES`] words, at the beginning of a
    /// cache line.
    #[inline(always)]
    pub(crate) fn others(&mut self) -> *mut Index {
        // SAFETY: inside the array.
        unsafe { self.0.as_mut_ptr().cast::<Index>().add(BEFORE + 1) }
    }

    /// # Safety
    /// The start of the slot was written.
    #[inline(always)]
    pub(crate) unsafe fn get(&self, slot: usize) -> Index {
        debug_assert!(slot <= LANES);
        // SAFETY: inside the array, and the caller's promise.
        unsafe { self.0.as_ptr().cast::<Index>().add(BEFORE + slot).read() }
    }
}

/// The number to add to a shifted narrow bound to get the index after it.
#[allow(dead_code, reason = "only vectors use it")]
#[inline(always)]
pub(super) fn after(body: &Body) -> i64 {
    body.base.wrapping_add(1 << body.shift) as i64
}

/// Unpacks without SIMD. Cost: four instructions per slot.
#[inline(always)]
pub(super) fn scalar(body: &Body, to: &mut Starts) {
    let others = to.others();
    for slot in 0..body.len() - 1 {
        // SAFETY: a leaf has at most `LANES` slots.
        unsafe { others.add(slot).write(body.bound(slot).wrapping_add(1)) };
    }
}
