//! The size of a tree: nodes, entries, bytes.

use crate::Index;
use crate::descent::{Descent, Pick};
use crate::layout::{INNER_BLOCK, LEAF_BLOCK};
use crate::node::Link;

/// The size of a tree; made by [`MapleTree::stats`](crate::MapleTree::stats) and
/// [`Writer::stats`](crate::Writer::stats).
///
/// ```
/// use maple::MapleTree;
/// let mut tree = MapleTree::<u32>::new();
/// tree.get_mut().store_range(10..=19, 7).unwrap();
/// let stats = tree.get_mut().stats();
/// assert_eq!((stats.height, stats.nodes, stats.entries, stats.holes), (1, 1, 1, 2));
/// assert!(stats.bytes >= stats.nodes * 64);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The number of levels.
    pub height: usize,
    /// The number of nodes, leaves included.
    pub nodes: usize,
    /// The number of leaves.
    pub leaves: usize,
    /// The number of ranges with an entry.
    pub entries: usize,
    /// The number of ranges without an entry; one in an empty tree.
    pub holes: usize,
    /// The bytes of the nodes, including nodes shared with duplicates. Memory that entries own is
    /// not counted.
    pub bytes: usize,
}

impl Stats {
    /// # Safety
    /// As for [`Descent::walk`].
    pub(crate) unsafe fn of(root: Link) -> Stats {
        if root.is_null() {
            return Stats { holes: 1, ..Stats::default() };
        }
        let mut stats = Stats { height: root.level() + 1, ..Stats::default() };
        for height in 0..stats.height {
            let mut path = Descent::new();
            // SAFETY: the caller's promise.
            unsafe { path.walk_part(root, 0, Index::MAX, height, Pick::First) };
            loop {
                stats.nodes += 1;
                if height == 0 {
                    stats.leaves += 1;
                    // SAFETY: the caller's promise.
                    let body = unsafe { path.step(0).link.as_leaf().body() };
                    let entries = body.entries().count_ones() as usize;
                    stats.holes += body.len() - entries;
                    stats.entries += entries;
                }
                if path.next_node().is_none() {
                    break;
                }
            }
        }
        let inners = stats.nodes - stats.leaves;
        stats.bytes = stats.leaves * LEAF_BLOCK.size() + inners * INNER_BLOCK.size();
        stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MapleTree;
    use crate::layout::{INNER_MIN, LEAF_SLOTS};

    #[test]
    fn counts_add_up() {
        let n = if cfg!(miri) { 100 } else { 3000 };
        let mut tree = MapleTree::<u32>::new();
        assert_eq!(tree.stats(&tree.pin()), Stats { holes: 1, ..Stats::default() });
        let mut writer = tree.get_mut();
        for i in 0..n {
            let at = i as crate::Index * 3 + 1;
            writer.store_range(at..=at, 1).unwrap();
        }
        let stats = writer.stats();
        assert_eq!((stats.entries, stats.holes, stats.height), (n, n + 1, writer.height()));
        let inners = stats.nodes - stats.leaves;
        assert_eq!(stats.bytes, stats.leaves * LEAF_BLOCK.size() + inners * INNER_BLOCK.size());
        assert!(stats.leaves * LEAF_SLOTS > 2 * n && stats.leaves <= n);
        assert!((stats.nodes - stats.leaves - 1) * INNER_MIN <= stats.nodes);
        writer.clear();
        assert_eq!(writer.stats().bytes, 0);
    }
}
