//! A leaf with the path to it, and the effects of a change on its holes.

use crate::Index;
use crate::node::Body;
use crate::write::descent::WriteDescent;

/// A leaf and the path to it. The path is needed only for the ends of the leaf's range.
#[derive(Clone, Copy)]
pub(in crate::write) struct Place<'p> {
    pub(in crate::write) descent: &'p WriteDescent,
    pub(in crate::write) body: &'p Body,
}

impl Place<'_> {
    /// The first index of a slot.
    #[inline(always)]
    pub(in crate::write) fn start(self, slot: usize) -> Index {
        // SAFETY: the promise of `Target::new`.
        if slot == 0 { unsafe { self.descent.min(0) } } else { self.body.bound(slot - 1) + 1 }
    }

    /// The last index of a slot.
    #[inline(always)]
    pub(in crate::write) fn end(self, slot: usize) -> Index {
        if slot + 1 < self.body.len() {
            self.body.bound(slot)
        } else {
            // SAFETY: the promise of `Target::new`.
            unsafe { self.descent.max(0) }
        }
    }
}

impl Place<'_> {
    /// As [`Place::end`], without a branch on whether the slot is the last: one in five is, which
    /// would mispredict.
    #[inline(always)]
    pub(in crate::write) fn end_of(self, slot: usize) -> Index {
        // SAFETY: the promise of `Target::new`.
        self.body.end_of(slot, unsafe { self.descent.leaf_end() })
    }

    /// Whether the leaf before this one ends with a hole.
    pub(in crate::write) fn has_hole_before(self) -> bool {
        // SAFETY: the promise of `Target::new`.
        unsafe { self.descent.neighbour(false).is_some_and(|leaf| leaf.body().ends_with_hole()) }
    }

    /// Whether the leaf after this one begins with a hole.
    pub(in crate::write) fn has_hole_after(self) -> bool {
        // SAFETY: the promise of `Target::new`.
        unsafe { self.descent.neighbour(true).is_some_and(|leaf| leaf.body().is_hole(0)) }
    }
}

/// The effect of a change on holes: the holes that it removes, the longest of them, and the longest
/// hole that it makes. Also the range of the slots that it changes.
#[derive(Clone, Copy)]
pub(in crate::write) struct Holes {
    /// The holes that it removes: bit `i` for slot `i`. Zero if it makes a longer one.
    pub(in crate::write) gone: u32,
    pub(in crate::write) before: Index,
    pub(in crate::write) after: Index,
    pub(in crate::write) start: Index,
    pub(in crate::write) end: Index,
    /// Whether AVX-512 measures the remaining holes unconditionally, because testing for the need
    /// mispredicts half the time. Not so for a moved end.
    pub(in crate::write) measure: bool,
}

impl Holes {
    /// A change that makes a hole of `after` indices and removes none, in slots that cover
    /// `start..=end`.
    #[inline(always)]
    pub(in crate::write) fn made(after: Index, (start, end): (Index, Index)) -> Holes {
        Holes { gone: 0, before: 0, after, start, end, measure: true }
    }

    /// Whether the change is at the very end of the index range, and leaves or makes a hole longer
    /// than everything before it.
    #[inline(always)]
    pub(in crate::write) fn is_tail(self) -> bool {
        self.end == Index::MAX && self.after > self.start
    }
}
