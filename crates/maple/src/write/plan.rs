//! Phase one: the plan, which lists the nodes that a write replaces, level by level.
//!
//! The replaced leaves reach from the leaf of the range's first index to that of its last. Their
//! new contents are, in order: the slots of the left leaf before the range, the rest of the slot
//! that the range cuts on the left, the new slot, the rest of the slot cut on the right, and the
//! slots of the right leaf after the range. These are divided into as many leaves as they need. If
//! they are too little for one leaf, a sibling is added.
//!
//! One level up the same happens with children instead of slots: the left parent's children before
//! the replaced leaves, the new leaves, the right parent's children after them. This ends where one
//! new node replaces one old node, because that is a single pointer store, or at the root.
//!
//! Holes stay whole: a new hole is merged with the holes next to it, across leaves, too. So every
//! hole lies in one leaf, and the largest gap of a subtree is the largest gap of its parts.

pub(super) mod build;
mod make;
pub(super) mod publish;
mod run;

use crate::Index;
use crate::cold_path::initialised;
use crate::descent::{Descent, Span};
use crate::entry::Raw;
use crate::layout::{MAX_HEIGHT, MAX_PER_LEVEL};
use crate::node::{Link, Slots};
use core::mem::MaybeUninit;
use core::ops::Range;
use core::ptr::{self, NonNull};

/// The nodes replaced on one level, and the sizes of the new ones.
#[derive(Clone, Copy)]
pub(in crate::write) struct Level {
    /// A sibling added on the left, or null.
    pub(in crate::write) before: Link,
    /// The leftmost replaced node, apart from `before`. Its first `keep` slots stay.
    pub(in crate::write) left: Link,
    pub(in crate::write) left_min: Index,
    pub(in crate::write) keep: usize,
    /// The rightmost replaced node, apart from `after`. Its slots from `resume` on stay.
    pub(in crate::write) right: Link,
    pub(in crate::write) right_max: Index,
    pub(in crate::write) resume: usize,
    /// A sibling added on the right, or null.
    pub(in crate::write) after: Link,
    /// The index range of all replaced nodes.
    pub(in crate::write) lo: Index,
    pub(in crate::write) hi: Index,
    /// The numbers of slots of the new nodes.
    pub(in crate::write) sizes: [u8; MAX_PER_LEVEL],
    pub(in crate::write) count: usize,
}

/// The place of the one pointer store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::write) enum Publish {
    /// The tree becomes empty.
    Empty,
    /// The new node becomes the root.
    Root,
    /// The slot at this level of the left path takes the new node.
    Slot(usize),
}

/// A planned write.
pub(in crate::write) struct Plan {
    /// The range of the write, with the holes merged into it.
    pub(in crate::write) first: Index,
    pub(in crate::write) last: Index,
    /// The slots that are cut at either end, of which a rest stays.
    pub(in crate::write) left_rest: Option<Span>,
    pub(in crate::write) right_rest: Option<Span>,
    pub(in crate::write) publish: Publish,
    pub(in crate::write) root: Link,
    /// The path to the place of publication and above.
    pub(in crate::write) left: Descent,
    right: Descent,
    levels: [MaybeUninit<Level>; MAX_HEIGHT],
    used: usize,
    /// The nodes on the paths to both ends, before siblings were added.
    ways: [MaybeUninit<[Link; 2]>; MAX_HEIGHT],
    /// The contents of the new leaves. The words of the new slot and of a duplicate are added
    /// later.
    pub(in crate::write) slots: Slots,
    /// The index of the new slot in `slots`.
    pub(in crate::write) new_at: usize,
}

/// The number of new nodes of each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Need {
    pub(crate) leaves: usize,
    pub(crate) inners: usize,
}

/// Stands for the word of the new entry, which is not known yet.
const COMING: *mut () = ptr::without_provenance_mut(usize::MAX);

