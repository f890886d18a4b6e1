//! A set of disjoint ranges, free and allocated, in an array of nodes: an AVL tree, which also
//! finds the lowest free range of a length.
//!
//! # Why an AVL tree
//! It needs two links and a height a node, and no parent. A tree of 65,535 nodes has at most 22
//! levels, whatever ranges a caller chooses, and the recursion is as deep. In a treap whose
//! priorities depend on the places of nodes, a caller could choose ranges that make a list of it.
//!
//! # Invariants
//! - The ranges are not empty, and do not overlap.
//! - Two free ranges are not neighbours: [`give`](Pieces::give) and [`put`](Pieces::put) join them.
//! - `most` of a node is the length of the longest free range in its subtree.
//! - The heights of two siblings differ by at most 1.
//!
//! # Cost
//! Each call visits the nodes of a few paths from the root: at most 1.44 times the binary logarithm
//! of the number of ranges each, one cache line a node. Only [`lowest`](Pieces::lowest) may visit
//! more, if no free range is so long that it has an aligned place wherever it starts: then it
//! visits all free ranges of the length.

/// One more than an index of the array; 0 is no node.
type Link = u16;

/// The children of a node, below and above it, by their places in [`Node::children`].
const LOW: usize = 0;
const HIGH: usize = 1;

#[derive(Clone, Copy)]
struct Node {
    start: u64,
    len: u64,
    most: u64,
    /// Of an unused node: the next one, and nothing.
    children: [Link; 2],
    free: bool,
    /// The number of levels of its subtree.
    height: u8,
}

impl Node {
    const UNUSED: Node =
        Node { start: 0, len: 0, most: 0, children: [0, 0], free: false, height: 0 };

