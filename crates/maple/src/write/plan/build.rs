//! Phase three: filling the new nodes, which readers cannot reach yet.

use crate::Index;
use crate::alloc::NodeAlloc;
use crate::layout::MAX_PER_LEVEL;
use crate::node::{Inner, Leaf, Link, pack};
use crate::write::Reserve;
use crate::write::plan::{Level, Plan};
use core::ptr::NonNull;

/// A finished node, for its parent.
#[derive(Clone, Copy)]
pub(in crate::write) struct Item {
    pub(in crate::write) link: Link,
    pub(in crate::write) max: Index,
    pub(in crate::write) gap: Index,
}

const NONE: Item = Item { link: Link::NULL, max: Index::MAX, gap: 0 };

/// Builds the nodes of a complete plan, and returns the one to publish.
pub(in crate::write) fn build<A: NodeAlloc>(plan: &Plan, nodes: &mut Reserve<A>) -> Item {
    let mut items = [NONE; MAX_PER_LEVEL];
    let mut count = 0;
    for (height, level) in plan.levels().iter().enumerate() {
        let mut made = [NONE; MAX_PER_LEVEL];
        if height == 0 {
            leaves(plan, level, nodes, &mut made);
        } else {
            let mut inners = Inners { nodes, level, height, made: &mut made, n: 0, open: None };
            inners.whole(level.before, level.left_min.wrapping_sub(1));
            inners.copy(level.left, 0, level.keep, 0);
            for item in &items[..count] {
                inners.push(item.max, item.link, item.gap);
            }
            if !level.right.is_null() {
                // SAFETY: the plan's nodes do not change.
                let len = unsafe { level.right.len() };
                inners.copy(level.right, level.resume, len, level.right_max);
            }
            inners.whole(level.after, level.hi);
            debug_assert_eq!(inners.n, level.count);
        }
        (items, count) = (made, level.count);
    }
    debug_assert!(count <= 1);
    items[0]
}

/// Makes the new leaves.
fn leaves<A: NodeAlloc>(
    plan: &Plan,
    level: &Level,
    nodes: &mut Reserve<A>,
    made: &mut [Item; MAX_PER_LEVEL],
) {
    let (mut rest, mut min) = (plan.slots.as_slice(), level.lo);
    for (item, &size) in made.iter_mut().zip(&level.sizes[..level.count]) {
        let (slots, more) = rest.split_at(usize::from(size));
        let max = slots[slots.len() - 1].end;
        let body = pack(slots);
        let gap = body.gap(body.holes(), (min, max), Index::MAX);
        *item = Item { link: Link::leaf(nodes.take_leaf(Leaf::new(body))), max, gap };
        (rest, min) = (more, max.wrapping_add(1));
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
    fn push(&mut self, end: Index, child: Link, gap: Index) {
        let node = *self.open.get_or_insert_with(|| self.nodes.take_inner());
        // SAFETY: the node is new and ours alone.
        let inner = unsafe { node.as_ref() };
        // SAFETY: as above.
        let len = unsafe {
            inner.push(end, child, gap);
            inner.seps().len
        };
        if len == self.level.sizes[self.n] {
            let gap = inner.max_gap(Index::MAX);
            self.made[self.n] = Item { link: Link::inner(node, self.height), max: end, gap };
            self.n += 1;
            self.open = None;
        }
    }

    /// Copies the children `from..to` of a node that ends at `max`. `max` matters only if the last
    /// child of the node is among them.
    fn copy(&mut self, source: Link, from: usize, to: usize, max: Index) {
        if source.is_null() {
            return;
        }
        // SAFETY: the plan's nodes do not change.
        let (inner, seps) = unsafe { (source.as_inner(), source.as_inner().seps()) };
        for slot in from..to {
            self.push(seps.end(slot, max), inner.child(slot), inner.gap(slot));
        }
    }

    /// Copies all children of a sibling that ends at `max`, if there is a sibling.
    fn whole(&mut self, source: Link, max: Index) {
        if !source.is_null() {
            // SAFETY: the plan's nodes do not change.
            let len = unsafe { source.len() };
            self.copy(source, 0, len, max);
        }
    }
}
