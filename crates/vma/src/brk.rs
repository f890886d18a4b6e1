//! brk: moves the end of the heap.

use crate::{
    Area, Error, MappedFile, PAGE_SIZE, RefCounted, VmFlags, Vma, anon_vma::AnonSlot, host::Host,
    space::Writer, step_plan::StepPlan, vma::page_align, vma_counts::VmaCounts, work::Work,
};

impl<F: MappedFile, R: grace::Reclaim, H: Host<F, R>> Writer<'_, F, R, H> {
    /// brk(2) as the system call has it: moves the end of the heap to `brk` if it can, and returns
    /// the current end.
    ///
    /// Growing extends only the VMA that holds the heap's end (rule 7). One store into the tree.
    pub fn brk(&mut self, brk: usize) -> usize {
        if let Ok(()) = self.move_brk(brk) {
            self.vmas.state.set_brk(brk);
        }
        self.vmas.state.layout().brk
    }

    fn move_brk(&mut self, brk: usize) -> Result<(), Error> {
        let layout = self.vmas.state.layout();
        if brk < layout.start_brk {
            return Err(Error::BadRange);
        }
        if brk - layout.start_brk > self.limits().data {
            return Err(Error::SizeLimit);
        }
        let new = page_align(brk).ok_or(Error::BadRange)?;
        let old = page_align(layout.brk).ok_or(Error::BadRange)?;
        if new == old {
            return Ok(());
        }
        if brk <= layout.brk {
            self.vmas.at_or_after(new).filter(|a| a.start < old).ok_or(Error::Unmapped)?;
            return self.unmap(new, old);
        }
        if new > self.vmas.profile.task_size {
            return Err(Error::NoSpace);
        }
        let gap = self.vmas.profile.stack_guard_gap;
        if let Some(next) = self.vmas.at_or_after(old) {
            let limit = next.start.saturating_sub(next.vma.guard_gap(gap));
            if next.start < new.saturating_add(PAGE_SIZE + gap) && limit < new + PAGE_SIZE {
                return Err(Error::NoSpace);
            }
        }
        self.grow_heap(layout.start_brk, old, new)
    }

    fn grow_heap(&mut self, start_brk: usize, old: usize, new: usize) -> Result<(), Error> {
        let exec = match self.vmas.state.read_implies_exec() {
            true => VmFlags::EXEC,
            false => VmFlags::empty(),
        };
        let flags = exec
            | VmFlags::READ
            | VmFlags::WRITE
            | VmFlags::MAYREAD
            | VmFlags::MAYWRITE
            | VmFlags::MAYEXEC
            | VmFlags::ACCOUNT
            | self.vmas.state.default_flags();
        self.may_lock_more(flags, new - old)?;
        self.may_expand(flags, new - old, 0)?;
        let mut vma = Vma::anonymous(self.mergeable(flags));
        vma.anon = AnonSlot::empty(self.vmas.state.moment());
        let below = self.vmas.before(old).filter(|b| b.end == old && b.end > start_brk);
        match below.filter(|below| below.takes_in(&vma, self.vmas.state.generation())) {
            // The same VMA with another end: no reference count changes.
            Some(below) => {
                let more = VmaCounts::default().size(below.vma.flags, new - old, 1);
                let plan = StepPlan::end(below.start, new, more);
                self.apply(plan.enters(old..new, false))?;
            }
            None => {
                self.room_for(1)?;
                let heap = Area { start: old, end: new, vma: RefCounted::new(vma)? };
                let plan = StepPlan::change(heap.into(), VmaCounts::default(), Work::Nothing);
                self.apply(plan.enters(old..new, true))?;
            }
        }
        if flags.contains(VmFlags::LOCKED) {
            self.populate(old, new);
        }
        Ok(())
    }
}
