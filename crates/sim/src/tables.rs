//! The page tables as they are in memory: reads without caches, accessed and dirty bits, or steps.
//! The checkers compare with them what a CPU has cached.

use crate::arena::Arena;
use crate::format::{Entry, Format, Rights};
use machine::{EntryOp, Frame, PageSize, VirtAddr};

/// The page tables in a machine's memory.
#[derive(Clone, Copy)]
pub(crate) struct Tables<'a> {
    pub(crate) arena: &'a Arena,
    pub(crate) format: Format,
    pub(crate) levels: u8,
}

/// The end of a walk without any cache; for checks.
pub(crate) struct Leaf {
    pub(crate) table: Frame,
    pub(crate) index: usize,
    pub(crate) page: Option<(PageSize, Frame, Rights)>,
}

impl Tables<'_> {
    /// An entry of a table of this level, decoded, and its value.
    pub(crate) fn entry(&self, table: Frame, index: usize, level: u8) -> Option<(Entry, u64)> {
        let value = self.arena.load(table, index)?;
        Some((self.format.decode(value, level, index), value))
    }

    /// The entry that decides about `at` now, without caches, accessed and dirty bits, or steps.
    pub(crate) fn look(&self, root: Frame, at: VirtAddr) -> Option<Leaf> {
        let format = self.format;
        let (mut table, mut rights) = (root, Rights::ALL);
        for level in (0..self.levels).rev() {
            let index = format.index(at, level);
            let (found, entry) = self.entry(table, index, level)?;
            rights = format.narrow(rights, entry, &found);
            match found {
                Entry::Table(next) => table = next,
                Entry::Page(size, frame) => {
                    return Some(Leaf { table, index, page: Some((size, frame, rights)) });
                }
                Entry::Absent | Entry::Malformed => return Some(Leaf { table, index, page: None }),
            }
        }
        None
    }

    /// The table of a level on the way to `at`, if there is one.
    pub(crate) fn table_at(&self, root: Frame, at: VirtAddr, level: u8) -> Option<Frame> {
        let (mut table, format) = (root, self.format);
        for above in (level + 1..self.levels).rev() {
            let word = self.arena.load(table, format.index(at, above))?;
            let Entry::Table(next) = format.decode(word, above, 0) else { return None };
            table = next;
        }
        Some(table)
    }

    /// The table that a top-level entry leads to.
    pub(crate) fn top_entry(&self, root: Frame, at: VirtAddr) -> Option<Frame> {
        let level = self.levels - 1;
        match self.entry(root, self.format.index(at, level), level)?.0 {
            Entry::Table(table) => Some(table),
            _ => None,
        }
    }
}

/// The value of an entry after an operation; `None` if it does not change it.
pub(crate) fn result(op: EntryOp, old: u64) -> Option<u64> {
    match op {
        EntryOp::Store(new) | EntryOp::Swap(new) => Some(new),
        EntryOp::CompareExchange(expected, new) => (expected == old).then_some(new),
        EntryOp::And(mask) => Some(old & mask),
        EntryOp::Or(mask) => Some(old | mask),
        EntryOp::Load => None,
    }
}
