//! Chooses the address of a map that has no fixed address (rule 11 of RULES.md).
//!
//! The choice is the highest gap below `mmap_base` that fits. The tree's gap index finds it. Space
//! stays free below VMAs that grow downwards. A map that can hold a huge page searches for 2 MiB
//! more and is aligned within the gap. A free hint is used as it is.
//!
//! A range that [waits](Host::waiting) is passed over, unless a hint is there. Only if nothing else
//! fits does the wait end.

use crate::{
    Error, MapFlags, MappedFile, PAGE_SIZE, Placement, host::Host, space::Writer, tree::VmaRef,
    vma::PAGE_SHIFT,
};

// Not derived, because a derive would require `F: Copy`.
impl<F> Copy for WantedPlace<'_, F> {}
impl<F> Clone for WantedPlace<'_, F> {
    fn clone(&self) -> Self {
        *self
    }
}

/// Bytes in a huge page (one PMD entry).
pub(crate) const HUGE: usize = 2 << 20;
/// Hints above this would need 5-level page tables.
const DEFAULT_WINDOW: usize = 0x7fff_ffff_f000;

/// The parameters of a search for an address.
pub(crate) struct WantedPlace<'f, F> {
    /// The requested address; 0 for none.
    pub(crate) hint: usize,
    /// Bytes, a multiple of the page size.
    pub(crate) len: usize,
    /// The first page of the file.
    pub(crate) pgoff: usize,
    /// Only FIXED, SHARED, BIT32 and ABOVE4G matter.
    pub(crate) flags: MapFlags,
    pub(crate) file: Option<&'f F>,
}

/// A place for a map, and the VMA that the search has seen next to it.
pub(crate) struct Found<'a, F> {
    pub(crate) addr: usize,
    /// The first VMA that ends above the end of the place, or that there is none; the outer `None`
    /// if the search has not looked.
    pub(crate) next: Option<Option<VmaRef<'a, F>>>,
}

impl<F> Found<'_, F> {
    fn at(addr: usize) -> Self {
        Found { addr, next: None }
    }
}

