//! munmap, and the checks of everything else that takes VMAs away.

use crate::{Error, MappedFile, VmFlags, space::Writer, vma::page_align};

impl<F: MappedFile, R: grace::Reclaim, A: maple::NodeAlloc> Writer<'_, F, R, A> {
    /// munmap(2): nothing is mapped in `addr..addr + len` any more. Holes are no error.
    ///
    /// One store into the tree, whatever it covers; may allocate; never half done.
    ///
    /// # Errors
    /// [`Error::Unaligned`], [`Error::BadRange`], [`Error::Sealed`], [`Error::TooManyMaps`], [`Error::OutOfMemory`].
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
        self.may_unmap(start, end)?;
        self.erase(start, end)
    }

    /// Nothing sealed in the range, and room for the piece more that a hole in the middle of a VMA makes.
    pub(crate) fn may_unmap(&self, start: usize, end: usize) -> Result<(), Error> {
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
