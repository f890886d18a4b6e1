//! Turns bytes into numbers, and numbers into the arguments of calls.

use super::{File, Kind, maps::Map, model::*, moves::Move};
use crate::{Advice, MapFlags, VmFlags as V};

/// Numbers from bytes. After the last byte, all numbers are zero.
pub(super) struct Dice<'b>(&'b [u8]);

impl<'b> Dice<'b> {
    /// Takes its numbers from these bytes.
    pub(super) fn new(bytes: &'b [u8]) -> Self {
        Dice(bytes)
    }

    /// Whether the bytes are used up.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A number below `sides`, which is at most 256.
    pub(super) fn roll(&mut self, sides: usize) -> usize {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        usize::from(first) % sides
    }

    pub(super) fn one_in(&mut self, sides: usize) -> bool {
        self.roll(sides) == sides - 1
    }

    /// A random range of pages.
    pub(super) fn range(&mut self) -> (usize, usize) {
        let start = LOWEST - 2 + self.roll(40);
        (start, start + 1 + self.roll(7))
    }

    /// A file, or none.
    pub(super) fn file(&mut self) -> Option<File> {
        match self.roll(8) {
            0 | 1 => Some(File { id: 1, kind: Kind::Writable }),
            2 => Some(File { id: 2, kind: Kind::ReadOnly }),
            3 => Some(File { id: 3, kind: Kind::Zero }),
            _ => None,
        }
    }

    /// `PROT_*`, mostly with the right to write.
    pub(super) fn prot(&mut self) -> u32 {
        [3, 1, 0, 3, 5, 7, 2, 3][self.roll(8)]
    }

    /// The arguments of an mmap of these pages.
    pub(super) fn map(&mut self, at: usize, len: usize) -> Map {
        let file = self.file();
        let odd = [
            MapFlags::NORESERVE,
            MapFlags::STACK,
            MapFlags::POPULATE,
            MapFlags::LOCKED,
            MapFlags::GROWSDOWN,
        ];
        let mut flags = MapFlags::PRIVATE;
        if file.is_some_and(|file| file.kind != Kind::Zero) && self.roll(3) == 1 {
            flags = MapFlags::SHARED;
        }
        if let Some(&odd) = odd.get(self.roll(16)) {
            flags |= odd;
        }
        flags |= match self.roll(4) {
            0 => MapFlags::FIXED_NOREPLACE,
            1 => MapFlags::empty(),
            _ => MapFlags::FIXED,
        };
        // Often the offset with which neighbours join.
        let pgoff = if self.one_in(4) { self.roll(4) } else { at };
        let exact = flags.intersects(MapFlags::FIXED | MapFlags::FIXED_NOREPLACE);
        let at = if !exact && self.roll(2) == 0 { 0 } else { at };
        // Sometimes longer than any free range.
        let len = if self.one_in(32) { len * 64 } else { len };
        Map { at, len, prot: self.prot(), flags, file, pgoff, without: V::empty() }
    }

    /// The arguments of an mremap of these pages.
    pub(super) fn mremap(&mut self, at: usize) -> Move {
        let old = self.roll(6);
        let new = if self.roll(2) == 0 { old } else { self.roll(8) };
        let to = LOWEST - 2 + self.roll(40);
        let (fixed, dont_unmap) = match self.roll(6) {
            0 => (None, None),
            1 => (None, Some(if self.roll(2) == 0 { 0 } else { to })),
            2 => (Some(to), Some(to)),
            _ => (Some(to), None),
        };
        Move { at, old, new, may_move: !self.one_in(6), fixed, dont_unmap }
    }

    /// An advice that the model knows.
    pub(super) fn advice(&mut self) -> Advice {
        [
            Advice::Normal,
            Advice::Random,
            Advice::Sequential,
            Advice::DontFork,
            Advice::DoFork,
            Advice::DontDump,
            Advice::DoDump,
            Advice::HugePage,
            Advice::NoHugePage,
            Advice::Mergeable,
            Advice::Unmergeable,
            Advice::WipeOnFork,
            Advice::KeepOnFork,
            Advice::GuardInstall,
            Advice::DontNeed,
        ][self.roll(15)]
    }
}
