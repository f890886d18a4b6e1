//! Packing: the form of a new leaf, and the cut of a run of slots into leaves.
//!
//! Narrow bounds need a base and a unit. Every bound must lie at the end of a unit, less than 2^32
//! units above the base. The base of a new leaf lies up to 2^30 units below its first bound, but
//! leaves as much room above the last one. So the leaf takes new bounds on either side of the old
//! ones for a long time before its form must change.
//!
//! The unit is one page if all bounds are aligned to pages, else one index. It is larger only if
//! the leaf would otherwise span too many units.

use super::leaf::{Body, LeafSlot};
use super::word;
use crate::Index;
use crate::cold_path::{initialised, initialised_mut};
use crate::layout::{
    ALWAYS_WIDE, LEAF_CELLS, LEAF_SLOTS, LEAF_TAIL, MAX_PER_LEVEL, NARROW, Scale, WIDE,
};
use core::mem::MaybeUninit;

/// The most slots that one write repacks: parts of two leaves, a sibling, and the new slots.
const MOST: usize = 3 * LEAF_SLOTS + 3;
/// The preferred unit: a page.
const PAGE_SHIFT: u32 = 12;
/// The bounds of a narrow leaf span less than this many units. The lowest one is a unit above the
/// base, and the number of a bound is below the largest one of 32 bits.
const REACH: Index = u32::MAX as Index - 1;
/// The most units that are kept free below the first bound.
const BELOW: Index = 1 << 30;
/// A run of slots copied out of leaves.
pub(crate) struct Slots {
    slots: [MaybeUninit<LeafSlot>; MOST],
    len: usize,
}

impl Slots {
    /// Initialises an empty run in place: the type is too large to be moved.
    ///
    /// # Safety
    /// The place is valid for writes.
    #[inline(always)]
    pub(crate) unsafe fn begin(place: *mut Slots) {
        // SAFETY: the caller's promise.
        unsafe { (&raw mut (*place).len).write(0) }
    }

    pub(crate) fn push(&mut self, end: Index, word: *mut ()) {
        self.slots[self.len].write(LeafSlot { end, word });
        self.len += 1;
    }

    /// Appends slots `from..to` of a leaf that ends at `max`.
    pub(crate) fn copy(&mut self, body: &Body, from: usize, to: usize, max: Index) {
        for slot in from..to {
            let LeafSlot { end, word } = body.slot(slot, max);
            self.push(end, word);
        }
    }

