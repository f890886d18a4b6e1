//! How a change of a leaf is carried out: the bounds and words that move, and those that are new.
//!
//! A change moves two runs: the bounds behind it, and the words behind it. At most two bounds and
//! one word are new, and one word may be duplicated. Everything else stays in place. So each cell
//! of the new leaf is either new, or the old cell, or the old cell shifted.
//!
//! Cost with AVX-512: one load and one masked load per cache line, independent of how much moves
//! and how far (`super::simd`). The new leaf is built in registers and stored as four whole cache
//! lines. A leaf that was built in memory, bound by bound, could not be loaded with SIMD for a
//! dozen cycles: a CPU does not forward several small pending stores to one large load.
//!
//! Cost without it: a copy of the leaf and two short moves in it.

use super::copy_words;
use super::inner::{Inner, Item, Splice};
use super::leaf::{Body, Cell, Leaf};
use crate::Index;
use crate::layout::LEAF_CELLS;
use core::ptr::{self, NonNull};

/// A run of elements that moves.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Run {
    /// Its old first index.
    pub(crate) old: usize,
    /// Its new first index.
    pub(crate) new: usize,
    /// Its length.
    pub(crate) len: usize,
}

/// A bound that a change writes into a leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound {
    /// Whether there is such a bound.
    pub(crate) is: bool,
    /// The slot that ends at the bound.
    pub(crate) slot: usize,
    /// The bound in its stored form: see [`Body::encode`].
    pub(crate) value: Index,
}

impl Bound {
    pub(crate) const NONE: Bound = Bound { is: false, slot: 0, value: 0 };
}

/// The effect of a change on a leaf. The runs that move may come from another leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    /// The number of slots afterwards.
    pub(crate) len: usize,
    /// The mask of entries afterwards.
    pub(crate) mask: u32,
    /// The number of entries afterwards.
    pub(crate) count: usize,
    /// The bounds that move.
    pub(crate) bounds: Run,
    /// The cells of words that move.
    pub(crate) words: Run,
    /// The new bounds.
    pub(crate) new: [Bound; 2],
    /// The new word, or null, and its rank.
    pub(crate) word: *mut (),
    pub(crate) rank: usize,
    /// Whether a copy of a word follows it: the second half of an entry that is split.
    pub(crate) splits: bool,
}

/// The run of words that moves when `gone` words are removed and `come` words inserted at `rank`.
#[inline(always)]
pub(crate) fn words(body: &Body, rank: usize, gone: usize, come: usize) -> Run {
    // Words behind the removed ones have higher ranks, so they lie at lower cells.
    let len = body.count() - rank - gone;
    let end = LEAF_CELLS - len - rank;
    Run { old: end - gone, new: end - come, len }
}

/// An implementation of changes of leaves and inner nodes, and of measuring gaps: scalar or SIMD.
pub(crate) trait NodeEdits: Copy {
    /// Makes the changed leaf in `to`. Cells that stay come from `from`, cells that move from
    /// `other`. `other` may be another leaf of the same form, or of any form if nothing moves. The
    /// change must fit. `copy` is the word for the second half of a split entry.
    ///
    /// # Safety
    /// The caller owns `to` alone. It is either `from` or memory for a leaf.
    #[inline(always)]
    unsafe fn change(
        self,
        change: &Change,
        (from, other): (*const Leaf, *const Leaf),
        to: *mut Leaf,
        copy: *mut (),
    ) {
        // SAFETY: the caller's promise.
        unsafe { change_scalar(change, (from, other), to, copy) }
    }

    /// The same as a call that is not inlined: for slow paths, and for functions that may not use
    /// SIMD.
    ///
    /// # Safety
    /// As for [`NodeEdits::change`].
    #[inline(always)]
    unsafe fn change_apart(
        self,
        change: &Change,
        sources: (*const Leaf, *const Leaf),
        to: *mut Leaf,
        copy: *mut (),
    ) {
        // SAFETY: the caller's promise.
        unsafe { change_apart(change, sources, to, copy) }
    }

