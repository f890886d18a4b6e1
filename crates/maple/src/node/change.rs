//! How a change of a leaf is carried out: what moves, what is new, and ways to do it.
//!
//! A change moves two runs: the bounds behind it, and the words behind it. Everything else stays where it is, but for
//! at most two bounds and a word that are new. So the leaf after the change is, cell by cell, the one
//! before, or the one before shifted. By vectors that is one load and one masked load a cache line, whatever moves
//! how far (`super::simd`); without, a copy of the leaf and two short moves in it.
//!
//! By vectors the new leaf is made in registers and stored in four whole lines. One that was put together in memory,
//! bound by bound, could not be loaded by vectors for a dozen cycles: the processor does not combine small stores
//! that are still under way into one large load.

use super::few;
use super::inner::Inner;
use super::leaf::{Body, Leaf};
use crate::layout::LEAF_CELLS;
use core::ptr;

/// A run of things that moves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Run {
    /// Where it was.
    pub(crate) old: usize,
    /// Where it comes to be.
    pub(crate) new: usize,
    /// How long it is.
    pub(crate) len: usize,
}

/// A bound that a change puts into a leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// Whether there is one.
    pub(crate) is: bool,
    /// The slot that it ends.
    pub(crate) slot: usize,
    /// As the leaf keeps it: see [`Body::encode`].
    pub(crate) value: usize,
}

impl Bound {
    pub(crate) const NONE: Bound = Bound { is: false, slot: 0, value: 0 };
}

/// What a change does to a leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    /// Slots afterwards.
    pub(crate) len: usize,
    /// Which slots are entries afterwards.
    pub(crate) mask: u32,
    /// How many those are.
    pub(crate) count: usize,
    /// The bounds that move.
    pub(crate) bounds: Run,
    /// The cells of words that move.
    pub(crate) words: Run,
    /// The bounds that come.
    pub(crate) new: [Bound; 2],
    /// The word that comes, or null, and its rank.
    pub(crate) word: *mut (),
    pub(crate) rank: usize,
    /// Whether a copy of a word comes behind it: the second half of an entry that is split.
    pub(crate) splits: bool,
}

/// The cells that words move between, if words are taken out and put in at a rank.
#[inline(always)]
pub(crate) fn words(body: &Body, rank: usize, gone: usize, come: usize) -> Run {
    // Words behind those that go: they lie below, the later the lower.
    let len = body.count() - rank - gone;
    let end = LEAF_CELLS - len - rank;
    Run { old: end - gone, new: end - come, len }
}

/// A way to change leaves, and to measure nodes.
pub(crate) trait Way: Copy {
    /// Makes the changed leaf in `to`, out of that in `from`. The change fits. `copy` is the word for the second half of
    /// an entry that is split.
    ///
    /// # Safety
    /// Nobody else looks at `to`, which may be `from`. Else it is memory for a leaf.
    #[inline(always)]
    unsafe fn change(self, change: &Change, from: *const Leaf, to: *mut Leaf, copy: *mut ()) {
        // SAFETY: the caller's promise.
        unsafe { change_scalar(change, from, to, copy) }
    }

    /// Whether holes are measured in less time than it takes to have guessed wrong whether that is needed.
    const MEASURES: bool = false;

    /// The length of the longest of some holes, in a leaf from `min` to `max`. It is at most `limit`, where the search
    /// may end.
    #[inline(always)]
    fn gap(self, body: &Body, holes: u32, (min, max): (usize, usize), limit: usize) -> usize {
        body.gap(holes, (min, max), limit)
    }

    /// The length of the longest hole, in a leaf from `min` to `max`.
    #[inline(always)]
    fn largest_gap(self, body: &Body, ends: (usize, usize)) -> usize {
        self.gap(body, body.holes(), ends, usize::MAX)
    }

    /// The largest gap below a node, which is at most `limit`. Writers only.
    #[inline(always)]
    fn max_gap(self, inner: &Inner, limit: usize) -> usize {
        inner.max_gap(limit)
    }

    /// The same as it will be when the gap of a child is another. Writers only.
    #[inline(always)]
    fn max_gap_with(self, inner: &Inner, changed: (usize, usize), limit: usize) -> usize {
        inner.max_gap_with(changed, limit)
    }
}

/// Without vectors.
///
/// # Safety
/// As for [`Way::change`].
#[inline(always)]
pub(super) unsafe fn change_scalar(
    change: &Change,
    from: *const Leaf,
    to: *mut Leaf,
    copy: *mut (),
) {
    // SAFETY: the caller's promise.
    unsafe {
        if !ptr::eq(from, to) {
            Leaf::copy_body((*from).body(), to);
        }
        change.apply((*to).body_mut(), copy)
    }
}

impl Change {
    /// Makes the change, which fits.
    #[inline(always)]
    pub(crate) fn apply(&self, body: &mut Body, copy: *mut ()) {
        let room = body.room_mut();
        // SAFETY: all places are inside the room: the change fits.
        unsafe {
            if body.is_wide() {
                shift(room.cast::<usize>(), self.bounds);
            } else {
                shift(room.cast::<u32>(), self.bounds);
            }
            // As pointers: as numbers they would lose what they may be used for.
            shift(room.cast::<*mut ()>(), self.words)
        }
        body.set_slots(self.len, self.mask, self.count);
        for bound in self.new {
            if bound.is {
                body.put_encoded(bound.slot, bound.value);
            }
        }
        if !self.word.is_null() {
            body.put_word(self.rank, self.word);
        }
        if self.splits {
            body.put_word(self.rank + usize::from(!self.word.is_null()), copy);
        }
    }
}

/// Moves a run.
///
/// # Safety
/// Both places lie inside the room.
#[inline(always)]
unsafe fn shift<T: Copy>(room: *mut T, run: Run) {
    // SAFETY: the caller's promise.
    unsafe {
        let (from, to) = (room.add(run.old), room.add(run.new));
        if run.new < run.old {
            few::copy(from, to, run.len);
        } else if run.new > run.old {
            few::copy_up(from, to, run.len);
        }
    }
}
