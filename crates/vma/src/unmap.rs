//! munmap, and the checks for every call that removes VMAs.

use crate::{Error, MappedFile, VmFlags, space::Writer, tree::Look, vma::page_align};

impl<F: MappedFile, R: grace::Reclaim, A: maple::NodeAlloc> Writer<'_, F, R, A> {
    /// munmap(2): unmaps `addr..addr + len`. Holes are no error.
    ///
    /// One erase in the tree, for any number of VMAs. May allocate. If a sealed VMA makes it fail,
    /// nothing is unmapped, but the VMA that contains `addr` may stay split at `addr`, as in Linux.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::BadRange`], [`Error::Sealed`], [`Error::TooManyMaps`],
    /// [`Error::OutOfMemory`].
    pub fn munmap(&mut self, addr: usize, len: usize) -> Result<(), Error> {
        if !addr.is_multiple_of(crate::PAGE_SIZE) {
            return Err(Error::Unaligned);
        }
        let len = page_align(len).filter(|&len| len > 0).ok_or(Error::BadRange)?;
        if addr > self.profile.task_size || len > self.profile.task_size - addr {
            return Err(Error::BadRange);
        }
        self.unmap(addr, addr + len)
    }

    pub(crate) fn unmap(&mut self, start: usize, end: usize) -> Result<(), Error> {
        self.clear_way(start, end)?;
        self.erase(start, end)
    }

    /// Checks that the whole range may be unmapped. If a sealed VMA forbids it, the VMA that
    /// contains `start` stays split there: Linux splits it before it looks further.
    pub(crate) fn clear_way(&mut self, start: usize, end: usize) -> Result<(), Error> {
        let refused = self.may_unmap(start, end);
        if refused == Err(Error::Sealed)
            && let Some(first) = self.part(start, end).map(Look::keep)
            && first.start < start
            && !first.vma.flags.contains(VmFlags::SEALED)
        {
            self.room_for(1)?;
            self.store(first.start, start, first.vma)?;
        }
        refused
    }

    /// Checks that nothing in the range is sealed, and that there is room for one more VMA if the
    /// range splits one in two.
    fn may_unmap(&self, start: usize, end: usize) -> Result<(), Error> {
        let mut at = start;
        while let Some(area) = self.part(at, end) {
            if area.vma.flags.contains(VmFlags::SEALED) {
                return Err(Error::Sealed);
            }
            if area.start < start && area.end > end {
                self.room_for(1)?;
            }
            at = area.end;
        }
        Ok(())
    }
}