impl Plan {
    #[cfg_attr(not(unoptimized), inline(always))]
    pub(in crate::write) fn new() -> Self {
        // Field by field, for the reason given in `Descent::new`: `levels` need not be initialised.
        let mut plan = MaybeUninit::<Plan>::uninit();
        let place = plan.as_mut_ptr();
        // SAFETY: every field is written but `levels`, `ways` and the unused slots, which may be
        // uninitialised.
        unsafe {
            (&raw mut (*place).first).write(0);
            (&raw mut (*place).last).write(0);
            (&raw mut (*place).left_rest).write(None);
            (&raw mut (*place).right_rest).write(None);
            (&raw mut (*place).publish).write(Publish::Empty);
            (&raw mut (*place).root).write(Link::NULL);
            (&raw mut (*place).left).write(Descent::new());
            (&raw mut (*place).right).write(Descent::new());
            (&raw mut (*place).used).write(0);
            (&raw mut (*place).new_at).write(0);
            Slots::begin(&raw mut (*place).slots);
            plan.assume_init()
        }
    }

    /// The replaced levels, from the leaves up.
    pub(in crate::write) fn levels(&self) -> &[Level] {
        // SAFETY: `add` has written the first `used` of them.
        unsafe { initialised(&self.levels[..self.used]) }
    }

    /// The number of new nodes.
    pub(in crate::write) fn nodes(&self) -> Need {
        let levels = self.levels();
        let leaves = levels.first().map_or(0, |level| level.count);
        Need { leaves, inners: levels.iter().skip(1).map(|level| level.count).sum() }
    }

    /// The nodes of a level whose contents the write takes over or changes, each with an index that
    /// it holds.
    pub(in crate::write) fn changed(&self, height: usize) -> [(Link, Index); 6] {
        // SAFETY: `make` has written all levels of the tree.
        let [from, to] = unsafe { self.ways[height].assume_init() };
        let [before, left, right, after] = match self.levels().get(height) {
            Some(level) => [
                (level.before, level.lo),
                (level.left, level.left_min),
                (level.right, level.right_max),
                (level.after, level.hi),
            ],
            None => {
                let (left, right) = (self.left.step(height), self.right.step(height));
                let none = (Link::NULL, 0);
                [none, (left.link, left.min), (right.link, right.max), none]
            }
        };
        // The paths lead to the ends of the range with the merged holes, which may begin in other
        // leaves.
        [(from, self.first), (to, self.last), before, left, right, after]
    }

    /// The slots of which a rest stays, with their leaves.
    pub(in crate::write) fn kept(&self) -> [(Link, usize); 2] {
        let Some(level) = self.levels().first() else { return [(Link::NULL, 0); 2] };
        [
            if self.left_rest.is_some() { (level.left, level.keep) } else { (Link::NULL, 0) },
            if self.right_rest.is_some() {
                (level.right, level.resume - 1)
            } else {
                (Link::NULL, 0)
            },
        ]
    }

    /// Whether a node was on the path to an end of the range.
    pub(in crate::write) fn on_the_way(&self, link: Link) -> bool {
        // SAFETY: `make` has written all levels of the tree.
        unsafe { self.ways[link.level()].assume_init() }.contains(&link)
    }

    /// The nodes of a level whose contents the new nodes take over, wholly or in part, each with
    /// the slots that are not taken over. A node may be listed twice, the second time without
    /// slots.
    pub(in crate::write) fn taken_over(&self, height: usize) -> [(Link, Range<usize>); 4] {
        let none = (Link::NULL, 0..0);
        let Some(level) = self.levels().get(height) else {
            // Above the new root: these nodes are retired, with every child that was not taken
            // over.
            let (left, right) = (*self.left.step(height), *self.right.step(height));
            let second =
                if left.link == right.link { none.clone() } else { (right.link, 0..right.len()) };
            return [none.clone(), (left.link, 0..left.len()), second, none];
        };
        let (left, right) = if level.left == level.right {
            ((level.left, level.keep..level.resume), none)
        } else {
            // SAFETY: the promise of `walk`.
            let len = unsafe { level.left.len() };
            ((level.left, level.keep..len), (level.right, 0..level.resume))
        };
        [(level.before, 0..0), left, right, (level.after, 0..0)]
    }

    /// The entry of which both ends stay, so that a second one is needed.
    pub(in crate::write) fn split(&self) -> Option<Raw> {
        match (self.left_rest, self.right_rest) {
            (Some(left), Some(right)) if left.min == right.min => NonNull::new(left.word),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
