//! How a change of a leaf is carried out: what moves, what is new, and ways to do it.
//!
//! A change moves two runs: the bounds behind it, and the words behind it. Everything else stays
//! where it is, but for at most two bounds and a word that are new. So the leaf after the change
//! is, cell by cell, the one before, or the one before shifted. By vectors that is one load and one
//! masked load a cache line, whatever moves how far (`super::simd`); without, a copy of the leaf
//! and two short moves in it.
//!
//! By vectors the new leaf is made in registers and stored in four whole lines. One that was put
//! together in memory, bound by bound, could not be loaded by vectors for a dozen cycles: the
//! processor does not combine small stores that are still under way into one large load.

use super::few;
use super::inner::{Inner, Item, Splice};
use super::leaf::{Body, Cell, Leaf};
use crate::layout::{LEAF_CELLS, NARROW};
use core::ptr::{self, NonNull};

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

/// What a change does to a leaf. The runs that move may be another leaf's.
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
    /// Makes the changed leaf in `to`, out of that in `from`; what moves comes from `other`, which
    /// may be another leaf of the same form, or of any if nothing moves. The change fits. `copy` is
    /// the word for the second half of an entry that is split.
    ///
    /// # Safety
    /// Nobody else looks at `to`, which may be `from`. Else it is memory for a leaf.
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

    /// The same as a call: for what is done seldom, and for functions that may not use vectors
    /// themselves.
    ///
    /// # Safety
    /// As for [`Way::change`].
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

    /// Makes an inner node in `to`: another, which ends at `end`, in which others take the place of
    /// some neighbours. There is room for them. There are some, or a child that stays is the last.
    ///
    /// # Safety
    /// `to` is memory for an inner node; nobody changes the other.
    #[inline(always)]
    unsafe fn splice(self, from: &Inner, to: NonNull<Inner>, end: usize, splice: Splice) {
        // SAFETY: the caller's promise.
        unsafe {
            Inner::make(to);
            to.as_ref().fill_spliced(from, end, splice);
        }
    }

    /// Replaces a child of an inner node by two. There must be room.
    ///
    /// # Safety
    /// Nobody else looks at the node.
    #[inline(always)]
    unsafe fn insert(self, inner: &Inner, slot: usize, pair: [Item; 2]) {
        // SAFETY: the caller's promise.
        unsafe { inner.insert(slot, pair) }
    }

    /// Whether holes are measured in less time than it takes to have guessed wrong whether that is
    /// needed.
    const MEASURES: bool = false;

    /// The length of the longest of some holes, in a leaf from `min` to `max`. It is at most
    /// `limit`, where the search may end.
    #[inline(always)]
    fn gap(self, body: &Body, holes: u32, (min, max): (usize, usize), limit: usize) -> usize {
        body.gap(holes, (min, max), limit)
    }

    /// The largest gap below a node when some children, bit `i` for child `i`, have another gap. It
    /// is at most `limit`, where the search may end. Writers only.
    #[inline(always)]
    fn max_gap_with(self, inner: &Inner, changed: (u32, usize), limit: usize) -> usize {
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

/// Without vectors, as a call.
///
/// # Safety
/// As for [`Way::change`].
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
    /// Makes the change, which fits.
    #[cfg(test)]
    pub(super) fn apply(&self, body: &mut Body, copy: *mut ()) {
        self.shift(body);
        self.put(body, copy);
    }

    /// The first `a` slots of a leaf, so many holes, and the slots from `b` on of another leaf of
    /// the same form. With the bounds that end the ones and the others it is a change of the one
    /// leaf with what moves from the other. It may not fit.
    #[inline(always)]
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

    /// The slots of a leaf from `at` on, of which there are some, by themselves.
    #[inline(always)]
    pub(crate) fn rest(body: &Body, at: usize) -> Change {
        Change::of_parts((body, 0), 0, (body, at), [Bound::NONE; 2])
    }

    /// The first `at` slots of a leaf, of which there are some, by themselves.
    #[inline(always)]
    pub(crate) fn first(body: &Body, at: usize) -> Change {
        Change::of_parts((body, at), 0, (body, body.len()), [Bound::NONE; 2])
    }

    /// Of a change of a leaf what concerns its first `at` slots, all that it changes among them.
    #[inline(always)]
    pub(crate) fn of_first(self, body: &Body, at: usize) -> Change {
        let len = self.len + at - body.len();
        let (behind, more) = (body.len() - at, body.count() - body.rank(at));
        Change {
            len,
            mask: self.mask & ((1 << len) - 1),
            count: self.count - more,
            bounds: Run { len: self.bounds.len.saturating_sub(behind), ..self.bounds },
            // The later a word the lower it lies.
            words: Run {
                old: self.words.old + more,
                new: self.words.new.wrapping_add(more),
                len: self.words.len - more,
            },
            ..self
        }
    }

    /// Whether a narrow leaf takes it.
    #[inline(always)]
    pub(crate) fn fits_narrow(&self) -> bool {
        self.len <= 31 && self.count > 0 && NARROW.weigh(self.len, self.count) <= NARROW.full
    }

    /// Whether nothing moves: at the end of a leaf.
    #[inline(always)]
    pub(crate) fn moves_nothing(&self) -> bool {
        self.bounds.len | self.words.len == 0
    }

    /// Moves what moves, within the leaf.
    #[inline(always)]
    fn shift(&self, body: &mut Body) {
        let room = body.room_mut();
        // SAFETY: all places are inside the room: the change fits.
        unsafe {
            if body.is_wide() {
                shift(room.cast::<usize>(), self.bounds);
            } else {
                shift(room.cast::<u32>(), self.bounds);
            }
            shift(room.cast::<Cell>(), self.words)
        }
    }

    /// Brings what moves, from another leaf of the same form.
    #[inline(always)]
    fn bring(&self, other: &Body, body: &mut Body) {
        let (from, to) = (other.room(), body.room_mut());
        // SAFETY: as for `shift`.
        unsafe {
            if body.is_wide() {
                bring(from.cast::<usize>(), to.cast(), self.bounds);
            } else {
                bring(from.cast::<u32>(), to.cast(), self.bounds);
            }
            bring(from.cast::<Cell>(), to.cast(), self.words)
        }
    }

    /// Puts in what is new.
    #[inline(always)]
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

/// Brings a run from another leaf.
///
/// # Safety
/// Both places lie inside the rooms.
#[inline(always)]
unsafe fn bring<T: Copy>(from: *const T, to: *mut T, run: Run) {
    // SAFETY: the caller's promise.
    unsafe { few::copy(from.add(run.old), to.add(run.new), run.len) }
}
