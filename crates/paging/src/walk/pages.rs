//! The pages of a range, one after the other.

use super::{FoundTable, Mapping, Walk, WalkEnd, beyond, beyond_hole, mapping};
use crate::format::{Decoded, Format, Geometry, load};
use core::iter::FusedIterator;
use machine::{Machine, VirtAddr, VirtRange};

/// The pages of a range; see [`Walk::pages`].
pub struct Pages<'g, M, F> {
    walk: Walk<'g, M, F>,
    range: VirtRange,
    next: Option<VirtAddr>,
    /// The table of the last entry, and its level, if the next address lies in the same table.
    table: Option<(FoundTable, u8)>,
    /// The first of the absent entries of this table after which the way was not read again.
    unsure: Option<VirtAddr>,
}

impl<'g, M: Machine, F: Format> Pages<'g, M, F> {
    pub(super) fn new(walk: Walk<'g, M, F>, range: VirtRange) -> Self {
        let next = (!range.is_empty()).then_some(range.start());
        Pages { walk, range, next, table: None, unsure: None }
    }

    /// Returns the entry that decides about the next address, and steps over it.
    #[inline]
    pub(crate) fn step(&mut self) -> Option<(VirtAddr, WalkEnd<'g, M>)> {
        let at = self.next.take().filter(|at| self.range.contains(*at))?;
        if !F::is_canonical(at) {
            self.next = beyond_hole::<F>(at);
            return self.step();
        }
        let again = self.table.take().and_then(|(seen, level)| {
            let entry = self.walk.entry(seen.table, F::index(at, level))?;
            let found = F::decode(load::<M, F>(&entry, level), level);
            Some(WalkEnd { entry, level, found, own: seen.own, forks: seen.forks })
        });
        // A table has replaced a page: walk again from the top.
        let again =
            again.filter(|spot| spot.level == 0 || !matches!(spot.found, Decoded::Table(_)));
        let spot = match again {
            Some(spot) => spot,
            None => self.walk.find(at, 0)?,
        };
        self.next = beyond::<F>(at, spot.level);
        let last = F::index(at, spot.level) == F::ENTRIES - 1;
        self.table = (!last).then(|| (spot.table(), spot.level));
        Some((at, spot))
    }
}

impl<M: Machine, F: Format> Iterator for Pages<'_, M, F> {
    type Item = Mapping;

    fn next(&mut self) -> Option<Mapping> {
        loop {
            let (at, spot) = self.step()?;
            let found = mapping::<M, F>(at, &spot);
            // One more look at the way does for the absent entries of a lowest table.
            let goes_on =
                self.table.is_some() && self.next.is_some_and(|at| self.range.contains(at));
            let first = *self.unsure.get_or_insert(at);
            if found.is_none() && spot.level == 0 && goes_on {
                continue;
            }
            self.unsure = None;
            if !self.walk.is_still(at, &spot) {
                (self.next, self.table) = (Some(first), None);
            } else if found.is_some() {
                return found;
            }
        }
    }
}

impl<M: Machine, F: Format> FusedIterator for Pages<'_, M, F> {}
