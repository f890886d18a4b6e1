//! The rarer calls on VMAs: mseal, mbind, remap_file_pages and prctl, and VMAs that the host
//! creates.

use alloc::sync::Arc;

use crate::{
    Area, Error, MapFlags, MapRequest, MappedFile, PAGE_SIZE, Policy, RefCounted, VmFlags, Vma,
    host::Host,
    mmap::{can_be_mergeable, range_end},
    space::Writer,
    step_plan::StepPlan,
    tree::VmaRef,
    vma::{PAGE_SHIFT, page_align_wrapping},
    work::Work,
};

/// A full description of a VMA, as execve or a driver makes one.
///
/// ```
/// # use vma::*;
/// # let layout = Layout { mmap_base: 0x7fff_0000_0000, ..Layout::default() };
/// # let mut space = AddressSpace::<NoFile, grace::Single>::new(Profile::LINUX_6_18, layout);
/// # let mut writer = space.get_mut();
/// # let at = writer.mmap(MapRequest::anonymous(0x4000, 3))?;
/// writer.adopt(WholeVma {
///     start: 0x1000_0000,
///     end: 0x1000_2000,
///     flags: VmFlags::READ | VmFlags::EXEC,
///     pgoff: 0,
///     file: None,
///     name: Some("[vdso]".into()),
/// })?;
/// assert_eq!(writer.area_at(0x1000_1000).unwrap().vma.name(), Some("[vdso]"));
/// # Ok::<(), vma::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct WholeVma<F> {
    /// The address of the first byte.
    pub start: usize,
    /// The address after the last byte.
    pub end: usize,
    /// All flags.
    pub flags: VmFlags,
    /// The offset of the first page, in pages.
    pub pgoff: usize,
    /// The file that it maps.
    pub file: Option<F>,
    /// The name in the listing, such as `[vdso]`.
    pub name: Option<Arc<str>>,
}

