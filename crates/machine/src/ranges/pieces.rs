//! A set of disjoint ranges, free and allocated, in an array of nodes: a treap, which also finds
//! the lowest free range of a length.
//!
//! # Why a treap
//! It needs two links a node, no parent and no colour, and each change of it is a split or a merge.
//! The priority of a node is a hash of its place in the array. So it does not depend on the
//! addresses, and no caller can choose addresses that make the tree deep. A tree of 65,535 nodes
//! is about 40 levels deep, and the recursion with it.
//!
//! # Invariants
//! - The ranges are not empty, and do not overlap.
//! - The lengths add up to less than 2^64, so no sum of them overflows ([`super::Ranges::add`]).
//! - Two free ranges are not neighbours: [`give`](Pieces::give) and [`put`](Pieces::put) join them.
//! - `most` of a node is the length of the longest free range in its subtree.
//!
//! # Cost
//! Each call but [`lowest`](Pieces::lowest) visits the nodes of a few paths from the root: about
//! twice the logarithm of the number of ranges each, one cache line a node.

/// One more than an index of the array; 0 is no node.
type Link = u16;

#[derive(Clone, Copy)]
struct Node {
    start: u64,
    len: u64,
    most: u64,
    /// The next unused node, in the list of these.
    left: Link,
    right: Link,
    free: bool,
}

impl Node {
    const UNUSED: Node = Node { start: 0, len: 0, most: 0, left: 0, right: 0, free: false };

    /// The point after the last. May be 2^64, as 0, which no start of a neighbour equals.
    fn end(&self) -> u64 {
        self.start.wrapping_add(self.len)
    }

    fn last(&self) -> u64 {
        self.start + (self.len - 1)
    }
}

/// There is no unused node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NoNode;

/// See the module.
pub(super) struct Pieces<const NODES: usize> {
    root: Link,
    /// The list of nodes that have been used.
    unused: Link,
    /// The number of nodes that have been in use at some time: those from here on never were.
    fresh: usize,
    /// The number of nodes in use.
    len: usize,
    /// The sum of the free ranges.
    free: u64,
    /// The sum of all ranges.
    all: u64,
    nodes: [Node; NODES],
}

impl<const NODES: usize> Pieces<NODES> {
    pub(super) const fn new() -> Self {
        const { assert!(NODES < 1 << 16, "a link has 16 bits") };
        Pieces {
            root: 0,
            unused: 0,
            fresh: 0,
            len: 0,
            free: 0,
            all: 0,
            nodes: [Node::UNUSED; NODES],
        }
    }

    /// The sum of the lengths of the free ranges.
    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// The sum of the lengths of all ranges.
    pub(super) fn all(&self) -> u64 {
        self.all
    }

    /// Whether a range of the set overlaps the points from `start` to `last`.
    pub(super) fn overlaps(&self, start: u64, last: u64) -> bool {
        self.before_or_at(last).is_some_and(|node| node.last() >= start)
    }

    /// Adds a free range, which overlaps none of the set.
    pub(super) fn put(&mut self, start: u64, len: u64) -> Result<(), NoNode> {
        if !self.join(start, len) {
            self.insert(start, len, true)?;
        }
        self.free += len;
        self.all += len;
        Ok(())
    }

    /// The lowest free range: its start and its length.
    pub(super) fn lowest_free(&self) -> Option<(u64, u64)> {
        let node = self.before_or_at(self.lowest(1, 1)?)?;
        Some((node.start, node.len))
    }

    /// The start of the lowest `len` free points from a multiple of `align` on.
    pub(super) fn lowest(&self, len: u64, align: u64) -> Option<u64> {
        // Every range of this length has an aligned place. So the search has no dead end.
        let (sure, at) = (len.saturating_add(align - 1), |node: &Node| aligned(node, len, align));
        if align == 1 || self.most(self.root) < sure {
            return self.search(self.root, len, &at);
        }
        self.search(self.root, sure, &at)
    }

    /// Whether the points are free, all in one range.
    pub(super) fn is_free(&self, start: u64, len: u64) -> bool {
        self.before_or_at(start).is_some_and(|node| {
            node.free && len <= node.len && start - node.start <= node.len - len
        })
    }

    /// Allocates these points, which are free in one range.
    pub(super) fn take(&mut self, start: u64, len: u64) -> Result<(), NoNode> {
        self.carve(start, len, true)
    }

    /// Takes these points, which are free in one range, out of the set.
    pub(super) fn remove(&mut self, start: u64, len: u64) -> Result<(), NoNode> {
        self.carve(start, len, false)
    }

