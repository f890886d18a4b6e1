//! A balanced tree of VMAs that knows the largest gap of each subtree, as Linux had until 6.0.
//!
//! It is a treap: a search tree by address, and a heap by random priorities. So its depth is
//! logarithmic, and an insertion or removal changes few nodes. Linux's red-black trees do as much
//! work.

use super::memory::VmaType;
use alloc::boxed::Box;
use oorandom::Rand64;

/// A VMA.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Area {
    pub(super) start: usize,
    pub(super) end: usize,
    pub(super) of: VmaType,
    /// The page of the file at `start`.
    pub(super) index: usize,
}

impl Area {
    /// The part of it in a range; `None` if they do not overlap.
    pub(super) fn part(&self, start: usize, end: usize) -> Option<Area> {
        let (from, to) = (self.start.max(start), self.end.min(end));
        let index = self.index + (from - self.start) / super::memory::PAGE;
        (from < to).then_some(Area { start: from, end: to, index, ..*self })
    }
}

struct Node {
    area: Area,
    priority: u64,
    /// The free bytes before the area.
    gap: usize,
    /// The largest gap of the subtree.
    largest: usize,
    left: Tree,
    right: Tree,
}

type Tree = Option<Box<Node>>;

fn largest(tree: &Tree) -> usize {
    tree.as_ref().map_or(0, |node| node.largest)
}

impl Node {
    fn update(&mut self) {
        self.largest = self.gap.max(largest(&self.left)).max(largest(&self.right));
    }
}

pub(super) struct Areas {
    root: Tree,
    random: Rand64,
}

impl Areas {
    pub(super) fn new() -> Self {
        Areas { root: None, random: Rand64::new(1) }
    }

    /// The area that holds `at`.
    pub(super) fn find(&self, at: usize) -> Option<&Area> {
        self.first_after(at).filter(|area| area.start <= at)
    }

    /// The first area that ends after `at`.
    pub(super) fn first_after(&self, at: usize) -> Option<&Area> {
        let (mut tree, mut best) = (&self.root, None);
        while let Some(node) = tree {
            if node.area.end > at {
                (tree, best) = (&node.left, Some(&node.area));
            } else {
                tree = &node.right;
            }
        }
        best
    }

    /// The last area that starts before `at`.
    pub(super) fn last_before(&self, at: usize) -> Option<&Area> {
        let (mut tree, mut best) = (&self.root, None);
        while let Some(node) = tree {
            if node.area.start < at {
                (tree, best) = (&node.right, Some(&node.area));
            } else {
                tree = &node.left;
            }
        }
        best
    }

    /// The end of the area before `at`, or 0.
    fn end_before(&self, at: usize) -> usize {
        self.last_before(at).map_or(0, |area| area.end)
    }

    /// Inserts an area into a hole.
    pub(super) fn insert(&mut self, area: Area) {
        let gap = area.start - self.end_before(area.start);
        let priority = self.random.rand_u64();
        insert(
            &mut self.root,
            Box::new(Node { area, priority, gap, largest: gap, left: None, right: None }),
        );
        self.update_gap_after(area.end);
    }

    /// Removes the area that starts here.
    pub(super) fn remove(&mut self, start: usize) {
        let Some(area) = self.find(start).copied() else { return };
        remove(&mut self.root, start);
        self.update_gap_after(area.end);
    }

    /// Moves the end of the area that holds `at`.
    pub(super) fn set_end(&mut self, at: usize, end: usize) {
        let mut tree = &mut self.root;
        let mut old = end;
        while let Some(node) = tree {
            if node.area.start > at {
                tree = &mut node.left;
            } else if node.area.end <= at {
                tree = &mut node.right;
            } else {
                old = core::mem::replace(&mut node.area.end, end);
                break;
            }
        }
        self.update_gap_after(old.max(end));
    }

    /// Updates the gap before the first area that starts at or after `at`.
    fn update_gap_after(&mut self, at: usize) {
        let Some(next) = self.first_after(at).map(|area| area.start) else { return };
        let gap = next - self.end_before(next);
        set_gap(&mut self.root, next, gap);
    }

    /// The start of the highest free run of `len` bytes below `high`.
    pub(super) fn highest_gap(&self, len: usize, high: usize) -> Option<usize> {
        let last = self.end_before(high);
        if last <= high && high - last >= len {
            return Some(high - len);
        }
        highest(&self.root, len, high)
    }

