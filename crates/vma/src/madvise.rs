//! madvise: advice that changes VMAs (rule 9). Advice that only concerns pages is accepted and
//! changes nothing here.

use core::ops::Range;

use crate::{
    Advice, Area, Error, MappedFile, RefCounted, VmFlags, Vma, Work,
    host::Host,
    mmap::{can_be_mergeable, range_end},
    space::Writer,
    step_plan::StepPlan,
    unmapped_area::HUGE,
};

impl<F: MappedFile, R: grace::Reclaim, H: Host<F, R>> Writer<'_, F, R, H> {
    /// madvise(2) on `start..start + len`. Skips holes, and then returns [`Error::Unmapped`] at the
    /// end. Stops at the first VMA that refuses the advice. The part before it has changed (rule
    /// 8).
    ///
    /// One store into the tree for each VMA that changes. May allocate.
    ///
    /// # Errors
    /// [`Error::Unmapped`], [`Error::WrongKind`], [`Error::Unaligned`], [`Error::BadRange`],
    /// [`Error::TooManyMaps`], [`Error::OutOfMemory`].
    pub fn madvise(&mut self, start: usize, len: usize, advice: Advice) -> Result<(), Error> {
        let end = range_end(start, len)?;
        let mut at = start;
        let mut holes = false;
        if matches!(advice, Advice::PopulateRead | Advice::PopulateWrite) {
            return self.advise_populate(start, end, advice);
        }
        while at < end {
            let look = self.vmas.at_or_after(at).ok_or(Error::Unmapped)?;
            if look.start > at {
                holes = true;
                at = look.start;
                if at >= end {
                    break;
                }
            }
            if let Some(refusal) = look.vma.refusal(advice) {
                return Err(refusal);
            }
            let (stop, middle) = (end.min(look.end), look.middle());
            if advice == Advice::GuardInstall || !advice.changes_vmas() {
                if advice == Advice::GuardInstall {
                    let area = look.keep();
                    self.install_guards(&area)?;
                }
                self.advise_pages(at..stop, advice)?;
                at = stop;
                continue;
            }
            let flags = advised(look.vma, advice)?;
            if flags == middle.flags {
                at = stop;
                continue;
            }
            let vma = Vma { flags, ..Vma::clone(look.vma) };
            at = self.modify(middle, at, stop, vma, stop < end)?;
        }
        if holes { Err(Error::Unmapped) } else { Ok(()) }
    }

    /// Gives advice to the pages of a part of one VMA.
    fn advise_pages(&mut self, range: Range<usize>, advice: Advice) -> Result<(), Error> {
        if !H::PAGES {
            return Ok(());
        }
        let area = self.vmas.covering(range.start).ok_or(Error::Unmapped)?;
        // As in Linux: the VMA has room for a huge page, and the range does not lie within one.
        let first = |addr: usize| addr.checked_next_multiple_of(HUGE).unwrap_or(usize::MAX);
        let last = |addr: usize| addr & !(HUGE - 1);
        let too_small = first(area.start) >= last(area.end) || first(range.start) > last(range.end);
        if advice == Advice::Collapse && too_small {
            return Err(Error::WrongKind);
        }
        self.apply(StepPlan::work(Work::Advise { range, advice }, [Some(area), None]))
    }

    /// Whether [`madvise`](Self::madvise) would stop at a VMA that refuses the advice. Changes
    /// nothing.
    pub fn refuses_advice(&self, start: usize, len: usize, advice: Advice) -> bool {
        let Ok(end) = range_end(start, len) else { return false };
        self.areas_from(start)
            .take_while(|area| area.start < end)
            .any(|area| area.vma.refusal(advice).is_some() || advised(&area.vma, advice).is_err())
    }

    /// Records that a VMA has guard pages. The kernel's version decides what the VMA records.
    fn install_guards(&mut self, area: &Area<F>) -> Result<(), Error> {
        if !self.vmas.profile.guard_flag {
            // A map of a file gets none.
            return match area.vma.is_anonymous() {
                true => self.prepare_anon(area.clone()),
                false => Ok(()),
            };
        }
        let flagged = area.vma.flags.contains(VmFlags::MAYBE_GUARD);
        let needs_anon = area.vma.is_anonymous() && !area.vma.anon.close().is_faulted();
        if flagged && !needs_anon {
            return Ok(());
        }
        let mut vma = match needs_anon {
            true => Vma::clone(&*self.with_anon(area)?),
            false => Vma::clone(&area.vma),
        };
        vma.flags |= VmFlags::MAYBE_GUARD;
        self.vmas.replace(area.middle(), RefCounted::new(vma)?)
    }

    fn advise_populate(&mut self, start: usize, end: usize, advice: Advice) -> Result<(), Error> {
        let mut at = start;
        while at < end {
            let area = self.vmas.covering(at).ok_or(Error::Unmapped)?;
            at = area.end;
            let writes = advice == Advice::PopulateWrite;
            let needed = if writes { VmFlags::WRITE } else { VmFlags::READ };
            let flags = area.vma.flags;
            if flags.intersects(VmFlags::IO | VmFlags::PFNMAP) || !flags.contains(needed) {
                return Err(Error::WrongKind);
            }
            if writes && !flags.contains(VmFlags::SHARED) && !H::BRINGS_IN {
                self.prepare_anon(area)?;
            }
        }
        Ok(())
    }
}

