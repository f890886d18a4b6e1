//! A write within one leaf: some neighbouring slots become others.
//!
//! The slots `from..=to` are replaced by a new one and the rests that it leaves of the first and the last
//! of them. The end of the last slot is an end after the write, too: so bounds only come and go before it.

use super::leaf::{Body, Slot};
use crate::layout::{LEAF_CELLS, LEAF_LOW};
use core::ptr;

/// A change of one leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Splice {
    /// The slots replaced.
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// What is left of the first of them, if its beginning stays.
    pub(crate) left: Option<Slot>,
    /// The new slot.
    pub(crate) new: Slot,
    /// The word of what is left of the last of them, if its end stays.
    pub(crate) right: Option<*mut ()>,
}

impl Splice {
    /// Whether the leaf takes the change as it is: it has room for it, in its form, and does not get so empty
    /// that it should be joined with another. A leaf that is the root may be as empty as it likes.
    #[inline]
    pub(crate) fn fits(&self, body: &Body, is_root: bool) -> bool {
        let gone = self.to - self.from + 1;
        let come = 1 + usize::from(self.left.is_some()) + usize::from(self.right.is_some());
        let mask = self.mask(body);
        let (len, entries) = (body.len() + come - gone, mask.count_ones() as usize);
        let scale = body.scale();
        if len >= 32 || scale.weigh(len, entries) > scale.full || entries == 0 {
            return false;
        }
        let lighter = crate::layout::NARROW.weigh(len, entries);
        if lighter < LEAF_LOW && lighter < body.weight() && !is_root {
            return false;
        }
        self.left.is_none_or(|left| body.takes(left.end))
            && (self.right.is_none() || body.takes(self.new.end))
    }

    /// Which slots are entries afterwards.
    #[inline]
    fn mask(&self, body: &Body) -> u32 {
        let old = u64::from(body.mask);
        let (mut new, mut n) = (0, 0);
        let mut slot = |word: *mut ()| {
            new |= u64::from(!word.is_null()) << n;
            n += 1;
        };
        if let Some(left) = self.left {
            slot(left.word);
        }
        slot(self.new.word);
        if let Some(right) = self.right {
            slot(right);
        }
        let low = old & ((1 << self.from) - 1);
        let high = old >> (self.to + 1);
        (low | new << self.from | high << (self.from + n)) as u32
    }

    /// Makes the change. It fits.
    #[inline]
    pub(crate) fn apply(&self, body: &mut Body) {
        let mask = self.mask(body);
        let gone = self.to - self.from;
        let come = usize::from(self.left.is_some()) + usize::from(self.right.is_some());
        // Bounds from that of the last slot replaced on move, if their number changes.
        let bounds = body.len() - 1 - self.to.min(body.len() - 1);
        let room = body.room_mut();
        let (old, new) = (self.to, self.from + come);
        // SAFETY: both places are inside the room: the change fits.
        unsafe {
            if body.wide {
                ptr::copy(room.cast::<usize>().add(old), room.cast::<usize>().add(new), bounds);
            } else {
                shift_bounds(room.cast(), old, new, bounds);
            }
        }
        // Words from that of the entry after the last slot replaced on move.
        let first = body.rank(self.from);
        let before = body.rank(self.to + 1);
        let words = body.mask.count_ones() as usize - before;
        let after = mask.count_ones() as usize - words;
        if before != after {
            // SAFETY: as above.
            unsafe {
                let (old, new) = (LEAF_CELLS - before - words, LEAF_CELLS - after - words);
                ptr::copy(room.add(old), room.add(new), words);
            }
        }
        body.set_len(body.len() + come - gone);
        body.mask = mask;
        let (mut slot, mut rank) = (self.from, first);
        let mut put = |body: &mut Body, word: *mut ()| {
            if !word.is_null() {
                body.put_word(rank, word);
                rank += 1;
            }
        };
        if let Some(left) = self.left {
            body.put_bound(slot, left.end);
            put(body, left.word);
            slot += 1;
        }
        put(body, self.new.word);
        if let Some(right) = self.right {
            body.put_bound(slot, self.new.end);
            put(body, right);
        }
    }
}

/// # Safety
/// Both runs lie inside the room.
#[inline(always)]
unsafe fn shift_bounds(room: *mut u32, old: usize, new: usize, n: usize) {
    if old != new {
        // SAFETY: the caller's promise.
        unsafe { ptr::copy(room.add(old), room.add(new), n) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::NARROW;
    use crate::node::leaf::word;
    use crate::node::pack::{is_packable, pack};
    use std::vec::Vec;

    const MAX: usize = 0xffff_ffff;

    fn slots(body: &Body) -> Vec<Slot> {
        (0..body.len()).map(|slot| body.slot(slot, MAX)).collect()
    }

    /// Every change of leaves of every kind, beside the same done to a list.
    #[test]
    fn as_with_a_list() {
        let unit = 0x1000;
        let most = if cfg!(miri) { 5 } else { NARROW.full / 3 };
        for n in 1..=most {
            for pattern in 0..if cfg!(miri) { 3 } else { 1 << n.min(6) } {
                // No two holes touch.
                let mut old = Vec::<Slot>::new();
                for i in 0..n {
                    let hole = pattern >> (i % 6) & 1 == 1
                        && old.last().is_none_or(|slot| !slot.word.is_null());
                    let end = if i + 1 == n { MAX } else { (i + 1) * 4 * unit - 1 };
                    old.push(Slot { end, word: word(if hole { 0 } else { 100 + i }) });
                }
                if !old.iter().any(|slot| !slot.word.is_null()) || !is_packable(&old) {
                    continue;
                }
                for from in 0..n {
                    for to in from..n {
                        for rests in 0..4 {
                            for new in [word(0), word(7)] {
                                one(&old, from, to, rests, new, unit);
                            }
                        }
                    }
                }
            }
        }
    }

    fn one(old: &[Slot], from: usize, to: usize, rests: usize, new: *mut (), unit: usize) {
        let left = (rests & 1 == 1)
            .then_some(Slot { end: from * 4 * unit + unit - 1, word: old[from].word });
        let right = (rests & 2 == 2).then_some(old[to].word);
        let end = if right.is_some() { to * 4 * unit + 2 * unit - 1 } else { old[to].end };
        let splice = Splice { from, to, left, new: Slot { end, word: new }, right };
        let mut body = pack(old);
        if !splice.fits(&body, true) {
            return;
        }
        splice.apply(&mut body);
        let mut expected = old[..from].to_vec();
        expected.extend(left);
        expected.push(splice.new);
        expected.extend(right.map(|word| Slot { end: old[to].end, word }));
        expected.extend(&old[to + 1..]);
        assert_eq!(slots(&body), expected, "{splice:?} of {old:?}");
    }
}