    pub(crate) fn as_slice(&self) -> &[LeafSlot] {
        // SAFETY: `push` initialised the first `len` slots.
        unsafe { initialised(&self.slots[..self.len]) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [LeafSlot] {
        // SAFETY: as above.
        unsafe { initialised_mut(&mut self.slots[..self.len]) }
    }
}

/// The weight of a run of slots.
fn weight(slots: &[LeafSlot], scale: Scale) -> usize {
    scale.weigh(slots.len(), slots.iter().filter(|slot| !slot.word.is_null()).count())
}

/// A base and a shift that fit all bounds of these slots; `None` if the leaf must be wide.
fn narrow(slots: &[LeafSlot]) -> Option<(Index, u8)> {
    let [bounded @ .., _] = slots else { return None };
    narrow_form(bounded.iter().map(|slot| slot.end))
}

/// A base and a shift that fit these bounds; `None` if their leaf must be wide.
#[cfg_attr(not(unoptimized), inline(always))]
pub(super) fn narrow_form(bounds: impl Iterator<Item = Index>) -> Option<(Index, u8)> {
    if ALWAYS_WIDE {
        return None;
    }
    let (mut first, mut last, mut bits) = (Index::MAX, 0, 0);
    for bound in bounds {
        let after = bound.wrapping_add(1);
        (first, last, bits) = (first.min(after), last.max(after), bits | after);
    }
    if last == 0 {
        return Some((0, PAGE_SHIFT as u8));
    }
    let (aligned, span) = (bits.trailing_zeros(), last - first);
    let fits = |shift: u32| span >> shift < REACH;
    let least = u64::BITS - (span as u64 >> u32::BITS).leading_zeros();
    let least = least + u32::from(!fits(least));
    if least > aligned {
        return None;
    }
    let shift = if aligned < PAGE_SHIFT { least } else { least.max(PAGE_SHIFT) };
    // The units that stay free below the first bound, besides the one that ends with the first
    // slot. That unit exists: `first` is a multiple of the unit, and not 0.
    let below = ((REACH - (span >> shift)) / 2).min(BELOW);
    let room = below.checked_shl(shift).filter(|room| room >> shift == below).unwrap_or(first);
    let base = (first - (1 << shift)).saturating_sub(room);
    // The base must leave the whole reach of bounds below the end of the index range. Then `index -
    // base` wraps, for an index below the base, to more units than any bound has. So a search needs
    // one branch for an index below the base and for one far above it.
    let highest = (1 as Index).checked_shl(u32::BITS + shift).map_or(0, Index::wrapping_neg);
    Some((base.min(highest), shift as u8))
}

/// Whether two leaves may be joined into one of `len` slots with `count` entries: the slots fit,
/// and leave [slack](Scale::slack).
#[inline(always)]
pub(crate) fn is_roomy(len: usize, count: usize, is_wide: bool) -> bool {
    let scale = if is_wide { WIDE } else { NARROW };
    len <= 31 && scale.weigh(len, count) + scale.slack <= scale.full
}

/// Whether all these slots fit into one leaf.
#[cfg(test)]
pub(crate) fn is_packable(slots: &[LeafSlot]) -> bool {
    let scale = if narrow(slots).is_some() { NARROW } else { WIDE };
    weight(slots, scale) <= scale.full
}

/// Fills a leaf with slots. They must fit: see [`cut`].
pub(crate) fn pack(slots: &[LeafSlot]) -> Body {
    let mut body = Body::EMPTY;
    match narrow(slots) {
        Some((base, shift)) => (body.base, body.shift) = (base, shift),
        None => body.wide = true,
    }
    let (mut rank, mut mask, last) = (0, 0, slots.len() - 1);
    for (i, slot) in slots.iter().enumerate() {
        if i < last {
            body.put_bound(i, slot.end);
        }
        if !slot.word.is_null() {
            mask |= 1 << i;
            body.put_word(rank, slot.word);
            rank += 1;
        }
    }
    body.set_slots(slots.len(), mask, rank);
    body
}

impl Body {
    /// Writes a bound, which fits the form.
    #[inline(always)]
    pub(crate) fn put_bound(&mut self, slot: usize, end: Index) {
        debug_assert!(self.takes(end));
        self.put_encoded(slot, self.encode(end));
    }

    /// Writes a bound in its stored form.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) fn put_encoded(&mut self, slot: usize, value: Index) {
        let room = self.room_mut();
        debug_assert!(slot < if self.wide { LEAF_CELLS } else { 2 * LEAF_CELLS });
        // SAFETY: inside the room.
        unsafe {
            if self.wide {
                room.cast::<Index>().add(slot).write(value);
            } else {
                debug_assert!(value < u32::MAX as Index);
                room.cast::<u32>().add(slot).write(value as u32);
            }
        }
    }

    /// Writes the word of the entry with that rank.
    #[inline(always)]
    pub(crate) fn put_word(&mut self, rank: usize, word: *mut ()) {
        debug_assert!(rank < LEAF_CELLS);
        // SAFETY: inside the room.
        unsafe {
            let place = self.room_mut().add(LEAF_CELLS - 1 - rank).cast::<*mut ()>();
            place.write(word::put_in(word));
        }
    }

    /// Replaces the word of each entry by the one at its slot in `words`.
    pub(crate) fn replace_words(&mut self, words: &[*mut (); LEAF_SLOTS]) {
        let (len, mut rank) = (self.len(), 0);
        for (slot, &word) in words[..len].iter().enumerate() {
            if !self.is_hole(slot) {
                self.put_word(rank, word);
                rank += 1;
            }
        }
    }

    /// Whether a bound fits the form of the leaf.
    #[inline(always)]
    pub(crate) fn takes(&self, end: Index) -> bool {
        self.wide || self.encode_narrow(end).is_some()
    }

    /// The stored form of a bound in a narrow leaf; `None` if it does not fit.
    #[inline(always)]
    pub(crate) fn encode_narrow(&self, end: Index) -> Option<Index> {
        let after = end.wrapping_add(1).checked_sub(self.base)?;
        // At least one unit above the base, since the stored number is one less.
        let (units, value) = (after >> self.shift, (after >> self.shift).wrapping_sub(1));
        (units << self.shift == after && value < u32::MAX as Index).then_some(value)
    }

    /// The stored form of a bound; `None` if the leaf would need another form for it.
    #[inline(always)]
    pub(crate) fn encode_if_taken(&self, end: Index) -> Option<Index> {
        if self.wide { Some(end) } else { self.encode_narrow(end) }
    }

    /// Whether so many slots, so many of them entries, fit into the room.
    #[inline(always)]
    pub(crate) fn has_room_for(&self, len: usize, count: usize) -> bool {
        let scale = self.scale();
        len <= 31 && scale.weigh(len, count) <= scale.full
    }

    /// Whether the bounds and words fit into the room.
    pub(crate) fn is_within_room(&self) -> bool {
        let (scale, entries) = (self.scale(), self.mask.count_ones() as usize);
        entries == self.count()
            && (1..32).contains(&self.len())
            && scale.weigh(self.len(), entries) <= scale.full
    }

    /// The weights and the capacity of the leaf's form.
    #[inline(always)]
    fn scale(&self) -> Scale {
        if self.wide { WIDE } else { NARROW }
    }
}

#[cfg(test)]
impl Body {
    /// Damages the leaf for tests of the validator: sets another mask. Returns the old one.
    pub(crate) fn replace_mask(&mut self, mask: u32) -> u32 {
        let old = self.mask;
        self.set_slots(self.len(), mask, mask.count_ones() as usize);
        old
    }