impl<F: MappedFile, R: grace::Reclaim, H: Host<F, R>> Writer<'_, F, R, H> {
    /// The address for a map. Cost: one gap search, O(height of the tree), and one more for each
    /// stack and for each range that waits in the way.
    pub(crate) fn place(&self, wanted: WantedPlace<'_, F>) -> Result<Found<'_, F>, Error> {
        if wanted.len > self.vmas.profile.task_size {
            return Err(Error::NoSpace);
        }
        let placement = wanted.file.map(MappedFile::placement);
        let found = match placement {
            Some(Placement::HugeAligned) => Found::at(self.place_huge(wanted)?),
            Some(Placement::HugeIfRoom) => Found::at(self.place_huge_if_room(wanted)?),
            Some(Placement::HugeOnly(size)) => self.search(wanted, size)?,
            Some(Placement::Pages | Placement::Driver) => self.search(wanted, PAGE_SIZE)?,
            None if wanted.flags.contains(MapFlags::SHARED) => self.search(wanted, PAGE_SIZE)?,
            None if self.vmas.profile.huge_aligned_anon
                && wanted.hint == 0
                && wanted.len.is_multiple_of(HUGE) =>
            {
                Found::at(self.place_huge(WantedPlace { pgoff: 0, ..wanted })?)
            }
            None => self.search(wanted, PAGE_SIZE)?,
        };
        if found.addr > self.vmas.profile.task_size - wanted.len {
            return Err(Error::NoSpace);
        }
        if !found.addr.is_multiple_of(PAGE_SIZE) {
            return Err(Error::Unaligned);
        }
        Ok(found)
    }

    /// Aligns the map so that the file's huge pages lie at huge page boundaries, if the map
    /// contains one and there is room.
    fn place_huge(&self, wanted: WantedPlace<'_, F>) -> Result<usize, Error> {
        self.try_huge(wanted).map_or_else(|| Ok(self.search(wanted, PAGE_SIZE)?.addr), Ok)
    }

    /// Places a map as tmpfs does: first as for single pages. If huge pages would not be aligned
    /// there, it searches for almost one huge page more and uses the first aligned address in that
    /// gap.
    fn place_huge_if_room(&self, wanted: WantedPlace<'_, F>) -> Result<usize, Error> {
        let found = self.search(wanted, PAGE_SIZE)?.addr;
        let WantedPlace { hint, len, pgoff, .. } = wanted;
        let within = pgoff.wrapping_mul(PAGE_SIZE) & (HUGE - 1);
        let holds_none = len < HUGE || (within != 0 && within + len < 2 * HUGE);
        // A free hint is kept, and so is a fixed address.
        if found == hint || holds_none || found & (HUGE - 1) == within {
            return Ok(found);
        }
        let Some(padded) = len.checked_add(HUGE - PAGE_SIZE) else { return Ok(found) };
        let padded = WantedPlace { len: padded, pgoff: 0, ..wanted };
        let Ok(Found { addr: start, .. }) = self.search(padded, PAGE_SIZE) else {
            return Ok(found);
        };
        let moved = start + (within.wrapping_sub(start) & (HUGE - 1));
        Ok(if moved > self.vmas.profile.task_size - len { found } else { moved })
    }

    fn try_huge(&self, wanted: WantedPlace<'_, F>) -> Option<usize> {
        let offset = wanted.pgoff.checked_mul(PAGE_SIZE)?;
        let end = offset.checked_add(wanted.len)?;
        let first_huge = offset.checked_next_multiple_of(HUGE)?;
        if end <= first_huge || end - first_huge < HUGE {
            return None;
        }
        let padded = wanted.len.checked_add(HUGE)?;
        offset.checked_add(padded)?;
        let found = self.search(WantedPlace { len: padded, ..wanted }, PAGE_SIZE).ok()?.addr;
        if found == wanted.hint {
            return Some(found);
        }
        let up = offset.wrapping_sub(found) & (HUGE - 1);
        // In a gap that is aligned already, use its upper end.
        Some(if up == 0 { found + HUGE } else { found + up })
    }

    fn search(&self, wanted: WantedPlace<'_, F>, align: usize) -> Result<Found<'_, F>, Error> {
        let WantedPlace { hint, len, flags, .. } = wanted;
        if len > self.vmas.profile.task_size {
            return Err(Error::NoSpace);
        }
        if flags.contains(MapFlags::FIXED) {
            return Ok(Found::at(hint));
        }
        if flags.contains(MapFlags::BIT32) {
            return self.lowest(0x4000_0000, 0x8000_0000, len, align);
        }
        if hint != 0 {
            let addr = if align > PAGE_SIZE {
                hint.next_multiple_of(align)
            } else {
                hint & !(PAGE_SIZE - 1)
            };
            if self.hint_is_free(addr, len) {
                return Ok(Found::at(addr));
            }
        }
        let low =
            if flags.contains(MapFlags::ABOVE4G) { 1 << 32 } else { self.vmas.profile.min_address };
        let high = self.vmas.state.mmap_base();
        self.highest(low, high, len, align).or_else(|_| {
            self.lowest(self.vmas.profile.task_size / 3, self.vmas.profile.task_size, len, align)
        })
    }

    fn hint_is_free(&self, addr: usize, len: usize) -> bool {
        if addr > self.vmas.profile.task_size - len
            || (addr > DEFAULT_WINDOW) != (addr + len > DEFAULT_WINDOW)
        {
            return false;
        }
        self.vmas.at_or_after(addr).is_none_or(|next| addr + len <= self.guarded_start(&next))
    }

    /// The start of a VMA, minus the space that stays free below it.
    fn guarded_start(&self, area: &VmaRef<'_, F>) -> usize {
        area.start.saturating_sub(area.vma.guard_gap(self.vmas.profile.stack_guard_gap))
    }

    fn highest(
        &self,
        low: usize,
        mut high: usize,
        len: usize,
        align: usize,
    ) -> Result<Found<'_, F>, Error> {
        let padded = len.checked_add(align - PAGE_SIZE).ok_or(Error::NoSpace)?;
        loop {
            let found = self.vmas.highest_gap(low, high, padded).ok_or(Error::NoSpace)?;
            let end = found + padded;
            let start = (end - len) & !(align - 1);
            match self.vmas.at_or_after(end) {
                Some(next) if next.vma.guard_gap(1) > 0 && self.guarded_start(&next) < end => {
                    high = self.guarded_start(&next);
                }
                next => match self.host.waiting(start..start + len) {
                    Some(waits) => high = waits.start,
                    // If alignment lets the place end below `end`, a hole is between them.
                    None => return Ok(Found { addr: start, next: Some(next) }),
                },
            }
        }
    }

    fn lowest(
        &self,
        low: usize,
        high: usize,
        len: usize,
        align: usize,
    ) -> Result<Found<'_, F>, Error> {
        let padded = len.checked_add(align - PAGE_SIZE).ok_or(Error::NoSpace)?;
        let mut low = low.max(self.vmas.profile.min_address);
        loop {
            let begin = self.vmas.lowest_gap(low, high, padded).ok_or(Error::NoSpace)?;
            let start = begin.next_multiple_of(align);
            match self.vmas.at_or_after(start) {
                Some(next) if self.guarded_start(&next) < start + len => low = next.end,
                next => match self.host.waiting(start..start + len) {
                    Some(waits) => low = waits.end,
                    // The place is free, so a VMA that ends above its start ends above its end.
                    None => return Ok(Found { addr: start, next: Some(next) }),
                },
            }
        }
    }

    /// Rounds a hint down to a page, and up to the lowest address that may be mapped.
    pub(crate) fn round_hint(&self, hint: usize) -> usize {
        let hint = hint & !(PAGE_SIZE - 1);
        if hint != 0 && hint < self.vmas.profile.min_address {
            self.vmas.profile.min_address
        } else {
            hint
        }
    }
}

/// Whole pages in `bytes`.
pub(crate) fn pages(bytes: usize) -> usize {
    bytes >> PAGE_SHIFT
}
