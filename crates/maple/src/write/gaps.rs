//! The gaps above a change: their new values, computed before the change, and how they are stored
//! after it.
//!
//! A gap is a hint for the search for free ranges ([`crate::gap`]), so it need not change in the
//! same store as the leaf.

use super::descent::WriteDescent;
use super::leaf::place::Holes;
use super::plan::publish;
use crate::Index;
use crate::node::{Body, Inner, Search};

impl WriteDescent {
    /// The largest gap of the leaf's parent after a change of some of its children: bit `i` for
    /// child `i`. Their largest gap is then `gap`. For a root the result is not used.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`]; the parent has not changed yet.
    #[inline(always)]
    pub(in crate::write) unsafe fn parent_gap_after<S: Search>(
        &self,
        search: S,
        changed: u32,
        gap: Index,
    ) -> Index {
        if self.height() == 2 {
            return 0;
        }
        // SAFETY: the caller's promise.
        search.max_gap_with(unsafe { self.step(1) }.0, (changed, gap), Index::MAX)
    }

    /// Updates the gaps above the leaf's parent, whose largest gap is now `gap`.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[inline(always)]
    pub(in crate::write) unsafe fn settle_parent_gap<S: Search>(&self, search: S, gap: Index) {
        if self.height() > 2 {
            // SAFETY: the caller's promise.
            unsafe { self.raise_gap(search, 2, gap) }
        }
    }

    /// The largest gap of the leaf on the path after a change, computed before the change: then the
    /// old leaf can be loaded without waiting for pending stores. For a root the result is not
    /// used.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`]; the leaf has not changed yet.
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(in crate::write) unsafe fn gap_after<S: Search>(
        &self,
        search: S,
        body: &Body,
        holes: Holes,
    ) -> Index {
        if self.height() == 1 {
            return 0;
        }
        let Holes { gone, before, after, measure, .. } = holes;
        // SAFETY: the caller's promise.
        unsafe {
            let (parent, slot) = self.step(1);
            let gap = parent.gap(slot);
            if gone == 0 {
                return gap.max(after);
            }
            // The hole at the very end is longer than everything before it, so no other is
            // measured.
            if holes.is_tail() {
                return after;
            }
            if !(S::MEASURES && measure) && before != gap {
                return gap.max(after);
            }
            let others = body.holes() & !gone;
            // The ends of the leaf matter only for holes at its ends.
            let min = if others & 1 != 0 { self.min(0) } else { 0 };
            let max = if S::MEASURES || others >> (body.len() - 1) != 0 {
                self.leaf_end()
            } else {
                Index::MAX
            };
            search.gap(body, others, (min, max), gap).max(after)
        }
    }

    /// Whether a change certainly keeps the largest gap of the leaf: the hole that it removes is
    /// shorter, and the hole that it makes is not longer. May return false although the gap stays.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[inline(always)]
    pub(in crate::write) unsafe fn is_gap_safe(&self, holes: Holes) -> bool {
        if self.height() == 1 {
            return true;
        }
        // SAFETY: the caller's promise.
        let (parent, slot) = unsafe { self.step(1) };
        let gap = parent.gap(slot);
        holes.after <= gap && (holes.gone == 0 || holes.before < gap)
    }

    /// Updates the gaps after a change of the last leaf ([`Holes::is_tail`]) that leaves or makes a
    /// hole of `gap` indices, longer than everything before the change. So that hole is the largest
    /// on every level.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[inline(never)]
    pub(in crate::write) unsafe fn settle_tail(&self, gap: Index) {
        for level in 1..self.height() {
            // SAFETY: the caller's promise.
            let (inner, slot) = unsafe { self.step(level) };
            inner.set_gap(slot, gap);
        }
    }

    /// Updates the gaps after a change of the leaf, whose largest gap is now `gap`.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(in crate::write) unsafe fn settle_gap<S: Search>(&self, search: S, gap: Index) {
        if self.height() == 1 {
            return;
        }
        // SAFETY: the caller's promise.
        unsafe {
            let (parent, slot) = self.step(1);
            // One write in six changes the largest gap of the parent. A branch on that mispredicts,
            // and SIMD computes the gap in less time.
            if S::MEASURES && self.height() > 2 {
                let (above, place) = self.step(2);
                let before = above.gap(place);
                let largest = search.max_gap_with(parent, (1 << slot, gap), Index::MAX);
                parent.set_gap(slot, gap);
                let seldom = self.height() > 3 && {
                    let (top, at) = self.step(3);
                    largest.max(before) >= top.gap(at)
                };
                if seldom {
                    self.raise_gap(search, 2, largest);
                } else {
                    above.set_gap(place, largest);
                }
                return;
            }
            let largest = if self.height() > 2 {
                let (above, place) = self.step(2);
                above.gap(place)
            } else {
                Index::MAX
            };
            // Whether the leaf's gap changed is unpredictable. Whether that matters further up is
            // predictable: it rarely does.
            if gap.max(parent.gap(slot)) < largest {
                parent.set_gap(slot, gap);
            } else {
                self.raise_gap(search, 1, gap);
            }
        }
    }

    /// Updates the gaps from `level` upwards, after the gap of the child on the path became `gap`.
    ///
    /// Stops where nothing changes: usually at once, or one level up. The gaps of a node are
    /// searched only if the largest of them became smaller, and only until another gap is as large.
    ///
    /// # Safety
    /// As for [`WriteDescent::link`].
    #[inline(always)]
    pub(in crate::write) unsafe fn raise_gap<S: Search>(
        &self,
        search: S,
        level: usize,
        gap: Index,
    ) {
        // SAFETY: the caller's promise.
        let step = |level| unsafe { self.step(level) };
        let max_gap = |inner: &Inner, changed, limit| search.max_gap_with(inner, changed, limit);
        publish::raise_gap(level, self.height(), gap, step, max_gap);
    }
}
