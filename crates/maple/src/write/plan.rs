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
pub(super) mod publish;
mod run;

use crate::descent::{Descent, Pick, Span};
use crate::entry::Raw;
use crate::error::Error;
use crate::layout::{self, INNER_MIN, LEAF_LOW, MAX_HEIGHT, MAX_PER_LEVEL, NARROW};
use crate::node::{self, Link, Slots};
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
    pub(in crate::write) left_min: usize,
    pub(in crate::write) keep: usize,
    /// The rightmost replaced node, apart from `after`. Its slots from `resume` on stay.
    pub(in crate::write) right: Link,
    pub(in crate::write) right_max: usize,
    pub(in crate::write) resume: usize,
    /// A sibling added on the right, or null.
    pub(in crate::write) after: Link,
    /// The index range of all replaced nodes.
    pub(in crate::write) lo: usize,
    pub(in crate::write) hi: usize,
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
    pub(in crate::write) first: usize,
    pub(in crate::write) last: usize,
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
    #[inline(always)]
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
        unsafe { self.levels[..self.used].assume_init_ref() }
    }

    /// The number of new nodes.
    pub(in crate::write) fn nodes(&self) -> Need {
        let levels = self.levels();
        let leaves = levels.first().map_or(0, |level| level.count);
        Need { leaves, inners: levels.iter().skip(1).map(|level| level.count).sum() }
    }

    /// The nodes of a level whose contents the write takes over or changes, each with an index that
    /// it holds.
    pub(in crate::write) fn changed(&self, height: usize) -> [(Link, usize); 6] {
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

    fn add(&mut self, level: Level) -> Result<(), Error> {
        // More than `MAX_HEIGHT` levels do not fit into memory.
        if self.used == MAX_HEIGHT {
            return Err(Error::OutOfMemory);
        }
        self.levels[self.used].write(level);
        self.used += 1;
        Ok(())
    }

    /// Walks to the first index of the write, and returns the range there.
    ///
    /// # Safety
    /// `root` is the root of a tree, not null. The caller is the writer as long as the plan lives.
    pub(in crate::write) unsafe fn walk(&mut self, root: Link, first: usize) -> Span {
        (self.root, self.used) = (root, 0);
        // SAFETY: the slots are ours.
        unsafe { Slots::begin(&raw mut self.slots) };
        // SAFETY: no node changes while the plan lives, because the caller is the writer.
        unsafe { self.left.walk(root, Pick::Index(first)) };
        self.left.span()
    }

    /// Plans the write of an entry (or a `hole`) over `first..=last`. Returns false if it changes
    /// nothing. [`Plan::walk`] must have gone to the range that holds `first`.
    pub(in crate::write) fn make(
        &mut self,
        first: usize,
        last: usize,
        hole: bool,
    ) -> Result<bool, Error> {
        (self.first, self.last) = (first, last);
        let span = self.left.span();
        if hole && span.word.is_null() && span.max >= last {
            return Ok(false);
        }
        if last <= span.max {
            self.right.clone_from(&self.left);
        } else {
            // SAFETY: the promise of `walk`.
            unsafe { self.right.walk(self.root, Pick::Index(last)) };
        }
        if hole {
            self.take_in_holes();
        }
        for level in 0..self.left.height() {
            self.ways[level].write([self.left.step(level).link, self.right.step(level).link]);
        }
        let (from, to) = (self.left.span(), self.right.span());
        self.left_rest = (from.min < self.first).then_some(from);
        self.right_rest = (to.max > self.last).then_some(to);
        self.climb(hole)?;
        Ok(true)
    }

    /// Widens the range by the holes next to it.
    fn take_in_holes(&mut self) {
        let span = self.left.span();
        if span.word.is_null() {
            self.first = span.min;
        } else if span.min == self.first && self.left.prev_slot() {
            let span = self.left.span();
            if span.word.is_null() {
                self.first = span.min;
            } else {
                self.left.next_slot();
            }
        }
        let span = self.right.span();
        if span.word.is_null() {
            self.last = span.max;
        } else if span.max == self.last && self.right.next_slot() {
            let span = self.right.span();
            if span.word.is_null() {
                self.last = span.max;
            } else {
                self.right.prev_slot();
            }
        }
    }

    /// Goes up level by level until one pointer store is enough.
    fn climb(&mut self, hole: bool) -> Result<(), Error> {
        // The number of slots that the level below, or the write itself, puts in the middle.
        let mut middle = 1;
        for height in 0..self.left.height() {
            let level = self.level(height, middle, hole);
            let everything = level.lo == 0 && level.hi == usize::MAX;
            if height == 0 && hole && everything && self.slots.as_slice().len() == 1 {
                self.publish = Publish::Empty;
                self.add(Level { count: 0, ..level })?;
                return Ok(());
            }
            self.add(level)?;
            if level.count == 1 {
                if everything {
                    self.publish = Publish::Root;
                    return Ok(());
                }
                let (left, right) = (self.left.step(height + 1), self.right.step(height + 1));
                if left.link == right.link && left.slot == right.slot {
                    self.publish = Publish::Slot(height + 1);
                    return Ok(());
                }
            }
            middle = level.count;
        }
        // The root itself was split: add a new one above it.
        self.publish = Publish::Root;
        self.add(Level {
            before: Link::NULL,
            left: Link::NULL,
            left_min: 0,
            keep: 0,
            right: Link::NULL,
            right_max: usize::MAX,
            resume: 0,
            after: Link::NULL,
            lo: 0,
            hi: usize::MAX,
            sizes: [middle as u8, 0, 0, 0, 0, 0],
            count: 1,
        })
    }

    /// Plans one level; `middle` is the number of slots that come in the middle.
    fn level(&mut self, height: usize, middle: usize, hole: bool) -> Level {
        self.left.set_floor(height);
        self.right.set_floor(height);
        let (left, right) = (*self.left.step(height), *self.right.step(height));
        let mut level = Level {
            before: Link::NULL,
            left: left.link,
            left_min: left.min,
            keep: left.slot,
            right: right.link,
            right_max: right.max,
            resume: right.slot + 1,
            after: Link::NULL,
            lo: left.min,
            hi: right.max,
            sizes: [0; MAX_PER_LEVEL],
            count: 0,
        };
        let everything = level.lo == 0 && level.hi == usize::MAX;
        if height == 0 {
            if self.leaf_weight(&level, hole) < LEAF_LOW && !everything {
                self.take_sibling(0, &mut level);
            }
            self.gather(&level, hole);
            let (before, after) = (self.new_at, self.slots.as_slice().len() - self.new_at - 1);
            (level.sizes, level.count) = node::cut(self.slots.as_slice(), before, after);
        } else {
            let (mut before, mut after) = (left.slot, right.len() - right.slot - 1);
            if before + middle + after < INNER_MIN && !everything {
                let more = self.take_sibling(height, &mut level);
                *if level.before.is_null() { &mut after } else { &mut before } += more;
            }
            (level.sizes, level.count) = layout::cut(before + middle + after, before, after);
        }
        level
    }

    /// The weight of the new leaf without a sibling.
    fn leaf_weight(&self, level: &Level, hole: bool) -> usize {
        // SAFETY: the promise of `walk`.
        let (left, right) = unsafe { (level.left.as_leaf().body(), level.right.as_leaf().body()) };
        let ones = |mask: u32| mask.count_ones() as usize;
        let mut slots = level.keep + 1 + right.len() - level.resume;
        let mut entries = ones(left.entries() & ((1 << level.keep) - 1))
            + usize::from(!hole)
            + ones(right.entries() >> level.resume);
        for rest in [self.left_rest, self.right_rest].into_iter().flatten() {
            slots += 1;
            entries += usize::from(!rest.word.is_null());
        }
        NARROW.weigh(slots, entries)
    }

    /// Adds a sibling to the replaced nodes, and returns its number of slots.
    fn take_sibling(&mut self, height: usize, level: &mut Level) -> usize {
        if self.sibling_on_left(height) {
            self.left.prev_node();
            let sibling = self.left.step(height);
            (level.before, level.lo) = (sibling.link, sibling.min);
            sibling.len()
        } else {
            self.right.next_node();
            let sibling = self.right.step(height);
            (level.after, level.hi) = (sibling.link, sibling.max);
            sibling.len()
        }
    }

    /// Collects the contents of the new leaves.
    fn gather(&mut self, level: &Level, hole: bool) {
        let slots = &mut self.slots;
        // SAFETY: the promise of `walk`.
        unsafe {
            if !level.before.is_null() {
                let body = level.before.as_leaf().body();
                slots.copy(body, 0, body.len(), level.left_min - 1);
            }
            slots.copy(level.left.as_leaf().body(), 0, level.keep, level.right_max);
            if let Some(rest) = self.left_rest {
                slots.push(self.first - 1, rest.word);
            }
            self.new_at = slots.as_slice().len();
            slots.push(self.last, if hole { ptr::null_mut() } else { COMING });
            if let Some(rest) = self.right_rest {
                slots.push(rest.max, rest.word);
            }
            let body = level.right.as_leaf().body();
            slots.copy(body, level.resume, body.len(), level.right_max);
            if !level.after.is_null() {
                let body = level.after.as_leaf().body();
                slots.copy(body, 0, body.len(), level.hi);
            }
        }
    }

    /// Fills in the words that were not known: that of the new slot, and that of the second half of
    /// a split entry.
    pub(in crate::write) fn complete(&mut self, new: *mut (), copy: *mut ()) {
        let split = self.split().is_some();
        let at = self.new_at;
        let slots = self.slots.as_mut_slice();
        slots[at].word = new;
        if split {
            slots[at + 1].word = copy;
        }
    }

    /// Whether to add the sibling on the left. A sibling under the same parent is better, because
    /// it replaces fewer nodes. At least one side has a sibling.
    fn sibling_on_left(&self, height: usize) -> bool {
        let (left, right) = (self.left.step(height + 1), self.right.step(height + 1));
        if left.slot > 0 {
            true
        } else if right.slot + 1 < right.len() {
            false
        } else {
            self.left.step(height).min > 0
        }
    }
}

#[cfg(test)]
mod tests;
