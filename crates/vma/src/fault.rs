//! Events that change VMAs without a system call: a first write fault, stack growth, and
//! populating.
//!
//! A host with page tables calls these methods from its fault handler. A mirror calls them when it
//! sees that the event happened.

use crate::{
    Area, Error, MappedFile, RefCounted, VmFlags, Vma, merge::may_share_anon, space::Writer,
    tree::Look,
};

impl<F: MappedFile, R: grace::Reclaim, A: maple::NodeAlloc> Writer<'_, F, R, A> {
    /// The first write to a private page of the VMA at `addr`. The VMA gets an anon_vma: the next
    /// VMA's if they may share it, else the previous one's, else a new one (rule 2). A VMA that has
    /// an anon_vma stays unchanged.
    ///
    /// # Errors
    /// [`Error::Unmapped`] if nothing is mapped at `addr`, [`Error::OutOfMemory`].
    pub fn first_write(&mut self, addr: usize) -> Result<(), Error> {
        let area = self.covering(addr).ok_or(Error::Unmapped)?;
        self.prepare_anon(area)
    }

    pub(crate) fn prepare_anon(&mut self, area: Area<F>) -> Result<(), Error> {
        let vma = self.with_anon(&area)?;
        if RefCounted::is_same(&vma, &area.vma) {
            return Ok(());
        }
        self.replace(area.middle(), vma)
    }

    /// The contents of the VMA with an anon_vma.
    pub(crate) fn with_anon(&self, area: &Area<F>) -> Result<RefCounted<Vma<F>>, Error> {
        if area.vma.is_faulted() {
            return Ok(area.vma.clone());
        }
        let here = self.state.generation();
        let lends = |lender: &Vma<F>| lender.is_faulted() && !lender.anon.is_inherited(here);
        let next = self.look_at(area.end).filter(|next| {
            next.start == area.end && lends(next.vma) && may_share_anon(&area.vma, next.vma)
        });
        let lender = next.or_else(|| {
            self.before(area.start).filter(|before| {
                before.end == area.start
                    && lends(before.vma)
                    && may_share_anon(before.vma, &area.vma)
            })
        });
        let anon = lender.map_or_else(|| self.state.new_anon(), |lender| lender.vma.anon);
        Ok(RefCounted::new(Vma { anon, ..Vma::clone(&area.vma) })?)
    }

    /// Grows the VMA that ends at `end` down to `start`, after a fault below it.
    ///
    /// # Errors
    /// [`Error::Unmapped`] if no such VMA exists, [`Error::WrongKind`] if it does not grow
    /// downwards or already starts lower, [`Error::NoSpace`] if another VMA is in the way.
    pub fn grow_down(&mut self, end: usize, start: usize) -> Result<(), Error> {
        let area = self.before(end).filter(|a| a.end == end).ok_or(Error::Unmapped)?.keep();
        if !area.vma.flags.contains(VmFlags::GROWSDOWN) || start > area.start {
            return Err(Error::WrongKind);
        }
        if self.before(area.start).is_some_and(|below| below.end > start) {
            return Err(Error::NoSpace);
        }
        // The VMA gets its anon_vma before it grows, so the neighbours of the old range count.
        let vma = self.with_anon(&area)?;
        self.store(start, end, vma)
    }

    /// Populates the range as MAP_POPULATE and mlock do: private writable VMAs see a first write. A
    /// VMA that cannot be populated, even for lack of memory, is skipped, and the caller's work
    /// stands, as in Linux. A skipped VMA sees its first write later.
    pub(crate) fn populate(&mut self, start: usize, end: usize) {
        let mut at = start;
        while let Some(area) = self.part(at, end).map(Look::keep) {
            at = area.end;
            let _later = self.populate_one(area);
        }
    }

    /// As [`populate`](Self::populate), but stops at the first VMA that cannot be populated, as
    /// mlock does.
    pub(crate) fn populate_strictly(&mut self, start: usize, end: usize) -> Result<(), Error> {
        let mut at = start;
        while let Some(area) = self.part(at, end).map(Look::keep) {
            at = area.end;
            let waits = VmFlags::IO | VmFlags::PFNMAP | VmFlags::LOCKONFAULT;
            if !area.vma.flags.intersects(VmFlags::ACCESS | waits) {
                return Err(Error::Unmapped);
            }
            self.populate_one(area)?;
        }
        Ok(())
    }

    fn populate_one(&mut self, area: Area<F>) -> Result<(), Error> {
        let flags = area.vma.flags;
        let skipped = VmFlags::IO | VmFlags::PFNMAP | VmFlags::LOCKONFAULT;
        if flags.intersects(skipped) || flags & (VmFlags::WRITE | VmFlags::SHARED) != VmFlags::WRITE
        {
            return Ok(());
        }
        self.prepare_anon(area)
    }
}
