//! Events that change VMAs without a system call: a first write fault, stack growth, and
//! populating.
//!
//! A host with page tables calls these methods from its fault handler. A mirror calls them when it
//! sees that the event happened.

use crate::{
    AddressSpace, Area, Error, MappedFile, PAGE_SIZE, RefCounted, VmFlags, Vma, anon_vma::AnonSlot,
    host::Host, merge::may_share_anon, space::Writer, step_plan::StepPlan, tree::VmaRef,
    work::Work,
};

impl<F: MappedFile, R: grace::Reclaim> AddressSpace<F, R> {
    /// The first write to a private page of the VMA `seen` at `addr`, during calls that
    /// change VMAs: as [`Writer::first_write`], but without the mmap lock. `seen` was found under
    /// this guard.
    ///
    /// Returns whether the VMA has an anon_vma now. If not, a call has decided something by its
    /// absence, or the VMA is shared with a forked child: then the caller takes the mmap lock and
    /// calls [`Writer::first_write`].
    ///
    /// Cost: two descents of the tree, one increment of a counter of the address space, and one
    /// compare-exchange; a load if the VMA has an anon_vma. Takes no lock, allocates nothing.
    #[inline]
    pub fn first_write<'g>(&'g self, guard: &'g R::Guard, addr: usize, seen: &'g Vma<F>) -> bool {
        // Calls write the line of the state: a fault reads it only if it must.
        if seen.anon.is_filled() {
            return true;
        }
        let state = self.state();
        let here = state.generation();
        seen.anon.fill(state.moment(), || {
            let Some((range, _)) = self.lookup(guard, addr) else { return state.next_number() };
            let lends =
                |lender: &Vma<F>| lender.anon.get().lends(here) && may_share_anon(seen, lender);
            let next = self.lookup(guard, range.end).filter(|(_, next)| lends(next));
            let lender = next.or_else(|| {
                let before = self.lookup(guard, range.start.checked_sub(1)?);
                before.filter(|(_, before)| lends(before))
            });
            lender.map_or_else(|| state.next_number(), |(_, lender)| lender.anon.get().number())
        })
    }
}

