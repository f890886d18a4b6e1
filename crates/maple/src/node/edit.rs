//! A write within one leaf: it replaces some adjacent slots.
//!
//! The slots `from..=to` become the new slot, the part of the first slot before it, and the part of
//! the last slot after it. Why two runs are enough to describe the change:
//!
//! - The last replaced slot ends where it ended before the write. So bounds come and go only before
//!   that one.
//! - The remaining parts keep their words. So words come and go at one rank only.
//!
//! Cost: constant; no loop over slots.

use super::change::{self, Bound, Change, Run};
use super::leaf::Body;
use crate::Index;
use crate::layout::{LEAF_LOW, NARROW};

/// A write within one leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edit {
    /// The replaced slots.
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Whether a part of the first replaced slot stays; it then ends before `first`.
    pub(crate) left: bool,
    /// Whether a part of the last replaced slot stays; it then begins after `last`.
    pub(crate) right: bool,
    /// The range of the new slot.
    pub(crate) first: Index,
    pub(crate) last: Index,
    /// The word of the new slot; null for a hole.
    pub(crate) word: *mut (),
    /// The effect on the leaf.
    effect: Effect,
}

/// Whether a change fits into its leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fit {
    /// It fits.
    Fits,
    /// The leaf has no room for it.
    Full,
    /// The leaf would need another form, or would be left too empty.
    Not,
}

/// The effect of a write on a leaf.
#[derive(Clone, Copy, Debug)]
struct Effect {
    /// The number of slots afterwards.
    len: usize,
    /// The mask of entries afterwards.
    mask: u32,
    /// The rank of the first word that is removed or inserted, and the numbers of both.
    at: usize,
    gone: usize,
    come: usize,
    /// Whether an entry is cut in two, so that its word is needed twice.
    splits: bool,
}

#[inline(always)]
fn low(n: usize) -> u32 {
    (1 << n) - 1
}

impl Edit {
    /// Replaces slots `from..=to` of a leaf by `first..=last` with `word`. The part before `first`
    /// (if `left`) and the part after `last` (if `right`) stay.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) fn new(
        body: &Body,
        (from, to): (usize, usize),
        (left, right): (bool, bool),
        (first, last): (Index, Index),
        word: *mut (),
    ) -> Edit {
        // A leaf has at most 31 slots, so no shift overflows in 64 bits.
        let mask = u64::from(body.mask);
        let (entry, ends) = ((mask >> from) as u32 & 1, (mask >> to) as u32 & 1);
        let (lefts, rights) = (u32::from(left), u32::from(right));
        let new = u64::from(!word.is_null());
        let slots =
            u64::from(lefts & entry) | new << lefts | u64::from(rights & ends) << (lefts + 1);
        let below = body.mask & low(from);
        let above = mask >> (to + 1);
        let inside = (mask >> from) as u32 & low(to - from + 1);
        // The remaining parts keep their words; an entry cut in two leaves two parts.
        let splits = left && right && from == to && entry == 1;
        let stays = (lefts & entry) + if splits { 0 } else { rights & ends };
        let effect = Effect {
            len: body.len() + (lefts + rights) as usize - (to - from),
            mask: (u64::from(below) | slots << from | above << (from as u32 + lefts + 1 + rights))
                as u32,
            at: (below.count_ones() + (lefts & entry)) as usize,
            gone: (inside.count_ones() - stays) as usize,
            come: new as usize + usize::from(splits),
            splits,
        };
        Edit { from, to, left, right, first, last, word, effect }
    }

    /// The same write in a leaf that has lost its first `at` slots, or slots behind the write.
    pub(crate) fn within(&self, half: &Body, at: usize) -> Edit {
        let slots = (self.from - at, self.to - at);
        Edit::new(half, slots, (self.left, self.right), (self.first, self.last), self.word)
    }

    /// Whether the write has room in its half of a leaf that is cut at `at`. If its bounds
    /// fit the form of the leaf, they fit that of the half.
    pub(crate) fn has_room_in_half(&self, body: &Body, at: usize) -> bool {
        let (rank, below) = (body.rank(at), self.from < at);
        let (slots, entries) =
            if below { (at, rank) } else { (body.len() - at, body.count() - rank) };
        let len = slots + self.effect.len - body.len();
        let entries = entries + self.effect.come - self.effect.gone;
        entries > 0 && body.has_room_for(len, entries)
    }

    /// The replaced slots: bit `i` for slot `i`.
    #[inline(always)]
    pub(crate) fn replaced(&self) -> u32 {
        u32::MAX >> (31 - self.to) & u32::MAX << self.from
    }

    /// The new bounds.
    pub(crate) fn bounds(&self) -> [Option<Index>; 2] {
        [self.left.then(|| self.first - 1), self.right.then_some(self.last)]
    }

    /// Whether an entry is cut in two, so that its word is needed twice.
    #[inline(always)]
    pub(crate) fn splits(&self) -> bool {
        self.effect.splits
    }

    /// The words that the write removes: the rank of the first, and their number.
    #[inline(always)]
    pub(crate) fn removed(&self) -> (usize, usize) {
        (self.effect.at, self.effect.gone)
    }

    /// Whether the write fits into the leaf. A root may become almost empty.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) fn fit(&self, body: &Body, is_root: bool) -> Fit {
        if (self.left && !body.takes(self.first - 1)) || (self.right && !body.takes(self.last)) {
            return Fit::Not;
        }
        let Effect { len, gone, come, .. } = self.effect;
        let entries = body.count() + come - gone;
        if !body.has_room_for(len, entries) {
            return Fit::Full;
        }
        if gone > come && (entries == 0 || (!is_root && NARROW.weigh(len, entries) < LEAF_LOW)) {
            return Fit::Not;
        }
        Fit::Fits
    }

    /// The change that carries out the write, which must fit.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) fn change(&self, body: &Body) -> Change {
        let Effect { len, mask, at, gone, come, splits } = self.effect;
        let (lefts, rights) = (usize::from(self.left), usize::from(self.right));
        // The bounds from that of the last replaced slot on move.
        let bounds = Run {
            old: self.to,
            new: self.from + lefts + rights,
            len: (body.len() - 1).saturating_sub(self.to),
        };
        let bound = |is: bool, slot, end| Bound { is, slot, value: body.encode(end) };
        let new = [
            bound(self.left, self.from, self.first.wrapping_sub(1)),
            bound(self.right, self.from + lefts, self.last),
        ];
        let words = change::words(body, at, gone, come);
        let count = body.count() + come - gone;
        Change { len, mask, count, bounds, words, new, word: self.word, rank: at, splits }
    }
}

impl Body {
    /// Keeps only the slots before `at`. There must be one.
    #[inline(always)]
    pub(crate) fn truncate(&mut self, at: usize) {
        self.set_slots(at, self.entries() & low(at), self.rank(at));
    }
}

#[cfg(test)]
mod tests;
