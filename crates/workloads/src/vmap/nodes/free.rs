//! Free address ranges, ordered by address and by length. The smallest range that is large enough
//! is found in logarithmic time, and neighbours are merged.

use alloc::collections::{BTreeMap, BTreeSet};
use machine::VirtRange;

/// Free ranges, no two of which touch.
pub(super) struct Free {
    /// The length by the start.
    by_start: BTreeMap<u64, u64>,
    /// Length and start.
    by_len: BTreeSet<(u64, u64)>,
}

impl Free {
    pub(super) fn new(range: VirtRange) -> Free {
        let mut free = Free { by_start: BTreeMap::new(), by_len: BTreeSet::new() };
        free.add(range.start().get(), range.len());
        free
    }

    /// Takes a range of so many bytes at a multiple of `align`, which is a power of two and at
    /// least a page.
    pub(super) fn take(&mut self, bytes: u64, align: u64) -> Option<u64> {
        let slack = align - super::PAGE;
        let (len, start) = self.by_len.range((bytes + slack, 0)..).next().copied()?;
        let at = start.next_multiple_of(align);
        self.remove(start, len);
        self.add(start, at - start);
        self.add(at + bytes, start + len - (at + bytes));
        Some(at)
    }

    /// Gives back a range that was taken, or a part of it.
    pub(super) fn give(&mut self, at: u64, bytes: u64) {
        let (mut start, mut end) = (at, at + bytes);
        let before = self.by_start.range(..at).next_back().map(|(start, len)| (*start, *len));
        if let Some((before, len)) = before.filter(|(before, len)| before + len == at) {
            self.remove(before, len);
            start = before;
        }
        if let Some(len) = self.by_start.get(&end).copied() {
            self.remove(end, len);
            end += len;
        }
        self.add(start, end - start);
    }

    /// The bytes of all ranges, and of the largest.
    pub(super) fn total(&self) -> (u64, u64) {
        let all = self.by_start.values().sum();
        (all, self.by_len.last().map_or(0, |(len, _)| *len))
    }

    fn add(&mut self, start: u64, len: u64) {
        if len != 0 {
            self.by_start.insert(start, len);
            self.by_len.insert((len, start));
        }
    }

    fn remove(&mut self, start: u64, len: u64) {
        self.by_start.remove(&start);
        self.by_len.remove(&(len, start));
    }
}
