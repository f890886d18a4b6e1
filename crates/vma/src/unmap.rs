//! munmap, and the checks for every call that removes VMAs.

use crate::{
    Error, Layout, MappedFile, VmFlags,
    pages::Work,
    pkey::Pkeys,
    space::Writer,
    tree::{Change, Look, Overlap},
    vma::page_align,
};

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
        let end = addr + len;
        let overlap = self.clear_way(addr, end)?;
        let work = match overlap {
            Overlap { touched: false, .. } => Work::Untouched(addr..end),
            Overlap { objects: false, .. } => Work::Unmap(addr..end),
            _ => Work::Empty(addr..end),
        };
        self.write_known(Change::hole(addr, end).with(work), overlap.gone)
    }

    /// What execve(2) does to the memory of a program: unmaps everything, sealed or not, and begins
    /// with these addresses. Limits stay; what mlockall asked for later maps, the personality
    /// READ_IMPLIES_EXEC, and protection keys do not.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; nothing has changed.
    pub fn exec(&mut self, layout: Layout) -> Result<(), Error> {
        self.erase(0, self.profile.task_size)?;
        self.state.set_layout(layout);
        self.state.set_default_flags(self.state.default_flags() & VmFlags::SOFTDIRTY);
        self.state.set_read_implies_exec(false);
        self.state.set_pkeys(Pkeys::NEW);
        Ok(())
    }

    pub(crate) fn unmap(&mut self, start: usize, end: usize) -> Result<(), Error> {
        let overlap = self.clear_way(start, end)?;
        let work = match overlap.touched {
            true => Work::Empty(start..end),
            false => Work::Untouched(start..end),
        };
        self.write_known(Change::hole(start, end).with(work), overlap.gone)
    }

    /// Checks that the whole range may be unmapped, and prepares a VMA that this cuts in two.
    /// Returns what the range overlaps. If that is untouched, no page is there, and none appears.
    /// If a sealed VMA forbids it, the VMA that contains `start` stays split there: Linux splits it
    /// before it looks further.
    pub(crate) fn clear_way(&mut self, start: usize, end: usize) -> Result<Overlap, Error> {
        let mut touched = !self.marks_touched();
        let now = self.state.moment();
        let overlap = self.overlap_with(start, end, |vma| touched |= vma.anon.close_touched(now));
        let overlap = Overlap { touched, ..overlap };
        if overlap.splits && !overlap.sealed {
            self.room_for(1)?;
            self.own_anon(start)?;
        }
        if !overlap.sealed {
            return Ok(overlap);
        }
        if let Some(first) = self.part(start, end).map(Look::keep)
            && first.start < start
            && !first.vma.flags.contains(VmFlags::SEALED)
        {
            self.room_for(1)?;
            self.own_anon(start)?;
            let first = self.part(start, end).map(Look::keep).ok_or(Error::Unmapped)?;
            // Both parts stay this object.
            first.vma.anon.close();
            self.store(first.start, start, first.vma)?;
        }
        Err(Error::Sealed)
    }
}
