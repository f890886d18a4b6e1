//! munmap, and the checks of everything else that takes VMAs away.

use crate::{Error, MappedFile, VmFlags, space::Writer, vma::page_align};

impl<F: MappedFile, R: grace::Reclaim, A: maple::NodeAlloc> Writer<'_, F, R, A> {
    /// munmap(2): nothing is mapped in `addr..addr + len` any more. Holes are no error.
    ///
    /// One store into the tree, whatever it covers; may allocate. If it is refused because of a
    /// sealed VMA, a VMA that the range begins inside may be left split at `addr`, as in Linux;
    /// nothing is unmapped.
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

    /// Whether everything in the range may go. If a sealed VMA in it forbids that, a VMA that the
    /// range begins inside is left split there, as in Linux, which splits before it looks further.
    pub(crate) fn clear_way(&mut self, start: usize, end: usize) -> Result<(), Error> {
        let refused = self.may_unmap(start, end);
        if refused == Err(Error::Sealed)
            && let Some(first) = self.part(start, end)
            && first.start < start
            && !first.vma.flags.contains(VmFlags::SEALED)
        {
            self.room_for(1)?;
            self.store(first.start, start, first.vma)?;
        }
        refused
    }

    /// Nothing sealed in the range, and room for the piece more that a hole in the middle of a VMA
    /// makes.
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