    /// Damages the leaf for tests of the validator: swaps two bounds.
    pub(crate) fn swap_bounds(&mut self, a: usize, b: usize) {
        let (first, second) = (self.bound(a), self.bound(b));
        self.put_bound(a, second);
        self.put_bound(b, first);
    }
}

/// Cuts a run of slots into the sizes of leaves, each of which fits in the form that it will have.
///
/// `before` and `after` count the slots on either side of the written range. A write at an end cuts
/// unevenly, so that a sequential run of writes leaves full leaves behind it. If `joins`, the slots
/// are those of a leaf with too little and of a sibling: they become one leaf only if it [is
/// roomy](is_roomy).
pub(crate) fn cut(
    slots: &[LeafSlot],
    before: usize,
    after: usize,
    joins: bool,
) -> ([u8; MAX_PER_LEVEL], usize) {
    // Most wide leaves pass: a huge hole makes a leaf wide, and such leaves have few slots.
    let fits = |(sizes, count): &([u8; MAX_PER_LEVEL], usize)| {
        let mut rest = slots;
        sizes[..*count].iter().all(|&size| {
            let part = rest.split_off(..usize::from(size)).unwrap_or_default();
            narrow(part).is_some() || weight(part, WIDE) <= WIDE.full
        })
    };
    if joins {
        let entries = slots.iter().filter(|slot| !slot.word.is_null()).count();
        if !is_roomy(slots.len(), entries, narrow(slots).is_none()) {
            let (mut sizes, half) = ([0; MAX_PER_LEVEL], weight(slots, NARROW) / 2);
            let even = fill(slots, NARROW, &mut sizes, 2, |_| half, true);
            if even && fits(&(sizes, 2)) {
                return (sizes, 2);
            }
        }
    }
    let cut = cut_on(slots, before, after, NARROW);
    if fits(&cut) { cut } else { cut_on(slots, before, after, WIDE) }
}

/// Cuts so that each part fits on the scale and has an entry.
fn cut_on(
    slots: &[LeafSlot],
    before: usize,
    after: usize,
    scale: Scale,
) -> ([u8; MAX_PER_LEVEL], usize) {
    let total = weight(slots, scale);
    let mut sizes = [0; MAX_PER_LEVEL];
    let parts = total.div_ceil(scale.full);
    if parts <= 1 {
        sizes[0] = slots.len() as u8;
        return (sizes, 1);
    }
    if parts == 2 && (after <= 1 || before <= 1) {
        let first = if after <= 1 {
            scale.full.min(total - LEAF_TAIL)
        } else {
            LEAF_TAIL.max(total - scale.full)
        };
        if fill(slots, scale, &mut sizes, 2, |_| first, after <= 1) {
            return (sizes, 2);
        }
    }
    // One slot too many on one side of a cut can make a part too heavy; then more parts are tried.
    for parts in parts..=MAX_PER_LEVEL {
        if fill(slots, scale, &mut sizes, parts, |i| total * i / parts, true) {
            return (sizes, parts);
        }
    }
    unreachable!("{} slots do not fit {MAX_PER_LEVEL} leaves", slots.len())
}

/// Cuts where the weight passes `target(1)`, `target(2)`, and so on. If `below`, the slot that
/// passes the target goes to the right part, else to the left one. Returns false if a part is too
/// heavy or has no entry.
fn fill(
    slots: &[LeafSlot],
    scale: Scale,
    sizes: &mut [u8; MAX_PER_LEVEL],
    parts: usize,
    target: impl Fn(usize) -> usize,
    below: bool,
) -> bool {
    *sizes = [0; MAX_PER_LEVEL];
    let (mut part, mut weight, mut own, mut entries) = (0, 0, 0, 0);
    for slot in slots {
        let entry = usize::from(!slot.word.is_null());
        let more = scale.weigh(1, entry);
        let passes =
            if below { weight + more > target(part + 1) } else { weight >= target(part + 1) };
        if part + 1 < parts && own > 0 && passes {
            if entries == 0 {
                return false;
            }
            (part, own, entries) = (part + 1, 0, 0);
        }
        (weight, own, entries) = (weight + more, own + more, entries + entry);
        sizes[part] += 1;
        if own > scale.full {
            return false;
        }
    }
    part + 1 == parts && entries > 0
}

#[cfg(test)]
mod tests;