    /// Frees the range, if it was allocated as it is. Returns the free range that it is a part of
    /// now. Needs no node.
    pub(super) fn give(&mut self, start: u64, len: u64) -> Option<(u64, u64)> {
        let node = self.before_or_at(start)?;
        if node.free || (node.start, node.len) != (start, len) {
            return None;
        }
        self.erase(start);
        if !self.join(start, len) {
            // The node that was erased is unused.
            let _always = self.insert(start, len, true);
        }
        self.free += len;
        self.before_or_at(start).map(|node| (node.start, node.len))
    }

    /// The number of nodes that are not in use.
    fn unused(&self) -> usize {
        NODES - self.len
    }

    /// Cuts points out of the free range in which they lie; with `keep`, as an allocated range.
    fn carve(&mut self, start: u64, len: u64, keep: bool) -> Result<(), NoNode> {
        let Some(&Node { start: first, len: all, .. }) = self.before_or_at(start) else {
            return Ok(());
        };
        let (below, above) = (start - first, all - (start - first) - len);
        let pieces = usize::from(below != 0) + usize::from(above != 0) + usize::from(keep);
        if pieces > self.unused() + 1 {
            return Err(NoNode);
        }
        self.erase(first);
        for (start, len, free) in [
            (first, below, true),
            (start, if keep { len } else { 0 }, false),
            (start.wrapping_add(len), above, true),
        ] {
            if len != 0 {
                self.insert(start, len, free)?;
            }
        }
        self.free -= len;
        if !keep {
            self.all -= len;
        }
        Ok(())
    }

    /// Makes the points a part of the free ranges next to them, if there are any.
    fn join(&mut self, start: u64, len: u64) -> bool {
        let below = start.checked_sub(1).and_then(|last| self.before_or_at(last));
        let below = below.filter(|node| node.free && node.end() == start).copied();
        let end = start.wrapping_add(len);
        let above = if end == 0 { None } else { self.before_or_at(end) };
        let above = above.filter(|node| node.free && node.start == end).copied();
        let more = above.map_or(0, |node| node.len);
        match (below, above) {
            (None, None) => return false,
            (Some(below), _) => {
                above.inspect(|node| self.erase(node.start));
                self.change(self.root, below.start, &|node| node.len += len + more);
            }
            // Its order among the others stays.
            (None, Some(above)) => self.change(self.root, above.start, &|node| {
                node.start = start;
                node.len += len;
            }),
        }
        true
    }

    fn index(&self, link: Link) -> Option<usize> {
        usize::from(link).checked_sub(1)
    }

    fn node(&self, link: Link) -> Option<&Node> {
        self.nodes.get(self.index(link)?)
    }

    /// The last range that starts at or below this point.
    fn before_or_at(&self, point: u64) -> Option<&Node> {
        let (mut at, mut found) = (self.root, None);
        while let Some(node) = self.node(at) {
            if node.start <= point {
                (found, at) = (Some(node), node.right);
            } else {
                at = node.left;
            }
        }
        found
    }

    fn most(&self, link: Link) -> u64 {
        self.node(link).map_or(0, |node| node.most)
    }

    /// The first place that `at` finds in a free range of at least `len`, in order of addresses.
    fn search(&self, link: Link, len: u64, at: &impl Fn(&Node) -> Option<u64>) -> Option<u64> {
        let node = self.node(link).filter(|node| node.most >= len)?;
        self.search(node.left, len, at)
            .or_else(|| if node.free && node.len >= len { at(node) } else { None })
            .or_else(|| self.search(node.right, len, at))
    }

    fn insert(&mut self, start: u64, len: u64, free: bool) -> Result<(), NoNode> {
        let link = match self.index(self.unused) {
            Some(at) => {
                let link = self.unused;
                self.unused = self.nodes[at].left;
                link
            }
            None if self.fresh < NODES => {
                self.fresh += 1;
                self.fresh as Link
            }
            None => return Err(NoNode),
        };
        self.len += 1;
        self.nodes[usize::from(link) - 1] = Node { start, len, free, ..Node::UNUSED };
        self.update(link);
        let (below, above) = self.split(self.root, start);
        let below = self.merge(below, link);
        self.root = self.merge(below, above);
        Ok(())
    }