    /// Makes an inner node in `to`: a copy of `from`, which ends at `end`, with some adjacent
    /// children replaced. There must be room. The splice has items, or a child behind them stays.
    ///
    /// # Safety
    /// `to` is memory for an inner node; `from` does not change.
    #[inline(always)]
    unsafe fn splice(self, from: &Inner, to: NonNull<Inner>, end: Index, splice: Splice) {
        // SAFETY: the caller's promise.
        unsafe {
            Inner::make(to);
            to.as_ref().fill_spliced(from, end, splice);
        }
    }

    /// Replaces a child of an inner node by two. There must be room.
    ///
    /// # Safety
    /// The caller owns the node alone.
    #[inline(always)]
    unsafe fn insert(self, inner: &Inner, slot: usize, pair: [Item; 2]) {
        // SAFETY: the caller's promise.
        unsafe { inner.insert(slot, pair) }
    }

    /// Whether measuring all holes takes less time than mispredicting the test that it is needed.
    const MEASURES: bool = false;

    /// The length of the longest of `holes`, in a leaf from `min` to `max`. It is known to be at
    /// most `limit`; the search may stop when it reaches that.
    #[inline(always)]
    fn gap(self, body: &Body, holes: u32, (min, max): (Index, Index), limit: Index) -> Index {
        body.gap(holes, (min, max), limit)
    }

    /// The largest gap below a node when `changed.1` replaces the gaps of the children in
    /// `changed.0` (bit `i` for child `i`). It is known to be at most `limit`; the search may stop
    /// there. Writers only.
    #[inline(always)]
    fn max_gap_with(self, inner: &Inner, changed: (u32, Index), limit: Index) -> Index {
        inner.max_gap_with(changed, limit)
    }
}

/// [`NodeEdits::change`] without SIMD.
///
/// # Safety
/// As for [`NodeEdits::change`].
#[cfg_attr(not(unoptimized), inline(always))]
pub(super) unsafe fn change_scalar(
    change: &Change,
    (from, other): (*const Leaf, *const Leaf),
    to: *mut Leaf,
    copy: *mut (),
) {
    // SAFETY: the caller's promise.
    unsafe {
        if !ptr::eq(from, to) {
            Leaf::copy_body((*from).body(), to);
        }
        let body = (*to).body_mut();
        if ptr::eq(from, other) {
            change.shift(body)
        } else {
            change.bring((*other).body(), body)
        }
        change.put(body, copy)
    }
}

/// [`NodeEdits::change`] without SIMD, not inlined.
///
/// # Safety
/// As for [`NodeEdits::change`].
#[inline(never)]
unsafe fn change_apart(
    change: &Change,
    sources: (*const Leaf, *const Leaf),
    to: *mut Leaf,
    copy: *mut (),
) {
    // SAFETY: the caller's promise.
    unsafe { change_scalar(change, sources, to, copy) }
}

impl Change {
    /// Makes the change, which must fit.
    #[cfg(test)]
    pub(super) fn apply(&self, body: &mut Body, copy: *mut ()) {
        self.shift(body);
        self.put(body, copy);
    }