impl<F: MappedFile> Vma<F> {
    /// Why madvise stops at this VMA, if it does.
    pub fn refusal(&self, advice: Advice) -> Option<Error> {
        use Advice::*;
        let flags = self.flags;
        // A sealed VMA that is not writable may not be emptied either.
        let sealed = flags.contains(VmFlags::SEALED) && !flags.contains(VmFlags::WRITE);
        if advice.is_sealed_off() && sealed && self.is_anonymous() {
            return Some(Error::Sealed);
        }
        let kept = match advice {
            DontNeed => VmFlags::PFNMAP | VmFlags::LOCKED,
            DontNeedLocked => VmFlags::PFNMAP,
            Free | Cold | PageOut => VmFlags::PFNMAP | VmFlags::LOCKED | VmFlags::HUGETLB,
            Remove => VmFlags::LOCKED,
            GuardInstall => VmFlags::SPECIAL | VmFlags::HUGETLB | VmFlags::LOCKED,
            GuardRemove => VmFlags::SPECIAL | VmFlags::HUGETLB,
            // `advised` and the pages refuse these.
            Normal | Random | Sequential | DontFork | DoFork | WipeOnFork | KeepOnFork
            | Mergeable | Unmergeable | HugePage | NoHugePage | DontDump | DoDump | WillNeed
            | PopulateRead | PopulateWrite | Collapse => VmFlags::empty(),
        };
        let wrong = advice == Free && !self.is_anonymous();
        if wrong || advice == Remove && self.file.is_none() || flags.intersects(kept) {
            return Some(Error::WrongKind);
        }
        let writes = VmFlags::SHARED | VmFlags::MAYWRITE;
        (advice == Remove && !flags.contains(writes)).then_some(Error::Access)
    }
}

/// The flags of a VMA after the advice.
fn advised<F: MappedFile>(vma: &Vma<F>, advice: Advice) -> Result<VmFlags, Error> {
    use VmFlags as V;
    let old = vma.flags;
    let flags = match advice {
        Advice::Normal => old - V::RAND_READ - V::SEQ_READ,
        Advice::Sequential => (old - V::RAND_READ) | V::SEQ_READ,
        Advice::Random => (old - V::SEQ_READ) | V::RAND_READ,
        Advice::DontFork => old | V::DONTCOPY,
        Advice::DoFork if old.contains(V::IO) => return Err(Error::WrongKind),
        Advice::DoFork => old - V::DONTCOPY,
        Advice::WipeOnFork if vma.file.is_some() || old.contains(V::SHARED) => {
            return Err(Error::WrongKind);
        }
        Advice::WipeOnFork => old | V::WIPEONFORK,
        Advice::KeepOnFork if old.contains(V::DROPPABLE) => return Err(Error::WrongKind),
        Advice::KeepOnFork => old - V::WIPEONFORK,
        Advice::DontDump => old | V::DONTDUMP,
        Advice::DoDump
            if old.contains(V::DROPPABLE)
                || (!old.contains(V::HUGETLB) && old.intersects(V::SPECIAL)) =>
        {
            return Err(Error::WrongKind);
        }
        Advice::DoDump => old - V::DONTDUMP,
        Advice::Mergeable if can_be_mergeable(old) => old | V::MERGEABLE,
        Advice::Mergeable => old,
        Advice::Unmergeable => old - V::MERGEABLE,
        Advice::HugePage => (old - V::NOHUGEPAGE) | V::HUGEPAGE,
        Advice::NoHugePage => (old - V::HUGEPAGE) | V::NOHUGEPAGE,
        // Their pages change, or the VMA in another way (`madvise`).
        Advice::WillNeed
        | Advice::DontNeed
        | Advice::DontNeedLocked
        | Advice::Free
        | Advice::Remove
        | Advice::Cold
        | Advice::PageOut
        | Advice::PopulateRead
        | Advice::PopulateWrite
        | Advice::Collapse
        | Advice::GuardInstall
        | Advice::GuardRemove => old,
    };
    Ok(flags)
}