impl<F: MappedFile, R: grace::Reclaim, H: Host<F, R>> Writer<'_, F, R, H> {
    /// Stores a VMA exactly as the host describes it. It replaces existing VMAs and merges with
    /// none.
    ///
    /// # Errors
    /// [`Error::BadRange`], [`Error::Unaligned`], [`Error::OffsetOverflow`], [`Error::Sealed`],
    /// [`Error::TooManyMaps`], [`Error::OutOfMemory`], [`Error::Overcommit`], and those of a file
    /// that refuses the map. With pages, [`Error::WrongKind`] for shared memory
    /// without a file.
    pub fn adopt(&mut self, whole: WholeVma<F>) -> Result<(), Error> {
        let WholeVma { start, end, flags, pgoff, file, name } = whole;
        if !start.is_multiple_of(PAGE_SIZE) || !end.is_multiple_of(PAGE_SIZE) {
            return Err(Error::Unaligned);
        }
        if start >= end || end > self.vmas.profile.task_size {
            return Err(Error::BadRange);
        }
        // The offset of each page in bytes is a number.
        if pgoff
            .checked_add((end - start) >> PAGE_SHIFT)
            .is_none_or(|end| end > usize::MAX >> PAGE_SHIFT)
        {
            return Err(Error::OffsetOverflow);
        }
        let gone = self.clear_way(start, end)?.gone;
        self.room_for(1)?;
        let mut vma = Vma { file, name, ..Vma::anonymous(flags) };
        vma.set_offset(start, pgoff);
        self.has_object(&vma)?;
        let area = Area { start, end, vma: RefCounted::new(vma)? };
        let work = Work::replacing(start..end, gone);
        self.apply(StepPlan::change(area.into(), gone, work).enters(start..end, true))
    }

    /// Gives a range the state that another kernel reports after a call that stopped half-way: a
    /// hole, or one VMA with these flags. State that flags do not show stays as it is: the file,
    /// the offset, private pages, the policy.
    ///
    /// One store into the tree; with pages one more for each VMA in the range.
    /// May allocate. Ignores seals, because this is no call of the program.
    ///
    /// # Errors
    /// [`Error::BadRange`], [`Error::Unaligned`], [`Error::TooManyMaps`], [`Error::OutOfMemory`];
    /// [`Error::Unmapped`] if flags are given and the range has a hole; [`Error::NotOneVma`] if the
    /// VMAs map different files, or one at other offsets; [`Error::WrongKind`] as for
    /// [`adopt`](Self::adopt).
    pub fn settle(
        &mut self,
        start: usize,
        end: usize,
        flags: Option<VmFlags>,
    ) -> Result<(), Error> {
        if !start.is_multiple_of(PAGE_SIZE) || !end.is_multiple_of(PAGE_SIZE) {
            return Err(Error::Unaligned);
        }
        if start >= end || end > self.vmas.profile.task_size {
            return Err(Error::BadRange);
        }
        let Some(flags) = flags else { return self.erase(start, end) };
        let mut contents: Option<RefCounted<Vma<F>>> = None;
        let (mut at, mut parts) = (start, 0);
        while at < end {
            // A part may keep these contents.
            self.vmas.own_anon(at)?;
            let area = self.vmas.covering(at).ok_or(Error::Unmapped)?;
            (at, parts) = (area.end, parts + 1);
            // Pages of one file would be left in a map of another.
            let joins = |had: &RefCounted<Vma<F>>| {
                let first = area.start.max(start);
                had.file == area.vma.file
                    && (had.file.is_none() || had.offset_at(first) == area.vma.offset_at(first))
            };
            if !contents.as_ref().is_none_or(joins) {
                return Err(Error::NotOneVma);
            }
            // The parts become one VMA. A part with private pages provides the contents.
            if contents.as_ref().is_none_or(|had| !had.is_faulted()) {
                contents = Some(area.vma);
            }
        }
        let Some(contents) = contents else { return Err(Error::Unmapped) };
        // Without protection keys in the profile, the report does not tell them.
        let flags = match self.vmas.profile.protection_keys {
            true => flags,
            false => flags.with_pkey(contents.flags.pkey()),
        };
        self.room_for(1)?;
        let vma = Vma { flags, ..Vma::clone(&contents) };
        self.has_object(&vma)?;
        let vma = RefCounted::new(vma)?;
        // Another one of the parts may have been touched.
        vma.mark_touched_for_call();
        if H::PAGES {
            self.settle_rights(start, end, parts, &vma)?;
        }
        self.vmas.store(start, end, vma)
    }

    /// Pages of shared memory are those of an object.
    fn has_object(&self, vma: &Vma<F>) -> Result<(), Error> {
        let refused = H::PAGES && !vma.is_private() && vma.file.is_none();
        if refused { Err(Error::WrongKind) } else { Ok(()) }
    }

    /// Stores a VMA over each of the `parts` VMAs in the range, whose pages lose the rights that
    /// this part had. One more store of the same VMA, which makes one of the parts, cannot fail
    /// then.
    fn settle_rights(
        &mut self,
        start: usize,
        end: usize,
        parts: usize,
        vma: &RefCounted<Vma<F>>,
    ) -> Result<(), Error> {
        self.vmas.tree.preallocate_writes(parts + 1)?;
        // The parts are one object for a moment.
        vma.anon.close();
        let mut at = start;
        while let Some(part) = self.vmas.part(at, end) {
            let (from, to, old) = (at, part.end.min(end), part.vma.flags);
            let area = Area { start: from, end: to, vma: vma.clone() };
            let gone = self.vmas.overlap(from, to).gone;
            match Work::of_flags(from..to, old, vma.flags) {
                Work::Nothing => self.vmas.write_known(area.into(), gone)?,
                // The other kernel has promised the memory.
                work => {
                    self.apply(StepPlan { growth: 0, ..StepPlan::change(area.into(), gone, work) })?
                }
            }
            at = to;
        }
        Ok(())
    }

    /// mseal(2): afterwards no call can unmap, move, resize or protect the range.
    ///
    /// # Errors
    /// [`Error::Unmapped`] if there is a hole, with nothing sealed; [`Error::BadRange`],
    /// [`Error::Unaligned`].
    pub fn mseal(&mut self, start: usize, len: usize) -> Result<(), Error> {
        let end = range_end(start, len)?;
        let mut at = start;
        while at < end {
            at = self.vmas.covering(at).ok_or(Error::Unmapped)?.end;
        }
        self.change_each(start, end, |vma| vma.flags |= VmFlags::SEALED)
    }

    /// mbind(2): sets the memory policy of a range. `None` is the default policy, which skips
    /// holes.
    ///
    /// # Errors
    /// [`Error::NotOneVma`] at a hole if `policy` is given, with nothing changed;
    /// [`Error::BadRange`], [`Error::Unaligned`], [`Error::TooManyMaps`], [`Error::OutOfMemory`].
    pub fn mbind(&mut self, start: usize, len: usize, policy: Option<Policy>) -> Result<(), Error> {
        let end = range_end(start, page_align_wrapping(len))?;
        let mut at = start;
        while policy.is_some() && at < end {
            at = self.vmas.covering(at).ok_or(Error::NotOneVma)?.end;
        }
        self.change_each(start, end, |vma| vma.policy = policy)
    }

    /// set_mempolicy_home_node(2): sets the preferred node of the policies in a range.
    ///
    /// # Errors
    /// [`Error::BadRange`], [`Error::Unaligned`], [`Error::TooManyMaps`], [`Error::OutOfMemory`].
    pub fn set_home_node(&mut self, start: usize, len: usize, node: u32) -> Result<(), Error> {
        let end = range_end(start, page_align_wrapping(len))?;
        self.change_each(start, end, |vma| {
            if let Some(policy) = &mut vma.policy {
                policy.home = Some(node);
            }
        })
    }

    /// Changes the part of each VMA in the range, with merging and splitting.
    fn change_each(
        &mut self,
        start: usize,
        end: usize,
        change: impl Fn(&mut Vma<F>),
    ) -> Result<(), Error> {
        let mut at = start;
        while let Some(look) = self.vmas.part(at, end) {
            let middle = look.middle();
            let (from, stop) = (at.max(middle.start), end.min(middle.end));
            let mut vma = Vma::clone(look.vma);
            change(&mut vma);
            if vma.flags == middle.flags && vma.policy == look.vma.policy {
                at = stop;
                continue;
            }
            at = self.modify(middle, from, stop, vma, stop < end)?;
        }
        Ok(())
    }

    /// remap_file_pages(2): maps other pages of a shared file in part of its map. That part becomes
    /// a VMA with fresh flags.
    ///
    /// # Errors
    /// [`Error::WrongKind`] if the range is not in VMAs of one shared file, [`Error::BadRange`],
    /// and those of [`mmap`](Self::mmap).
    pub fn remap_file_pages(
        &mut self,
        start: usize,
        size: usize,
        pgoff: usize,
    ) -> Result<(), Error> {
        let start = start & !(PAGE_SIZE - 1);
        let size = size & !(PAGE_SIZE - 1);
        let end = start.checked_add(size).filter(|&end| end > start).ok_or(Error::BadRange)?;
        pgoff.checked_add(size >> PAGE_SHIFT).ok_or(Error::BadRange)?;
        let first = self.vmas.covering(start).ok_or(Error::WrongKind)?;
        if !first.vma.flags.contains(VmFlags::SHARED) {
            return Err(Error::WrongKind);
        }
        let mut at = first.end;
        while at < end {
            let next = self.vmas.covering(at).ok_or(Error::WrongKind)?;
            if next.vma.file != first.vma.file || next.vma.flags != first.vma.flags {
                return Err(Error::WrongKind);
            }
            at = next.end;
        }
        let mut flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
        if first.vma.flags.contains(VmFlags::LOCKED) {
            flags |= MapFlags::LOCKED;
        }
        // A file that is sealed against writes forbids them to the new VMA as to the old one.
        let without = VmFlags::MAYWRITE - first.vma.flags;
        let request = MapRequest {
            addr: start,
            len: size,
            prot: (first.vma.flags & VmFlags::ACCESS).bits() as u32,
            flags,
            file: first.vma.file.clone(),
            offset: pgoff.checked_mul(PAGE_SIZE).ok_or(Error::OffsetOverflow)?,
            driver_flags: None,
        };
        self.mmap_as(request, without).map(drop)
    }

    /// PR_SET_MEMORY_MERGE: sets MERGEABLE on every VMA that qualifies, or clears it on all. New
    /// VMAs follow the setting. It merges no VMAs.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], with the VMAs below the failure changed. A second call continues.
    pub fn set_memory_merge(&mut self, on: bool) -> Result<(), Error> {
        if self.vmas.state.merge_any() == on {
            return Ok(());
        }
        let mut at = 0;
        while let Some(area) = self.vmas.at_or_after(at).map(VmaRef::keep) {
            at = area.end;
            let on = on && can_be_mergeable(area.vma.flags);
            if area.vma.flags.contains(VmFlags::MERGEABLE) != on {
                let mut vma = Vma::clone(&area.vma);
                vma.flags.set(VmFlags::MERGEABLE, on);
                self.vmas.replace(area.middle(), RefCounted::new(vma)?)?;
            }
        }
        self.vmas.state.set_merge_any(on);
        Ok(())
    }
}