    /// The change that joins the first `a` slots of one leaf, `holes` holes, and the slots from `b`
    /// on of another leaf of the same form. `new` holds the bounds that end the first part and the
    /// holes. It is a change of the first leaf whose runs come from the other one. It may not fit.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) fn of_parts(
        (left, a): (&Body, usize),
        holes: usize,
        (right, b): (&Body, usize),
        new: [Bound; 2],
    ) -> Change {
        let (rank, words) = (left.rank(a), right.count() - right.rank(b));
        let (at, more) = (a + holes, right.len() - b);
        Change {
            len: at + more,
            mask: left.entries() & ((1 << a) - 1) | right.entries() >> b << at,
            count: rank + words,
            bounds: Run { old: b, new: at, len: more.saturating_sub(1) },
            words: Run {
                old: LEAF_CELLS - right.count(),
                new: (LEAF_CELLS - words).wrapping_sub(rank),
                len: words,
            },
            new,
            word: ptr::null_mut(),
            rank: 0,
            splits: false,
        }
    }

    /// The change that keeps the slots of a leaf from `at` on. There must be one.
    #[inline(always)]
    pub(crate) fn rest(body: &Body, at: usize) -> Change {
        Change::of_parts((body, 0), 0, (body, at), [Bound::NONE; 2])
    }

    /// The change that keeps the first `at` slots of a leaf. There must be one.
    #[inline(always)]
    pub(crate) fn first(body: &Body, at: usize) -> Change {
        Change::of_parts((body, at), 0, (body, body.len()), [Bound::NONE; 2])
    }

    /// Restricts this change of a leaf to the leaf's first `at` slots. It must not change any other
    /// slot.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) fn of_first(self, body: &Body, at: usize) -> Change {
        let len = self.len + at - body.len();
        let (behind, more) = (body.len() - at, body.count() - body.rank(at));
        Change {
            len,
            mask: self.mask & ((1 << len) - 1),
            count: self.count - more,
            bounds: Run { len: self.bounds.len.saturating_sub(behind), ..self.bounds },
            // Words of higher rank lie at lower cells.
            words: Run {
                old: self.words.old + more,
                new: self.words.new.wrapping_add(more),
                len: self.words.len - more,
            },
            ..self
        }
    }

    /// Whether the result fits into a leaf of that one's form.
    #[inline(always)]
    pub(crate) fn fits(&self, form: &Body) -> bool {
        self.count > 0 && form.has_room_for(self.len, self.count)
    }

    /// Whether nothing moves, as at the end of a leaf.
    #[inline(always)]
    pub(crate) fn moves_nothing(&self) -> bool {
        self.bounds.len | self.words.len == 0
    }

    /// Moves both runs within the leaf.
    #[cfg_attr(not(unoptimized), inline(always))]
    fn shift(&self, body: &mut Body) {
        let room = body.room_mut();
        // SAFETY: all places are inside the room, because the change fits.
        unsafe {
            if body.is_wide() {
                shift(room.cast::<Index>(), self.bounds);
            } else {
                shift(room.cast::<u32>(), self.bounds);
            }
            shift(room.cast::<Cell>(), self.words)
        }
    }

    /// Copies both runs from another leaf of the same form.
    #[cfg_attr(not(unoptimized), inline(always))]
    fn bring(&self, other: &Body, body: &mut Body) {
        let (from, to) = (other.room(), body.room_mut());
        // SAFETY: as for `shift`.
        unsafe {
            if body.is_wide() {
                bring(from.cast::<Index>(), to.cast(), self.bounds);
            } else {
                bring(from.cast::<u32>(), to.cast(), self.bounds);
            }
            bring(from.cast::<Cell>(), to.cast(), self.words)
        }
    }

    /// Writes the header, and the new bounds and words.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(crate) fn put(&self, body: &mut Body, copy: *mut ()) {
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

/// Moves a run within a room.
///
/// # Safety
/// Both places lie inside the room.
#[cfg_attr(not(unoptimized), inline(always))]
unsafe fn shift<T: Copy>(room: *mut T, run: Run) {
    // SAFETY: the caller's promise.
    unsafe {
        let (from, to) = (room.add(run.old), room.add(run.new));
        if run.new < run.old {
            copy_words::copy(from, to, run.len);
        } else if run.new > run.old {
            copy_words::copy_up(from, to, run.len);
        }
    }
}

/// Copies a run from another leaf's room.
///
/// # Safety
/// Both places lie inside the rooms.
#[inline(always)]
unsafe fn bring<T: Copy>(from: *const T, to: *mut T, run: Run) {
    // SAFETY: the caller's promise.
    unsafe { copy_words::copy(from.add(run.old), to.add(run.new), run.len) }
}
