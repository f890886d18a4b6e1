//! Which way to search within nodes, chosen once for a whole operation.
//!
//! Functions that use vectors can be inlined only into functions that may use them. So an operation
//! is a [`Job`], generic over the way to search, and [`run`] has it compiled once for each.
//!
//! # What the steps of a lookup gave
//!
//! Nanoseconds by AVX-512 at 1,000 / 10,000 / 100,000 ranges, a batch of independent keys, Xeon of
//! 3 GHz; in the same runs `brie_tree` took 4.5 / 7.1 / 14. A lookup waits for each node, and the
//! processor has about five on the way at once: so both how long one waits and how many
//! instructions it is count.
//!
//! | step | ns |
//! |---|---|
//! | two comparisons a node, each mask moved by itself | 8.9 / 14 / 25 |
//! | masks joined before they are moved; the last eight separators by a masked load, not across two lines | 7.7 / 12.5 / 21 |
//! | compared with memory by the mask; a leaf's two masks joined | 7.2 / 11.6 / 19 |
//! | the slots before as bits: the rank without the slot's number; a hole told apart by a branch | 6.2 / 10 / 17 |
//!
//! A mask as a constant of 8 bits, put into a part of a register, made each lookup wait for the one
//! before: 24 / 35 / 64. The two masks of an inner node counted each by itself, not joined first,
//! let dependent lookups take 5 to 7 % less, and independent ones up to 1,000 ranges 2 % more: only
//! writes do it so ([`Search::inner_soon`]). Without asking for children before their parent's
//! separators are compared, 100,000 dependent lookups take 88 instead of 77.

use super::change::Way;
use super::inner::{Inner, Seps};
use super::leaf::Body;
use super::simd;
use super::unpack::{self, Unpacked};
use super::{Link, search};
use crate::layout::INNER_SLOTS;
use core::ptr;

/// A way to search within nodes.
pub(crate) trait Search: Way {
    /// The slots of a leaf that lie before the one that holds `index`: bit `i` for slot `i`.
    fn below(self, body: &Body, index: usize) -> u32;
    /// The slot of a leaf that holds `index`.
    #[inline(always)]
    fn leaf(self, body: &Body, index: usize) -> usize {
        self.below(body, index).count_ones() as usize
    }
    /// The word of the slot that holds `index`; null for a hole.
    #[inline(always)]
    fn word(self, body: &Body, index: usize) -> *mut () {
        let below = self.below(body, index);
        // SAFETY: the room is initialised, and whatever lies in the cell is a pointer to nothing,
        // if not a word.
        let word = unsafe { body.cell((body.entries() & below).count_ones() as usize).read() };
        // The bit after those below is that of the slot.
        if body.entries() & (below + 1) == 0 { ptr::null_mut() } else { simd::taken_out(word) }
    }
    /// The child of an inner node that holds `index`.
    fn inner(self, seps: &Seps, index: usize) -> usize;
    /// The same in the fewest cycles, not the fewest instructions: for who has little else to do
    /// until it is known.
    #[inline(always)]
    fn inner_soon(self, seps: &Seps, index: usize) -> usize {
        self.inner(seps, index)
    }
    /// Holes of a leaf, as far as it lies in `min..=max`, that may have room for `size` indices,
    /// the first of them a multiple of `align`, at or above the index `bound` (at or below it if
    /// not `UP`): bit `i` for slot `i`. All that have are among them. The first slot and the last
    /// may be there though they fail by alignment, unless `ENDS`.
    #[inline(always)]
    fn holes<const UP: bool, const ENDS: bool>(
        self,
        body: &Body,
        (min, max): (usize, usize),
        bound: usize,
        (size, align): (usize, usize),
    ) -> u32 {
        let (_, _, _, _) = (min, max, size, align);
        let below = self.below(body, bound);
        body.holes() & if UP { !below } else { 2 * below + 1 }
    }
    /// The children of an inner node whose gaps are `size` or more, which is not 0: bit `i` for
    /// child `i`.
    #[inline(always)]
    fn gaps(self, inner: &Inner, size: usize) -> u32 {
        (0..INNER_SLOTS).fold(0, |fits, slot| fits | u32::from(inner.gap(slot) >= size) << slot)
    }
    /// Where the slots of a leaf begin, but for the first. Not written beyond the last, or written
    /// with anything.
    #[inline(always)]
    fn unpack(self, body: &Body, to: &mut Unpacked) {
        unpack::scalar(body, to);
    }
}

/// An operation. All that it calls to search should be inlined into [`Job::run`], and that always.
pub(crate) trait Job {
    /// What comes of it.
    type Out;
    /// Does it.
    fn run<S: Search>(self, search: S) -> Self::Out;
}

/// Without vectors. What it is compiled to depends on what else the processor may be asked for
/// where it is inlined.
#[derive(Clone, Copy)]
pub(super) struct Scalar;

impl Way for Scalar {}

impl Search for Scalar {
    #[inline(always)]
    fn below(self, body: &Body, index: usize) -> u32 {
        search::below_scalar(body, index)
    }

    #[inline(always)]
    fn leaf(self, body: &Body, index: usize) -> usize {
        search::leaf_scalar(body, index)
    }

    #[inline(always)]
    fn word(self, body: &Body, index: usize) -> *mut () {
        search::word_scalar(body, index)
    }

    #[inline(always)]
    fn inner(self, seps: &Seps, index: usize) -> usize {
        search::inner_scalar(seps, index)
    }
}

/// Does a job by what this processor has.
#[inline(always)]
pub(crate) fn run<J: Job>(job: J) -> J::Out {
    simd::run(job)
}

/// The word at an index; null for a hole.
///
/// Cost: a level is two cache lines of separators and one of children, the leaf two of bounds, its
/// header and a word's: all but the last of each are asked for at once. One acquire load a level;
/// no branch but the loop's, one for the leaf's form, and whether there is an entry, which whoever
/// asked asks, too.
///
/// # Safety
/// `root` is a node of a tree whose nodes stay allocated during the call, with separators and
/// leaves as they are.
#[inline(always)]
pub(crate) unsafe fn load(root: Link, index: usize) -> *mut () {
    struct Load(Link, usize);
    impl Job for Load {
        type Out = *mut ();

        #[inline(always)]
        fn run<S: Search>(self, search: S) -> *mut () {
            // SAFETY: the promise of `load`.
            unsafe { descend(search, self.0, self.1) }
        }
    }
    run(Load(root, index))
}

/// # Safety
/// As for [`load`].
#[inline(always)]
unsafe fn descend<S: Search>(search: S, root: Link, index: usize) -> *mut () {
    let mut link = root;
    for _ in 0..root.level() {
        // SAFETY: the caller's promise.
        let inner = unsafe { link.as_inner() };
        inner.prefetch();
        // SAFETY: the caller's promise; a published node's separators do not change.
        link = inner.child(search.inner(unsafe { inner.seps() }, index));
    }
    // SAFETY: the caller's promise; a published leaf does not change.
    let body = unsafe { link.as_leaf().body() };
    body.prefetch_words();
    search.word(body, index)
}
