//! What happens to VMAs without a call: a first write, the stack's growth, and faulting in ahead of
//! time.
//!
//! A host that has page tables calls these from its fault handler; a mirror calls them when it sees
//! that they happened.

use crate::{
    Area, Counted, Error, MappedFile, VmFlags, Vma, anon::Chain, merge::may_share_anon,
    space::Writer,
};

impl<F: MappedFile, R: grace::Reclaim, A: maple::NodeAlloc> Writer<'_, F, R, A> {
    /// The first write to a private page of the VMA at `addr`: it gets its anon_vma, a neighbour's
    /// where that is allowed (rule 2: the next one's first, then the previous one's). A VMA that
    /// has one stays as it is.
    ///
    /// # Errors
    /// [`Error::Unmapped`] if nothing is mapped at `addr`, [`Error::OutOfMemory`].
    pub fn first_write(&mut self, addr: usize) -> Result<(), Error> {
        let area = self.covering(addr).ok_or(Error::Unmapped)?;
        self.prepare_anon(area)
    }

    pub(crate) fn prepare_anon(&mut self, area: Area<F>) -> Result<(), Error> {
        let vma = self.with_anon(&area)?;
        if Counted::is_same(&vma, &area.vma) {
            return Ok(());
        }
        self.store(area.start, area.end, vma)
    }

    /// The contents of the VMA once it has an anon_vma.
    pub(crate) fn with_anon(&self, area: &Area<F>) -> Result<Counted<Vma<F>>, Error> {
        if area.vma.is_faulted() {
            return Ok(area.vma.clone());
        }
        let lends = |lender: &Area<F>| lender.vma.is_faulted() && !lender.vma.anon.is_inherited();
        let next = self.covering(area.end).filter(|n| may_share_anon(area, n) && lends(n));
        let lender = next
            .or_else(|| self.before(area.start).filter(|p| may_share_anon(p, area) && lends(p)));
        let anon = lender.map_or_else(Chain::new_root, |lender| Ok(lender.vma.anon.clone()))?;
        Ok(Counted::new(Vma { anon, ..Vma::clone(&area.vma) })?)
    }

    /// The VMA that ends at `end` grows down to `start` after a fault below it.
    ///
    /// # Errors
    /// [`Error::Unmapped`] if no such VMA exists, [`Error::WrongKind`] if it does not grow
    /// downwards or starts lower already, [`Error::NoSpace`] if something is in the way.
    pub fn grow_down(&mut self, end: usize, start: usize) -> Result<(), Error> {
        let area = self.before(end).filter(|a| a.end == end).ok_or(Error::Unmapped)?;
        if !area.vma.flags.contains(VmFlags::GROWSDOWN) || start > area.start {
            return Err(Error::WrongKind);
        }
        if self.before(area.start).is_some_and(|below| below.end > start) {
            return Err(Error::NoSpace);
        }
        // Before it grows it gets its anon_vma, for which the neighbours count that it has now.
        let vma = self.with_anon(&area)?;
        self.store(start, end, vma)
    }

    /// Faults in what lies in the range, as MAP_POPULATE and locking do: private writable VMAs see
    /// a write. It is done ahead of need, so what cannot be faulted in now is passed over, be it
    /// for want of memory: a VMA left out sees its first write later, and the caller's work stands
    /// (as in Linux).
    pub(crate) fn populate(&mut self, start: usize, end: usize) {
        let mut at = start;
        while let Some(area) = self.part(at, end) {
            at = area.end;
            let _later = self.populate_one(area);
        }
    }

    /// The same, but stops at what cannot be faulted in, as mlock does.
    pub(crate) fn populate_strictly(&mut self, start: usize, end: usize) -> Result<(), Error> {
        let mut at = start;
        while let Some(area) = self.part(at, end) {
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
