//! munmap, and the checks for every call that removes VMAs.

use crate::{
    Error, Layout, MappedFile, VmFlags,
    host::Host,
    pkey_set::Pkeys,
    space::Writer,
    step_plan::StepPlan,
    tree::{Overlap, TreeWrite, VmaRef},
    vma::page_align,
    work::Work,
};

impl<F: MappedFile, R: grace::Reclaim, H: Host<F, R>> Writer<'_, F, R, H> {
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
        if addr > self.vmas.profile.task_size || len > self.vmas.profile.task_size - addr {
            return Err(Error::BadRange);
        }
        let end = addr + len;
        let overlap = self.clear_way(addr, end)?;
        let work = match overlap {
            Overlap { touched: false, .. } => Work::Nothing,
            Overlap { objects, .. } => Work::Unmap { range: addr..end, may_wait: !objects },
        };
        self.apply(StepPlan::change(TreeWrite::hole(addr, end), overlap.gone, work))
    }

    /// The effect of execve(2) on the memory of a program: unmaps everything, sealed or not, and
    /// begins with these addresses. Limits stay; the flags of mlockall for later maps, the
    /// personality READ_IMPLIES_EXEC, and protection keys do not.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; nothing has changed.
    pub fn exec(&mut self, layout: Layout) -> Result<(), Error> {
        self.erase(0, self.vmas.profile.task_size)?;
        self.vmas.state.set_layout(layout);
        self.vmas.state.set_default_flags(self.vmas.state.default_flags() & VmFlags::SOFTDIRTY);
        self.vmas.state.set_read_implies_exec(false);
        self.vmas.state.set_pkeys(Pkeys::NEW);
        Ok(())
    }

    pub(crate) fn unmap(&mut self, start: usize, end: usize) -> Result<(), Error> {
        let overlap = self.clear_way(start, end)?;
        let work = match overlap.touched {
            true => Work::Unmap { range: start..end, may_wait: false },
            false => Work::Nothing,
        };
        self.apply(StepPlan::change(TreeWrite::hole(start, end), overlap.gone, work))
    }

    /// Unmaps a range, sealed or not.
    pub(crate) fn erase(&mut self, start: usize, end: usize) -> Result<(), Error> {
        let Overlap { gone, splits, .. } = self.vmas.overlap(start, end);
        if splits {
            self.vmas.own_anon(start)?;
            self.vmas.close_at(start);
        }
        let work = Work::Unmap { range: start..end, may_wait: false };
        self.apply(StepPlan::change(TreeWrite::hole(start, end), gone, work))
    }

    /// Checks that the whole range may be unmapped, and prepares a VMA that this cuts in two.
    /// Returns what the range overlaps. If that is untouched, no page is there, and none appears.
    /// If a sealed VMA forbids it, the VMA that contains `start` stays split there: Linux splits it
    /// before it looks further.
    pub(crate) fn clear_way(&mut self, start: usize, end: usize) -> Result<Overlap, Error> {
        let mut touched = !(H::PAGES && H::MARKS_TOUCHED);
        let now = self.vmas.state.moment();
        let overlap =
            self.vmas.overlap_with(start, end, |vma| touched |= vma.anon.close_touched(now));
        let overlap = Overlap { touched, ..overlap };
        if overlap.splits && !overlap.sealed {
            self.room_for(1)?;
            self.vmas.own_anon(start)?;
        }
        if !overlap.sealed {
            return Ok(overlap);
        }
        if let Some(first) = self.vmas.part(start, end).map(VmaRef::keep)
            && first.start < start
            && !first.vma.flags.contains(VmFlags::SEALED)
        {
            self.room_for(1)?;
            self.vmas.own_anon(start)?;
            // Both parts stay this object, whose slot is closed.
            let first = self.vmas.part(start, end).map(VmaRef::keep).ok_or(Error::Unmapped)?;
            self.vmas.store(first.start, start, first.vma)?;
        }
        Err(Error::Sealed)
    }
}
