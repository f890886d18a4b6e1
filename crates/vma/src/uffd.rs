//! userfaultfd: registers VMAs with a userfaultfd, unregisters them, and moves pages between VMAs.

use core::ops::Range;

use crate::{
    Area, Error, MappedFile, PAGE_SIZE, RefCounted, Uffd, VmFlags, Vma, host::Host,
    mmap::range_end, space::Writer, step_plan::StepPlan, work::Work,
};

impl<F> Vma<F> {
    /// Whether UFFDIO_MOVE may move pages of this VMA to the other one: both are private anonymous
    /// memory with the same rights, among them WRITE, and the other one is registered.
    pub fn may_move_to(&self, to: &Vma<F>) -> bool {
        let plain = |vma: &Vma<F>| vma.is_private() && vma.file.is_none();
        let compared = VmFlags::ACCESS | VmFlags::LOCKED | VmFlags::PKEY;
        plain(self)
            && plain(to)
            && (self.flags ^ to.flags) & compared == VmFlags::empty()
            && self.flags.contains(VmFlags::WRITE)
            && to.flags.intersects(VmFlags::UFFD)
    }
}

impl<F: MappedFile, R: grace::Reclaim, H: Host<F, R>> Writer<'_, F, R, H> {
    /// UFFDIO_REGISTER: registers `start..start + len` with `uffd` for `modes` (of
    /// [`VmFlags::UFFD`]). Skips holes. The host must check the file system: Linux allows tmpfs and
    /// hugetlbfs.
    ///
    /// One store into the tree for each VMA that changes. May allocate.
    ///
    /// # Errors
    /// With nothing changed: [`Error::BadFlags`] for empty or other modes, [`Error::BadRange`],
    /// also if nothing is mapped in the range, [`Error::Unaligned`], [`Error::WrongKind`], also for
    /// UFFD_MINOR of memory without a file, [`Error::NeverWritable`], [`Error::Watched`] for a
    /// range of another userfaultfd. With the VMAs below the failure changed:
    /// [`Error::TooManyMaps`], [`Error::OutOfMemory`].
    pub fn watch(
        &mut self,
        start: usize,
        len: usize,
        modes: VmFlags,
        uffd: Uffd,
    ) -> Result<(), Error> {
        if modes.is_empty() || !(modes - VmFlags::UFFD).is_empty() {
            return Err(Error::BadFlags);
        }
        let end = self.watched_range(start, len)?;
        self.vmas.at_or_after(start).filter(|a| a.start < end).ok_or(Error::BadRange)?;
        let mut at = start;
        while let Some(area) = self.vmas.part(at, end) {
            let flags = area.vma.flags;
            let special = flags.intersects(VmFlags::SPECIAL) && !flags.contains(VmFlags::HUGETLB);
            let minor = modes.contains(VmFlags::UFFD_MINOR) && area.vma.file.is_none();
            if special || minor || flags.contains(VmFlags::DROPPABLE) {
                return Err(Error::WrongKind);
            }
            if !flags.contains(VmFlags::MAYWRITE) {
                return Err(Error::NeverWritable);
            }
            if area.vma.uffd.is_some_and(|other| other.id != uffd.id) {
                return Err(Error::Watched);
            }
            at = area.end;
        }
        // A VMA that is registered for these modes and more keeps its modes.
        self.set_watch(start, end, |by, old| match by == Some(uffd) && old.contains(modes) {
            true => (by, old),
            false => (Some(uffd), (old - VmFlags::UFFD) | modes),
        })
    }

    /// UFFDIO_UNREGISTER: unregisters the range.
    ///
    /// # Errors
    /// [`Error::BadRange`], also if nothing is mapped in the range, [`Error::Unaligned`]; with the
    /// VMAs below the failure changed: [`Error::TooManyMaps`], [`Error::OutOfMemory`].
    pub fn unwatch(&mut self, start: usize, len: usize) -> Result<(), Error> {
        let end = self.watched_range(start, len)?;
        self.vmas.at_or_after(start).filter(|a| a.start < end).ok_or(Error::BadRange)?;
        self.set_watch(start, end, |_, old| (None, old - VmFlags::UFFD))
    }

    /// Unregisters all VMAs of the userfaultfd `id`, because it was closed.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], with the VMAs below the failure changed.
    pub fn close_watch(&mut self, id: u64) -> Result<(), Error> {
        let mut at = 0;
        while let Some(look) = self.vmas.at_or_after(at) {
            at = look.end;
            if look.vma.uffd.is_some_and(|uffd| uffd.id == id) {
                let (middle, mut vma) = (look.middle(), Vma::clone(look.vma));
                vma.uffd = None;
                vma.flags -= VmFlags::UFFD;
                at = self.modify(middle, middle.start, middle.end, vma, true)?;
            }
        }
        Ok(())
    }

    /// UFFDIO_MOVE: moves the private pages of `from` to `to`. Both ranges lie in one VMA each
    /// ([`Vma::may_move_to`]). The VMAs stay, and are busy meanwhile.
    ///
    /// # Errors
    /// [`Error::WrongKind`], [`Error::BadRange`], [`Error::OutOfMemory`], and those of the host.
    /// Nothing has moved.
    pub fn move_private(&mut self, from: Range<usize>, to: usize) -> Result<(), Error> {
        let to_end = to.checked_add(from.len()).ok_or(Error::BadRange)?;
        if from.start < to_end && to < from.end {
            return Err(Error::BadRange);
        }
        self.first_write(to)?;
        let (source, target) = (self.vmas.covering(from.start), self.vmas.covering(to));
        let (source, target) = source.zip(target).ok_or(Error::WrongKind)?;
        let fit = source.vma.may_move_to(&target.vma)
            && !source.vma.is_busy()
            && !target.vma.is_busy()
            && from.end <= source.end
            && to_end <= target.end;
        if !fit {
            return Err(Error::WrongKind);
        }
        let target = (target.start != source.start).then_some(target);
        let work = Work::Move { from, to, stays: true };
        self.apply(StepPlan::work(work, [Some(source), target]))
    }

    /// mremap unregisters a VMA that it moves, and the area that it joins, unless the userfaultfd
    /// follows moves.
    pub(crate) fn forget_uffd(&self, area: &mut Area<F>) -> Result<(), Error> {
        if area.vma.uffd.is_some_and(|uffd| !uffd.follows_remap) {
            let mut vma = Vma::clone(&area.vma);
            vma.uffd = None;
            vma.flags -= VmFlags::UFFD;
            area.vma = RefCounted::new(vma)?;
        }
        Ok(())
    }

    fn watched_range(&self, start: usize, len: usize) -> Result<usize, Error> {
        let end = range_end(start, len)?;
        if !len.is_multiple_of(PAGE_SIZE) {
            return Err(Error::Unaligned);
        }
        if end == start || end > self.vmas.profile.task_size {
            Err(Error::BadRange)
        } else {
            Ok(end)
        }
    }

    fn set_watch(
        &mut self,
        start: usize,
        end: usize,
        change: impl Fn(Option<Uffd>, VmFlags) -> (Option<Uffd>, VmFlags),
    ) -> Result<(), Error> {
        let mut at = start;
        while let Some(look) = self.vmas.part(at, end) {
            let (uffd, flags) = change(look.vma.uffd, look.vma.flags);
            let middle = look.middle();
            let (from, stop) = (at.max(middle.start), end.min(middle.end));
            if look.vma.uffd == uffd && middle.flags == flags {
                at = stop;
                continue;
            }
            let vma = Vma { uffd, flags, ..Vma::clone(look.vma) };
            at = self.modify(middle, from, stop, vma, stop < end)?;
        }
        Ok(())
    }
}