impl<F: MappedFile, R: grace::Reclaim, H: Host<F, R>> Writer<'_, F, R, H> {
    /// The first write to a private page of the VMA at `addr`. The VMA gets an anon_vma: the next
    /// VMA's if they may share it, else the previous one's, else a new one (rule 2). A VMA that has
    /// an anon_vma stays unchanged.
    ///
    /// # Errors
    /// [`Error::Unmapped`] if nothing is mapped at `addr`, [`Error::OutOfMemory`].
    pub fn first_write(&mut self, addr: usize) -> Result<(), Error> {
        let area = self.vmas.covering(addr).ok_or(Error::Unmapped)?;
        self.prepare_anon(area)
    }

    pub(crate) fn prepare_anon(&mut self, area: Area<F>) -> Result<(), Error> {
        let vma = self.with_anon(&area)?;
        if RefCounted::is_same(&vma, &area.vma) {
            return Ok(());
        }
        self.vmas.replace(area.middle(), vma)
    }

    /// The contents of the VMA with an anon_vma.
    pub(crate) fn with_anon(&self, area: &Area<F>) -> Result<RefCounted<Vma<F>>, Error> {
        if area.vma.anon.close().is_faulted() {
            return Ok(area.vma.clone());
        }
        let here = self.vmas.state.generation();
        let lends = |lender: &Vma<F>| lender.anon.get().lends(here);
        let next = self.vmas.look_at(area.end).filter(|next| {
            next.start == area.end && lends(next.vma) && may_share_anon(&area.vma, next.vma)
        });
        let lender = next.or_else(|| {
            self.vmas.before(area.start).filter(|before| {
                before.end == area.start
                    && lends(before.vma)
                    && may_share_anon(before.vma, &area.vma)
            })
        });
        let anon =
            lender.map_or_else(|| self.vmas.state.new_anon(), |lender| lender.vma.anon.get());
        let anon = AnonSlot::filled(anon);
        Ok(RefCounted::new(Vma { anon, ..Vma::clone(&area.vma) })?)
    }

    /// Grows the VMA that ends at `end` down to `start`, after a fault below it.
    ///
    /// # Errors
    /// [`Error::Unmapped`] if no such VMA exists, [`Error::WrongKind`] if it does not grow
    /// downwards or already starts lower, [`Error::NoSpace`] if another VMA is in the way.
    pub fn grow_down(&mut self, end: usize, start: usize) -> Result<(), Error> {
        let area = self.vmas.before(end).filter(|a| a.end == end).ok_or(Error::Unmapped)?.keep();
        if !area.vma.flags.contains(VmFlags::GROWSDOWN) || start > area.start {
            return Err(Error::WrongKind);
        }
        if self.vmas.before(area.start).is_some_and(|below| below.end > start) {
            return Err(Error::NoSpace);
        }
        let (flags, more) = (area.vma.flags, area.start - start);
        self.may_expand(flags, more, 0)?;
        if flags.contains(VmFlags::LOCKED) && !self.has_lock_room(more, 0) {
            return Err(Error::LockLimit);
        }
        // The VMA gets its anon_vma before it grows, so the neighbours of the old range count.
        let vma = self.with_anon(&area)?;
        let gone = area.middle().gone();
        let grown = Area { start, end, vma };
        self.apply(
            StepPlan::change(grown.into(), gone, Work::Nothing).enters(start..area.start, false),
        )
    }

    /// Grows the stack whose VMA is the next above `addr` down to the page of `addr`, after a fault
    /// there, as Linux does. The stack becomes at most `limit` bytes long.
    ///
    /// # Errors
    /// [`Error::Unmapped`] if the next VMA is no stack, or if the stack would be too long.
    /// [`Error::NoSpace`] if it would come too near to accessible memory below it.
    pub fn expand_stack(&mut self, addr: usize, limit: usize) -> Result<(), Error> {
        let start = addr & !(PAGE_SIZE - 1);
        let stack = self.vmas.at_or_after(addr).ok_or(Error::Unmapped)?;
        if stack.start <= start || !stack.vma.flags.contains(VmFlags::GROWSDOWN) {
            return Err(Error::Unmapped);
        }
        let end = stack.end;
        if end - start > limit || start < self.vmas.profile.min_address {
            return Err(Error::Unmapped);
        }
        let in_the_way = |below: VmaRef<'_, F>| {
            let flags = below.vma.flags;
            let solid = flags.intersects(VmFlags::ACCESS) && !flags.contains(VmFlags::GROWSDOWN);
            solid && start - below.end < self.vmas.profile.stack_guard_gap
        };
        if self.vmas.before(start).is_some_and(in_the_way) {
            return Err(Error::NoSpace);
        }
        self.grow_down(end, start)
    }

    /// Populates the range as MAP_POPULATE and mlock do: private writable VMAs see a first write. A
    /// VMA that cannot be populated, even for lack of memory, is skipped, and the caller's work
    /// stands, as in Linux. A skipped VMA sees its first write later.
    /// Left to the host if it brings pages in.
    pub(crate) fn populate(&mut self, start: usize, end: usize) {
        if !H::BRINGS_IN {
            self.populate_now(start, end);
        }
    }

    /// As [`populate`](Self::populate), also if the host brings pages in: for a call that goes on
    /// to other VMAs after it.
    pub(crate) fn populate_now(&mut self, start: usize, end: usize) {
        let mut at = start;
        while let Some(area) = self.vmas.part(at, end).map(VmaRef::keep) {
            at = area.end;
            let _later = self.populate_one(area);
        }
    }

    /// As [`populate`](Self::populate), but stops at the first VMA that cannot be populated, as
    /// mlock does.
    pub(crate) fn populate_strictly(&mut self, start: usize, end: usize) -> Result<(), Error> {
        let mut at = start;
        while let Some(area) = self.vmas.part(at, end).map(VmaRef::keep) {
            at = area.end;
            let waits = VmFlags::IO | VmFlags::PFNMAP | VmFlags::LOCKONFAULT;
            if !area.vma.flags.intersects(VmFlags::ACCESS | waits) {
                return Err(Error::Unmapped);
            }
            if !H::BRINGS_IN {
                self.populate_one(area)?;
            }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AddressSpace, Layout, MapFlags, MapRequest, Profile, testing::File};

    const TOP: usize = 0x7fff_0000_0000;

    fn map(addr: usize, pages: usize, flags: MapFlags) -> MapRequest<File> {
        let flags = flags | MapFlags::PRIVATE | MapFlags::ANONYMOUS | MapFlags::FIXED;
        let len = pages * PAGE_SIZE;
        MapRequest { addr, flags, ..MapRequest::anonymous(len, 3) }
    }

    #[test]
    fn a_stack_grows_to_its_limit_and_keeps_its_gap() {
        let profile = Profile { stack_guard_gap: 4 * PAGE_SIZE, ..Profile::LINUX_6_18 };
        let mut space = AddressSpace::<File, grace::Single>::new(profile, Layout::default());
        let mut calls = space.get_mut();
        calls.mmap(map(TOP, 2, MapFlags::GROWSDOWN)).unwrap();
        calls.mmap(map(TOP - 20 * PAGE_SIZE, 1, MapFlags::empty())).unwrap();
        let below = |pages: usize| TOP - pages * PAGE_SIZE;
        assert_eq!(calls.expand_stack(below(3) + 17, 5 * PAGE_SIZE), Ok(()));
        assert_eq!(calls.area_at(TOP).map(|area| area.start), Some(below(3)));
        // Two pages were there, so five are one too few for six.
        assert_eq!(calls.expand_stack(below(4), 5 * PAGE_SIZE), Err(Error::Unmapped));
        let limit = 100 * PAGE_SIZE;
        assert_eq!(calls.expand_stack(below(16), limit), Err(Error::NoSpace));
        assert_eq!(calls.expand_stack(below(15), limit), Ok(()));
        // Inside the stack, and below memory that is no stack.
        assert_eq!(calls.expand_stack(TOP, limit), Err(Error::Unmapped));
        assert_eq!(calls.expand_stack(below(21), limit), Err(Error::Unmapped));
        assert_eq!(calls.expand_stack(TOP + 9 * PAGE_SIZE, limit), Err(Error::Unmapped));
    }
}