    /// Takes the range that starts there out of the set.
    fn erase(&mut self, start: u64) {
        let (below, rest) = self.split(self.root, start);
        // The first of the rest has no left neighbour. It is a single node after this.
        let (one, above) = match start.checked_add(1) {
            Some(next) => self.split(rest, next),
            None => (rest, 0),
        };
        self.root = self.merge(below, above);
        if let Some(at) = self.index(one) {
            self.nodes[at] = Node { left: self.unused, ..Node::UNUSED };
            self.unused = one;
            self.len -= 1;
        }
    }

    /// Changes the range that starts there.
    fn change(&mut self, link: Link, start: u64, change: &impl Fn(&mut Node)) {
        let Some(at) = self.index(link) else { return };
        let node = &mut self.nodes[at];
        match start.cmp(&node.start) {
            core::cmp::Ordering::Equal => change(node),
            core::cmp::Ordering::Less => {
                let left = node.left;
                self.change(left, start, change);
            }
            core::cmp::Ordering::Greater => {
                let right = node.right;
                self.change(right, start, change);
            }
        }
        self.update(link);
    }

    /// Splits a tree into the ranges that start below this point, and the others.
    fn split(&mut self, link: Link, start: u64) -> (Link, Link) {
        let Some(at) = self.index(link) else { return (0, 0) };
        let halves = if self.nodes[at].start < start {
            let (below, above) = self.split(self.nodes[at].right, start);
            self.nodes[at].right = below;
            (link, above)
        } else {
            let (below, above) = self.split(self.nodes[at].left, start);
            self.nodes[at].left = above;
            (below, link)
        };
        self.update(link);
        halves
    }

    /// Joins two trees, of which the second lies above the first.
    fn merge(&mut self, below: Link, above: Link) -> Link {
        let (Some(low), Some(high)) = (self.index(below), self.index(above)) else {
            return below | above;
        };
        let root = if priority(below) > priority(above) {
            self.nodes[low].right = self.merge(self.nodes[low].right, above);
            below
        } else {
            self.nodes[high].left = self.merge(below, self.nodes[high].left);
            above
        };
        self.update(root);
        root
    }

    /// Makes `most` of a node right, when those of its children are.
    fn update(&mut self, link: Link) {
        let Some(at) = self.index(link) else { return };
        let node = self.nodes[at];
        let own = if node.free { node.len } else { 0 };
        self.nodes[at].most = own.max(self.most(node.left)).max(self.most(node.right));
    }

    /// Checks the invariants, and returns all ranges in order: start, length, whether it is free.
    #[cfg(test)]
    pub(super) fn checked(&self) -> std::vec::Vec<(u64, u64, bool)> {
        fn walk<const N: usize>(
            pieces: &Pieces<N>,
            link: Link,
            depth: u32,
            all: &mut std::vec::Vec<(u64, u64, bool)>,
        ) -> u64 {
            let Some(node) = pieces.node(link) else { return 0 };
            assert!(depth < 60, "the tree is too deep");
            let left = walk(pieces, node.left, depth + 1, all);
            all.push((node.start, node.len, node.free));
            let right = walk(pieces, node.right, depth + 1, all);
            let own = if node.free { node.len } else { 0 };
            assert_eq!(node.most, own.max(left).max(right));
            node.most
        }
        let mut all = std::vec::Vec::new();
        walk(self, self.root, 0, &mut all);
        for pair in all.windows(2) {
            let ((start, len, free), (next, _, also)) = (pair[0], pair[1]);
            assert!(len - 1 < next - start, "{pair:?} overlap");
            assert!(!(free && also && start + len == next), "{pair:?} are neighbours");
        }
        assert_eq!(all.len(), self.len);
        assert_eq!(all.iter().map(|(_, len, _)| len).sum::<u64>(), self.all);
        assert_eq!(
            all.iter().filter(|(.., free)| *free).map(|(_, len, _)| len).sum::<u64>(),
            self.free
        );
        all
    }
}

/// The lowest aligned place of `len` points in a free range.
fn aligned(node: &Node, len: u64, align: u64) -> Option<u64> {
    let at = node.start.checked_next_multiple_of(align)?;
    let below = at - node.start;
    (below < node.len && len <= node.len - below).then_some(at)
}

/// A hash of the place, whose bits all depend on all of its bits.
fn priority(link: Link) -> u32 {
    let mixed = u32::from(link).wrapping_mul(0x9e37_79b1);
    let mixed = (mixed ^ mixed >> 15).wrapping_mul(0x85eb_ca6b);
    (mixed ^ mixed >> 13).wrapping_mul(0xc2b2_ae35)
}
