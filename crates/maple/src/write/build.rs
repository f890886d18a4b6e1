//! Phase three: the new nodes, filled aside.

use super::Reserve;
use super::plan::{Level, Plan};
use crate::alloc::NodeAlloc;
use crate::layout::MAX_PER_LEVEL;
use crate::node::{Body, Inner, Leaf, Link};
use core::array;
use core::ptr::NonNull;

/// A finished node: for its parent to take in.
#[derive(Clone, Copy)]
pub(super) struct Item {
    pub(super) link: Link,
    pub(super) max: usize,
    pub(super) gap: usize,
}

const NONE: Item = Item { link: Link::NULL, max: usize::MAX, gap: 0 };

/// Builds what the plan says and returns the one node to publish.
pub(super) fn build<A: NodeAlloc>(
    plan: &Plan,
    new: *mut (),
    copy: *mut (),
    nodes: &mut Reserve<A>,
) -> Item {
    let mut items = [NONE; MAX_PER_LEVEL];
    let mut count = 0;
    for (height, level) in plan.levels().iter().enumerate() {
        let mut made = [NONE; MAX_PER_LEVEL];
        let n = level.count;
        if height == 0 {
            let fresh: [_; MAX_PER_LEVEL] =
                array::from_fn(|i| (i < n).then(|| nodes.take(Leaf::new(Body::EMPTY))));
            // SAFETY: the leaves are new and only ours.
            let bodies = fresh.map(|leaf| leaf.map(|leaf| unsafe { leaf.as_ref().body_mut() }));
            let mut min = level.lo;
            let ends = leaves(plan, level, new, copy, bodies);
            for (item, (leaf, max)) in made.iter_mut().zip(fresh.iter().zip(ends)) {
                let Some(leaf) = *leaf else { break };
                // SAFETY: as above; the references for filling them are gone.
                let gap = unsafe { leaf.as_ref().body() }.gap(min, max);
                *item = Item { link: Link::leaf(leaf), max, gap };
                min = max.wrapping_add(1);
            }
        } else {
            let mut inners = Inners { nodes, level, height, made: &mut made, n: 0, open: None };
            inners.whole(level.before, level.left_min.wrapping_sub(1));
            inners.copy(level.left, 0, level.keep, 0);
            for item in &items[..count] {
                inners.push(item.max, item.link, item.gap);
            }
            if !level.right.is_null() {
                // SAFETY: the plan's nodes stay as they are.
                let len = unsafe { level.right.len() };
                inners.copy(level.right, level.resume, len, level.right_max);
            }
            inners.whole(level.after, level.hi);
            debug_assert_eq!(inners.n, n);
        }
        (items, count) = (made, n);
    }
    debug_assert!(count <= 1);
    items[0]
}

/// Fills the new leaves, which are given empty, and returns where each ends.
pub(super) fn leaves(
    plan: &Plan,
    level: &Level,
    new: *mut (),
    copy: *mut (),
    bodies: [Option<&mut Body>; MAX_PER_LEVEL],
) -> [usize; MAX_PER_LEVEL] {
    let mut out = Leaves { bodies, sizes: level.sizes, at: 0, ends: [usize::MAX; MAX_PER_LEVEL] };
    // SAFETY: the plan's nodes stay as they are.
    unsafe {
        if !level.before.is_null() {
            let body = level.before.as_leaf().body();
            out.copy(body, 0, body.len, level.left_min - 1);
        }
        out.copy(level.left.as_leaf().body(), 0, level.keep, 0);
        if let Some(rest) = plan.left_rest {
            out.push(plan.first - 1, rest.word);
        }
        if level.count > 0 {
            out.push(plan.last, new);
        }
        if let Some(rest) = plan.right_rest {
            out.push(rest.max, if plan.split().is_some() { copy } else { rest.word });
        }
        let body = level.right.as_leaf().body();
        out.copy(body, level.resume, body.len, level.right_max);
        if !level.after.is_null() {
            let body = level.after.as_leaf().body();
            out.copy(body, 0, body.len, level.hi);
        }
    }
    out.ends
}

/// Fills leaves one after the other.
struct Leaves<'b> {
    bodies: [Option<&'b mut Body>; MAX_PER_LEVEL],
    /// How many slots each is to have.
    sizes: [usize; MAX_PER_LEVEL],
    at: usize,
    ends: [usize; MAX_PER_LEVEL],
}

impl Leaves<'_> {
    /// The leaf being filled, and how many slots it still takes.
    fn open(&mut self) -> (&mut Body, usize) {
        let full = |body: &Body, size| body.len == size;
        while self.bodies[self.at].as_ref().is_some_and(|body| full(body, self.sizes[self.at])) {
            self.at += 1;
        }
        match &mut self.bodies[self.at] {
            Some(body) => {
                let room = self.sizes[self.at] - body.len;
                (body, room)
            }
            None => unreachable!("more slots than planned"),
        }
    }

    fn push(&mut self, end: usize, word: *mut ()) {
        self.open().0.push(end, word);
        self.ends[self.at] = end;
    }

    /// Slots `from..to` of a leaf that ends at `max` (needed only if its last slot is among them).
    fn copy(&mut self, source: &Body, mut from: usize, to: usize, max: usize) {
        let stored = to.min(source.len - 1);
        while from < stored {
            let (body, room) = self.open();
            let n = room.min(stored - from);
            body.copy(source, from, from + n);
            from += n;
            self.ends[self.at] = source.bounds[from - 1];
        }
        if from < to {
            self.push(max, source.slots[from]);
        }
    }
}

/// Fills inner nodes one after the other.
struct Inners<'b, A: NodeAlloc> {
    nodes: &'b mut Reserve<A>,
    level: &'b Level,
    height: usize,
    made: &'b mut [Item; MAX_PER_LEVEL],
    n: usize,
    open: Option<NonNull<Inner>>,
}

impl<A: NodeAlloc> Inners<'_, A> {
    fn push(&mut self, end: usize, child: Link, gap: usize) {
        let node = *self.open.get_or_insert_with(|| self.nodes.take(Inner::new()));
        // SAFETY: the node is new and only ours.
        let inner = unsafe { node.as_ref() };
        // SAFETY: as above.
        let len = unsafe {
            inner.push(end, child, gap);
            inner.seps().len
        };
        if len == self.level.sizes[self.n] {
            // SAFETY: as above.
            let gap = unsafe { inner.max_gap() };
            self.made[self.n] = Item { link: Link::inner(node, self.height), max: end, gap };
            self.n += 1;
            self.open = None;
        }
    }

    /// Children `from..to` of a node that ends at `max` (needed only if its last child is among them).
    fn copy(&mut self, source: Link, from: usize, to: usize, max: usize) {
        if source.is_null() {
            return;
        }
        // SAFETY: the plan's nodes stay as they are.
        let (inner, seps) = unsafe { (source.as_inner(), source.as_inner().seps()) };
        for slot in from..to {
            self.push(seps.end(slot, max), inner.child(slot), inner.gap(slot));
        }
    }

    /// All children of a sibling that ends at `max`; nothing if there is none.
    fn whole(&mut self, source: Link, max: usize) {
        if !source.is_null() {
            // SAFETY: the plan's nodes stay as they are.
            let len = unsafe { source.len() };
            self.copy(source, 0, len, max);
        }
    }
}
