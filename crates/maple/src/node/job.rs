//! The implementations of loops over a node, one of which is chosen for each operation.
//!
//! A function that uses SIMD instructions can be inlined only into functions that may use them. So
//! an operation is a [`Job`], generic over [`Search`]. [`run`](super::run) compiles it once for
//! each implementation and calls the best one.

use super::change::NodeEdits;
use super::inner::{Inner, Seps};
use super::leaf::Body;
use super::search;
use super::starts::{self, Starts};
use super::word;
use crate::Index;
use crate::layout::INNER_SLOTS;
use core::ptr;

/// An implementation of the search within nodes: scalar or SIMD.
pub(crate) trait Search: NodeEdits {
    /// The slots of a leaf before the one that holds `index`: bit `i` for slot `i`.
    fn below(self, body: &Body, index: Index) -> u32;
    /// The slot of a leaf that holds `index`.
    #[inline(always)]
    fn leaf(self, body: &Body, index: Index) -> usize {
        self.below(body, index).count_ones() as usize
    }
    /// The word of the slot that holds `index`; null for a hole.
    #[inline(always)]
    fn word(self, body: &Body, index: Index) -> *mut () {
        let below = self.below(body, index);
        // SAFETY: the room is initialised. If the cell holds no word, its contents become a pointer
        // that is never dereferenced.
        let word = unsafe { body.cell((body.entries() & below).count_ones() as usize).read() };
        // The bit above those of `below` is that of the slot.
        if body.entries() & (below + 1) == 0 { ptr::null_mut() } else { word::taken_out(word) }
    }
    /// The child of an inner node that holds `index`.
    fn inner(self, seps: &Seps, index: Index) -> usize;
    /// The same with the lowest latency instead of the fewest instructions: for callers that have
    /// little other work until the child is known.
    #[inline(always)]
    fn inner_soon(self, seps: &Seps, index: Index) -> usize {
        self.inner(seps, index)
    }
    /// The holes that may have room for `size` indices whose first is a multiple of `align`: bit
    /// `i` for slot `i`. Only the part of the leaf in `min..=max` counts, and only indices at or
    /// above `bound` (at or below it if not `UP`).
    ///
    /// The result includes every such hole, and may include others. `ENDS` asks the implementation
    /// to test the alignment in the first and the last slot, too, which takes longer.
    #[inline(always)]
    fn holes<const UP: bool, const ENDS: bool>(
        self,
        body: &Body,
        (min, max): (Index, Index),
        bound: Index,
        (size, align): (Index, Index),
    ) -> u32 {
        let (_, _, _, _) = (min, max, size, align);
        let below = self.below(body, bound);
        body.holes() & if UP { !below } else { 2 * below + 1 }
    }
    /// The children of an inner node with a gap of at least `size`: bit `i` for child `i`. `size`
    /// must not be 0.
    #[inline(always)]
    fn gaps(self, inner: &Inner, size: Index) -> u32 {
        (0..INNER_SLOTS).fold(0, |fits, slot| fits | u32::from(inner.gap(slot) >= size) << slot)
    }
    /// Writes the first index of each slot of a leaf but the first slot. Places beyond the last
    /// slot stay as they are or get arbitrary values.
    #[inline(always)]
    fn unpack(self, body: &Body, to: &mut Starts) {
        starts::scalar(body, to);
    }
}

/// An operation. Everything in it that searches must be inlined into [`Job::run`], always.
pub(crate) trait Job {
    /// The result.
    type Out;
    /// Runs the operation.
    fn run<S: Search>(self, search: S) -> Self::Out;
}

/// The search without SIMD. The function that it is inlined into decides which other instructions
/// the compiler may use.
#[derive(Clone, Copy)]
pub(super) struct Scalar;

impl NodeEdits for Scalar {}

impl Search for Scalar {
    #[inline(always)]
    fn below(self, body: &Body, index: Index) -> u32 {
        search::below_scalar(body, index)
    }

    #[inline(always)]
    fn leaf(self, body: &Body, index: Index) -> usize {
        search::leaf_scalar(body, index)
    }

    #[inline(always)]
    fn word(self, body: &Body, index: Index) -> *mut () {
        search::word_scalar(body, index)
    }

    #[inline(always)]
    fn inner(self, seps: &Seps, index: Index) -> usize {
        search::inner_scalar(seps, index)
    }
}
