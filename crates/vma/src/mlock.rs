//! mlock, mlock2, munlock, mlockall, munlockall.

use core::ops::Range;

use crate::{
    Error, MappedFile, PAGE_SIZE, VmFlags, Vma,
    host::Host,
    space::Writer,
    tree::{VmaPart, VmaRef},
    vma::page_align_wrapping,
};

/// The arguments of mlockall.
///
/// ```
/// # use vma::*;
/// # let layout = Layout { mmap_base: 0x7fff_0000_0000, ..Layout::default() };
/// # let mut space = AddressSpace::<NoFile, grace::Single>::new(Profile::LINUX_6_18, layout);
/// # let mut writer = space.get_mut();
/// # let request = MapRequest::anonymous(0x4000, 3);
/// # let at = writer.mmap(request.clone())?;
/// writer.mlockall(LockAll { future: true, ..LockAll::default() })?;
/// let later = writer.mmap(request)?;
/// assert!(writer.area_at(later).unwrap().vma.flags.contains(VmFlags::LOCKED));
/// # Ok::<(), vma::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LockAll {
    /// MCL_CURRENT: every existing VMA.
    pub current: bool,
    /// MCL_FUTURE: every new VMA.
    pub future: bool,
    /// MCL_ONFAULT: a page is locked when it is first touched.
    pub on_fault: bool,
}

impl<F: MappedFile, R: grace::Reclaim, H: Host<F, R>> Writer<'_, F, R, H> {
    /// mlock(2) and mlock2(2): locks the pages that `addr..addr + len` touches, at once or
    /// (`on_fault`) when each is first touched. Stops at the first hole. The part before the hole
    /// **is locked**, as in Linux (rule 8).
    ///
    /// One store into the tree for each VMA that changes; may allocate.
    ///
    /// # Errors
    /// [`Error::Unmapped`], [`Error::BadRange`], [`Error::TooManyMaps`], [`Error::OutOfMemory`].
    pub fn mlock(&mut self, addr: usize, len: usize, on_fault: bool) -> Result<(), Error> {
        let mut flags = VmFlags::LOCKED;
        if on_fault {
            flags |= VmFlags::LOCKONFAULT;
        }
        self.may_lock()?;
        let start = addr & !(PAGE_SIZE - 1);
        let bytes = page_align_wrapping(len.wrapping_add(addr - start));
        if !self.has_lock_room(bytes, 0) {
            let all = start..start.saturating_add(bytes);
            if !self.has_lock_room(bytes, self.locked_in(all)) {
                return Err(Error::LockLimit);
            }
        }
        let (start, end) = self.set_locked(addr, len, flags)?;
        self.populate_strictly(start, end)
    }

    /// munlock(2). Stops at the first hole, as [`mlock`](Self::mlock) does.
    ///
    /// # Errors
    /// As for [`mlock`](Self::mlock).
    pub fn munlock(&mut self, addr: usize, len: usize) -> Result<(), Error> {
        self.set_locked(addr, len, VmFlags::empty()).map(drop)
    }

    /// The bytes of a range that are locked.
    fn locked_in(&self, range: Range<usize>) -> usize {
        let mut locked = 0;
        let mut at = range.start;
        while let Some(look) = self.vmas.part(at, range.end) {
            at = look.end;
            if look.vma.flags.contains(VmFlags::LOCKED) {
                locked += look.end.min(range.end) - look.start.max(range.start);
            }
        }
        locked
    }

    fn set_locked(
        &mut self,
        addr: usize,
        len: usize,
        flags: VmFlags,
    ) -> Result<(usize, usize), Error> {
        let start = addr & !(PAGE_SIZE - 1);
        // A length that wraps when rounded up counts as zero, as in Linux.
        let len = page_align_wrapping(len.wrapping_add(addr - start));
        let end = start.checked_add(len).ok_or(Error::BadRange)?;
        let mut at = start;
        while at < end {
            let look = self.vmas.look_at(at).ok_or(Error::Unmapped)?;
            let (middle, change) = (look.middle(), locked(look, flags));
            at = self.lock_one(middle, at, end, change)?;
        }
        Ok((start, end))
    }

    /// Changes the part of a VMA between `start` and `end`. Returns where to continue.
    fn lock_one(
        &mut self,
        middle: VmaPart,
        start: usize,
        end: usize,
        change: Option<Vma<F>>,
    ) -> Result<usize, Error> {
        let stop = end.min(middle.end);
        match change {
            Some(vma) => self.modify(middle, start, stop, vma, stop < end),
            None => Ok(stop),
        }
    }

    /// mlockall(2).
    ///
    /// # Errors
    /// [`Error::BadFlags`] if neither `current` nor `future` is set; [`Error::OutOfMemory`], with
    /// every VMA locked that could be.
    pub fn mlockall(&mut self, what: LockAll) -> Result<(), Error> {
        if !what.current && !what.future {
            return Err(Error::BadFlags);
        }
        self.may_lock()?;
        let limits = self.limits();
        if what.current && self.sizes().total > limits.locked && !limits.may_lock {
            return Err(Error::LockLimit);
        }
        let mut flags = VmFlags::LOCKED;
        if what.on_fault {
            flags |= VmFlags::LOCKONFAULT;
        }
        let future = if what.future { flags } else { VmFlags::empty() };
        self.vmas.state.set_default_flags(self.unlocked_defaults() | future);
        if what.current {
            let outcome = self.lock_every(flags);
            self.populate(0, self.vmas.profile.task_size);
            return outcome;
        }
        Ok(())
    }

    /// munlockall(2): undoes mlock and mlockall, for existing and new VMAs.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], with every VMA unlocked that could be.
    pub fn munlockall(&mut self) -> Result<(), Error> {
        self.vmas.state.set_default_flags(self.unlocked_defaults());
        self.lock_every(VmFlags::empty())
    }

    fn unlocked_defaults(&self) -> VmFlags {
        self.vmas.state.default_flags() - VmFlags::LOCKED_MASK
    }

    /// Skips a VMA that fails, as Linux does. Linux hides the failure; this returns it after the
    /// last VMA.
    fn lock_every(&mut self, flags: VmFlags) -> Result<(), Error> {
        let mut outcome = Ok(());
        let mut at = 0;
        while let Some(look) = self.vmas.at_or_after(at) {
            let (middle, change) = (look.middle(), locked(look, flags));
            at = match self.lock_one(middle, middle.start, usize::MAX, change) {
                Ok(next) => next,
                Err(error) => {
                    outcome = Err(error);
                    middle.end
                }
            };
        }
        outcome
    }
}

/// The contents of a VMA with these flags of locking; `None` if nothing changes.
fn locked<F: MappedFile>(look: VmaRef<'_, F>, locked: VmFlags) -> Option<Vma<F>> {
    let old = look.vma.flags;
    let flags = (old - VmFlags::LOCKED_MASK) | locked;
    let never = VmFlags::SPECIAL | VmFlags::HUGETLB | VmFlags::DROPPABLE;
    let changes = flags != old && !old.intersects(never);
    changes.then(|| Vma { flags, ..Vma::clone(look.vma) })
}