    /// The place of the child that leads to this point, which is not the start.
    fn side(&self, point: u64) -> usize {
        if point < self.start { LOW } else { HIGH }
    }

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
    /// The number of points that were ever added to all sets, in the common one. So no sum of
    /// lengths overflows.
    pub(super) added: u64,
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
            added: 0,
            nodes: [Node::UNUSED; NODES],
        }
    }

    /// The sum of the lengths of the free ranges.
    pub(super) fn free(&self) -> u64 {
        self.free
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
        let sure = len.saturating_add(align - 1);
        let least = if self.most(self.root) < sure { len } else { sure };
        self.search(self.root, least, &|node| aligned(node, len, align))
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
                (found, at) = (Some(node), node.children[HIGH]);
            } else {
                at = node.children[LOW];
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
        self.search(node.children[LOW], len, at)
            .or_else(|| if node.free && node.len >= len { at(node) } else { None })
            .or_else(|| self.search(node.children[HIGH], len, at))
    }

    fn insert(&mut self, start: u64, len: u64, free: bool) -> Result<(), NoNode> {
        let link = match self.index(self.unused) {
            Some(at) => {
                let link = self.unused;
                self.unused = self.nodes[at].children[LOW];
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
        self.root = self.hang(self.root, link);
        Ok(())
    }

    /// Takes the range that starts there out of the set.
    fn erase(&mut self, start: u64) {
        let (one, rest) = self.cut(self.root, start);
        self.root = rest;
        if let Some(at) = self.index(one) {
            self.nodes[at] = Node { children: [self.unused, 0], ..Node::UNUSED };
            self.unused = one;
            self.len -= 1;
        }
    }

    /// Changes the range that starts there.
    fn change(&mut self, link: Link, start: u64, change: &impl Fn(&mut Node)) {
        let Some(at) = self.index(link) else { return };
        let node = &mut self.nodes[at];
        if node.start == start {
            change(node);
        } else {
            let child = node.children[node.side(start)];
            self.change(child, start, change);
        }
        self.update(link);
    }

    /// Adds a node to a tree. Returns the tree.
    fn hang(&mut self, tree: Link, link: Link) -> Link {
        let (Some(at), Some(new)) = (self.index(tree), self.index(link)) else { return link };
        let side = self.nodes[at].side(self.nodes[new].start);
        self.nodes[at].children[side] = self.hang(self.nodes[at].children[side], link);
        self.balance(tree)
    }

    /// Takes the node whose range starts there out of a tree. Returns the node, and the tree.
    fn cut(&mut self, tree: Link, start: u64) -> (Link, Link) {
        let Some(at) = self.index(tree) else { return (0, 0) };
        let node = self.nodes[at];
        if node.start == start {
            // The next node takes its place.
            let [low, high] = node.children;
            let (next, high) = self.cut(high, self.first(high));
            let Some(at) = self.index(next) else { return (tree, low) };
            self.nodes[at].children = [low, high];
            return (tree, self.balance(next));
        }
        let side = node.side(start);
        let (one, rest) = self.cut(node.children[side], start);
        self.nodes[at].children[side] = rest;
        (one, self.balance(tree))
    }

    /// The start of the first range of a tree.
    fn first(&self, mut tree: Link) -> u64 {
        let mut start = 0;
        while let Some(node) = self.node(tree) {
            (start, tree) = (node.start, node.children[LOW]);
        }
        start
    }

    /// Balances a tree whose subtrees are balanced, with heights that differ by at most 2. Returns
    /// the tree.
    fn balance(&mut self, tree: Link) -> Link {
        let Some(at) = self.index(tree) else { return 0 };
        for side in [LOW, HIGH] {
            let (child, other) = (self.nodes[at].children[side], self.nodes[at].children[1 - side]);
            if self.height(child) <= self.height(other) + 1 {
                continue;
            }
            if let Some(node) = self.node(child)
                && self.height(node.children[1 - side]) > self.height(node.children[side])
            {
                self.nodes[at].children[side] = self.turn(child, 1 - side);
            }
            return self.turn(tree, side);
        }
        self.update(tree);
        tree
    }

    /// Makes the child on this side the root of a tree. Returns it.
    fn turn(&mut self, tree: Link, side: usize) -> Link {
        let Some(at) = self.index(tree) else { return 0 };
        let root = self.nodes[at].children[side];
        let Some(top) = self.index(root) else { return tree };
        self.nodes[at].children[side] = self.nodes[top].children[1 - side];
        self.nodes[top].children[1 - side] = tree;
        self.update(tree);
        self.update(root);
        root
    }

    fn height(&self, link: Link) -> u8 {
        self.node(link).map_or(0, |node| node.height)
    }

    /// Makes `most` and the height of a node right, when those of its children are.
    fn update(&mut self, link: Link) {
        let Some(at) = self.index(link) else { return };
        let node = self.nodes[at];
        let own = if node.free { node.len } else { 0 };
        let [low, high] = node.children;
        self.nodes[at].most = own.max(self.most(low)).max(self.most(high));
        self.nodes[at].height = 1 + self.height(low).max(self.height(high));
    }

    /// Checks the invariants, and returns all ranges in order: start, length, whether it is free.
    #[cfg(test)]
    pub(super) fn checked(&self) -> std::vec::Vec<(u64, u64, bool)> {
        fn walk<const N: usize>(
            pieces: &Pieces<N>,
            link: Link,
            all: &mut std::vec::Vec<(u64, u64, bool)>,
        ) -> u64 {
            let Some(node) = pieces.node(link) else { return 0 };
            let [low, high] = node.children.map(|child| pieces.height(child));
            assert!(low.abs_diff(high) <= 1 && node.height == 1 + low.max(high), "no balance");
            let below = walk(pieces, node.children[LOW], all);
            all.push((node.start, node.len, node.free));
            let above = walk(pieces, node.children[HIGH], all);
            let own = if node.free { node.len } else { 0 };
            assert_eq!(node.most, own.max(below).max(above));
            node.most
        }
        let mut all = std::vec::Vec::new();
        walk(self, self.root, &mut all);
        for pair in all.windows(2) {
            let ((start, len, free), (next, _, also)) = (pair[0], pair[1]);
            assert!(len - 1 < next - start, "{pair:?} overlap");
            assert!(!(free && also && start + len == next), "{pair:?} are neighbours");
        }
        assert_eq!(all.len(), self.len);
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
