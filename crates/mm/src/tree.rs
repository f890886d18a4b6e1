//! The VMAs of an address space in the range tree: bytes to indices, and the bookkeeping of anon_vmas.
//!
//! Every change is one store or one erase of a byte range, so readers without a lock see it whole or
//! not at all (I1), and a failed allocation leaves everything as it was (I7). The VMAs that a write
//! covers, splits or leaves alone are known before it, so their links to anon_vmas are counted
//! before it too, and counted back if it fails: the tree is then the same, so the same walk undoes it.

use alloc::boxed::Box;
use core::ops::RangeInclusive;

use grace::Reclaim;
use maple::{MapleTree, NodeAlloc, OwnerLock};

use crate::{Error, MappedFile, Vma, space::Writer};

/// The tree of an address space, keyed by byte addresses.
pub(crate) type Tree<F, R, A> = MapleTree<Box<Vma<F>>, R, A, OwnerLock>;

/// A VMA with its range.
#[derive(Clone, Debug)]
pub struct Area<F> {
    /// First byte.
    pub start: usize,
    /// First byte past it.
    pub end: usize,
    /// What is the same for all its pages.
    pub vma: Vma<F>,
}

impl<F: Clone> Area<F> {
    /// Owned, so that it can be held while the tree changes. Clones three reference counts.
    pub(crate) fn of((range, vma): (RangeInclusive<usize>, &Vma<F>)) -> Self {
        Area { start: *range.start(), end: range.end() + 1, vma: vma.clone() }
    }
}

/// What a write over a byte range does to a VMA that it overlaps.
enum Fate {
    /// Both ends stay: one VMA becomes two.
    Split,
    /// One end stays.
    Shrunk,
    /// Nothing stays.
    Gone,
}

impl<F: MappedFile, R: Reclaim, A: NodeAlloc> Writer<'_, F, R, A> {
    /// The VMA that contains `addr`.
    pub(crate) fn covering(&self, addr: usize) -> Option<Area<F>> {
        self.tree().lookup(self.guard(), addr).map(Area::of)
    }

    /// The first VMA that ends above `addr`.
    pub(crate) fn at_or_after(&self, addr: usize) -> Option<Area<F>> {
        self.tree().find(self.guard(), addr..=usize::MAX).map(Area::of)
    }

    /// The last VMA that starts below `addr`.
    pub(crate) fn before(&self, addr: usize) -> Option<Area<F>> {
        self.tree().find_rev(self.guard(), 0..=addr.checked_sub(1)?).map(Area::of)
    }

    /// The first VMA with a part in `at..end`.
    pub(crate) fn part(&self, at: usize, end: usize) -> Option<Area<F>> {
        if at >= end {
            return None;
        }
        self.tree().find(self.guard(), at..=end - 1).map(Area::of)
    }

    /// The start of the highest free run of `len` bytes inside `low..high`.
    pub(crate) fn highest_gap(&self, low: usize, high: usize, len: usize) -> Option<usize> {
        let bounds = low..=high.checked_sub(1)?;
        self.tree().empty_area_rev(self.guard(), bounds, len, 1).ok()
    }

    /// The start of the lowest free run of `len` bytes inside `low..high`.
    pub(crate) fn lowest_gap(&self, low: usize, high: usize, len: usize) -> Option<usize> {
        let bounds = low..=high.checked_sub(1)?;
        self.tree().empty_area(self.guard(), bounds, len, 1).ok()
    }

    /// Puts a VMA over `start..end`, in place of what is there.
    ///
    /// Cost: one walk of what it overlaps, one allocation for the VMA and those of one store.
    pub(crate) fn store(&mut self, start: usize, end: usize, vma: Vma<F>) -> Result<(), Error> {
        let chain = vma.anon.clone();
        let boxed = maple::try_box(vma)?;
        chain.link();
        let more = self.relink(start, end, false);
        match self.with_tree(|tree| tree.store_range(start..=end - 1, boxed)) {
            Ok(()) => {
                self.count_more(more + 1);
                Ok(())
            }
            Err(error) => {
                self.relink(start, end, true);
                chain.unlink();
                Err(error)
            }
        }
    }

    /// Makes a hole of `start..end`.
    pub(crate) fn erase(&mut self, start: usize, end: usize) -> Result<(), Error> {
        let more = self.relink(start, end, false);
        match self.with_tree(|tree| tree.erase_range(start..=end - 1)) {
            Ok(()) => {
                self.count_more(more);
                Ok(())
            }
            Err(error) => {
                self.relink(start, end, true);
                Err(error)
            }
        }
    }

    /// Counts the links of the VMAs that a write over `start..end` splits or takes away, or with `back` undoes that.
    /// Returns how many VMAs more there will be.
    fn relink(&self, start: usize, end: usize, back: bool) -> isize {
        let mut more = 0;
        for (range, vma) in self.tree().iter(self.guard(), start..=end - 1) {
            let fate = match (*range.start() < start, *range.end() >= end) {
                (true, true) => Fate::Split,
                (false, false) => Fate::Gone,
                _ => Fate::Shrunk,
            };
            match (fate, back) {
                (Fate::Shrunk, _) => {}
                (Fate::Split, false) | (Fate::Gone, true) => {
                    more += 1;
                    vma.anon.link();
                }
                (Fate::Gone, false) | (Fate::Split, true) => {
                    more -= 1;
                    vma.anon.unlink();
                }
            }
        }
        more
    }
}