    /// Calls `visit` with each area, in order.
    pub(super) fn each<E>(&self, mut visit: impl FnMut(&Area) -> Result<(), E>) -> Result<(), E> {
        let mut at = 0;
        while let Some(area) = self.first_after(at) {
            visit(area)?;
            at = area.end;
        }
        Ok(())
    }
}

/// The highest fitting gap before an area of the tree.
fn highest(tree: &Tree, len: usize, high: usize) -> Option<usize> {
    let node = tree.as_ref().filter(|node| node.largest >= len)?;
    if node.area.end < high
        && let Some(found) = highest(&node.right, len, high)
    {
        return Some(found);
    }
    let end = node.area.start.min(high);
    if end.checked_sub(node.area.start - node.gap).is_some_and(|free| free >= len) {
        return Some(end - len);
    }
    highest(&node.left, len, high)
}

fn insert(tree: &mut Tree, mut new: Box<Node>) {
    match tree {
        Some(node) if node.priority >= new.priority => {
            let less = new.area.start < node.area.start;
            insert(if less { &mut node.left } else { &mut node.right }, new);
            node.update();
        }
        _ => {
            (new.left, new.right) = split(tree.take(), new.area.start);
            new.update();
            *tree = Some(new);
        }
    }
}

/// Splits a tree into what starts before `at` and the rest.
fn split(tree: Tree, at: usize) -> (Tree, Tree) {
    let Some(mut node) = tree else { return (None, None) };
    if node.area.start < at {
        let (less, more) = split(node.right.take(), at);
        node.right = less;
        node.update();
        (Some(node), more)
    } else {
        let (less, more) = split(node.left.take(), at);
        node.left = more;
        node.update();
        (less, Some(node))
    }
}

fn remove(tree: &mut Tree, start: usize) {
    let Some(node) = tree else { return };
    if node.area.start == start {
        let (left, right) = (node.left.take(), node.right.take());
        *tree = join(left, right);
        return;
    }
    remove(if start < node.area.start { &mut node.left } else { &mut node.right }, start);
    node.update();
}

/// Joins two trees, of which the second lies behind the first.
fn join(left: Tree, right: Tree) -> Tree {
    match (left, right) {
        (None, tree) | (tree, None) => tree,
        (Some(mut left), Some(right)) if left.priority >= right.priority => {
            left.right = join(left.right.take(), Some(right));
            left.update();
            Some(left)
        }
        (left, Some(mut right)) => {
            right.left = join(left, right.left.take());
            right.update();
            Some(right)
        }
    }
}

fn set_gap(tree: &mut Tree, start: usize, gap: usize) {
    let Some(node) = tree else { return };
    if node.area.start == start {
        node.gap = gap;
    } else {
        set_gap(if start < node.area.start { &mut node.left } else { &mut node.right }, start, gap);
    }
    node.update();
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Random changes on the tree and on a plain list.
    #[test]
    fn as_a_list() {
        let (mut areas, mut list) = (Areas::new(), Vec::<Area>::new());
        let mut random = Rand64::new(7);
        for _ in 0..3000 {
            let start = random.rand_range(1..200) as usize;
            let end = start + random.rand_range(1..9) as usize;
            let area = Area { start, end, of: VmaType::Anonymous, index: 0 };
            let at = list.partition_point(|old| old.start < start);
            let next = list.get(at).map_or(usize::MAX, |next| next.start);
            let before = at.checked_sub(1).map_or(0, |at| list[at].end);
            if before <= start && end <= next {
                areas.insert(area);
                list.insert(at, area);
            } else if let Some(found) = list.iter().position(|old| old.start >= start) {
                if random.rand_range(0..2) == 0 {
                    areas.remove(list.remove(found).start);
                } else {
                    let room = list.get(found + 1).map_or(usize::MAX, |next| next.start);
                    let end = room.min(list[found].start + 3);
                    list[found].end = end;
                    areas.set_end(list[found].start, end);
                }
            }
            let (mut at, high) = (0, random.rand_range(1..260) as usize);
            areas
                .each(|area| {
                    assert_eq!(*area, list[at]);
                    at += 1;
                    Ok::<_, ()>(())
                })
                .unwrap();
            assert_eq!(at, list.len());
            let len = random.rand_range(1..12) as usize;
            let is_free = |start: usize| {
                list.iter().all(|area| area.end <= start || area.start >= start + len)
            };
            let expected = (0..=high.saturating_sub(len)).rev().find(|start| is_free(*start));
            assert_eq!(areas.highest_gap(len, high), expected.filter(|_| len <= high));
        }
    }
}
