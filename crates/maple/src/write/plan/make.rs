//! How a plan is made: level by level, from the leaves up.

use super::{COMING, Level, Plan, Publish};
use crate::Index;
use crate::descent::{Pick, Span};
use crate::error::Error;
use crate::layout::{self, INNER_MIN, LEAF_LOW, MAX_HEIGHT, MAX_PER_LEVEL, NARROW};
use crate::node::{self, Link, Slots};
use core::ptr;

impl Plan {
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
    pub(in crate::write) unsafe fn walk(&mut self, root: Link, first: Index) -> Span {
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
        first: Index,
        last: Index,
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
            let everything = level.lo == 0 && level.hi == Index::MAX;
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
            right_max: Index::MAX,
            resume: 0,
            after: Link::NULL,
            lo: 0,
            hi: Index::MAX,
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
        let everything = level.lo == 0 && level.hi == Index::MAX;
        if height == 0 {
            if self.leaf_weight(&level, hole) < LEAF_LOW && !everything {
                self.take_sibling(0, &mut level);
            }
            self.gather(&level, hole);
            let (before, after) = (self.new_at, self.slots.as_slice().len() - self.new_at - 1);
            let joins = !(level.before.is_null() && level.after.is_null());
            (level.sizes, level.count) = node::cut(self.slots.as_slice(), before, after, joins);
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
