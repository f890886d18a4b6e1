//! The rarer calls on VMAs: mseal, mbind, remap_file_pages, prctl, and VMAs that the host brings.

use alloc::sync::Arc;

use crate::{
    Counted, Error, MapFlags, MapRequest, MappedFile, PAGE_SIZE, Policy, VmFlags, Vma,
    map::{can_be_mergeable, range_end},
    space::Writer,
    vma::{PAGE_SHIFT, page_align_wrapping},
};

/// A VMA described in full, as execve or a driver makes one.
///
/// ```
/// # use vma::*;
/// # #[derive(Clone, PartialEq)]
/// # struct File;
/// # impl MappedFile for File {
/// #     fn writable(&self) -> bool { true }
/// #     fn segment_size(&self) -> Option<usize> { Some(0x4000) }
/// #     fn device(&self) -> (u32, u32) { (8, 1) }
/// #     fn inode(&self) -> u64 { 1 }
/// #     fn write_path(&self, out: &mut dyn core::fmt::Write) -> core::fmt::Result { out.write_str("/file") }
/// # }
/// # let layout = Layout { mmap_base: 0x7fff_0000_0000, ..Layout::default() };
/// # let mut space = AddressSpace::<File, grace::Single>::new(Profile::LINUX_6_18, layout);
/// # let mut writer = space.get_mut();
/// # let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS;
/// # let request = MapRequest { addr: 0, len: 0x4000, prot: 3, flags, file: None, offset: 0, driver_flags: None };
/// # let at = writer.mmap(request.clone())?;
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
    /// First byte.
    pub start: usize,
    /// First byte past it.
    pub end: usize,
    /// All its flags.
    pub flags: VmFlags,
    /// Offset in pages of its first page.
    pub pgoff: usize,
    /// What it maps.
    pub file: Option<F>,
    /// Its name in the listing, such as `[vdso]`.
    pub name: Option<Arc<str>>,
}

impl<F: MappedFile, R: grace::Reclaim, A: maple::NodeAlloc> Writer<'_, F, R, A> {
    /// Puts a VMA where and as the host says, in place of what is there; it merges with nothing.
    ///
    /// # Errors
    /// [`Error::BadRange`], [`Error::Unaligned`], [`Error::Sealed`], [`Error::TooManyMaps`],
    /// [`Error::OutOfMemory`].
    pub fn adopt(&mut self, whole: WholeVma<F>) -> Result<(), Error> {
        let WholeVma { start, end, flags, pgoff, file, name } = whole;
        if !start.is_multiple_of(PAGE_SIZE) || !end.is_multiple_of(PAGE_SIZE) {
            return Err(Error::Unaligned);
        }
        if start >= end || end > self.profile.task_size {
            return Err(Error::BadRange);
        }
        self.clear_way(start, end)?;
        self.room_for(1)?;
        let mut vma = Vma { file, name, ..Vma::anonymous(flags) };
        vma.set_offset(start, pgoff);
        self.store(start, end, Counted::new(vma)?)
    }

    /// Makes a range what another kernel says it is after a call that it stopped half-way: a hole,
    /// or one VMA with these flags. What flags do not show (file, offset, private pages, policy)
    /// stays as it is.
    ///
    /// One store into the tree; may allocate. Sealed VMAs are no obstacle: it is no call of the
    /// program.
    ///
    /// # Errors
    /// [`Error::BadRange`], [`Error::Unaligned`], [`Error::TooManyMaps`], [`Error::OutOfMemory`];
    /// with flags [`Error::Unmapped`] where there is a hole.
    pub fn settle(
        &mut self,
        start: usize,
        end: usize,
        flags: Option<VmFlags>,
    ) -> Result<(), Error> {
        if !start.is_multiple_of(PAGE_SIZE) || !end.is_multiple_of(PAGE_SIZE) {
            return Err(Error::Unaligned);
        }
        if start >= end || end > self.profile.task_size {
            return Err(Error::BadRange);
        }
        let Some(flags) = flags else { return self.erase(start, end) };
        let mut contents = None;
        let mut at = start;
        while at < end {
            let area = self.covering(at).ok_or(Error::Unmapped)?;
            at = area.end;
            // Of parts that are one VMA now, the one with private pages lends them.
            if contents.as_ref().is_none_or(|had: &Counted<Vma<F>>| !had.is_faulted()) {
                contents = Some(area.vma);
            }
        }
        let Some(contents) = contents else { return Err(Error::Unmapped) };
        let flags = flags.with_pkey(contents.flags.pkey());
        self.room_for(1)?;
        self.store(start, end, Counted::new(Vma { flags, ..Vma::clone(&contents) })?)
    }

    /// mseal(2): no call may unmap, move, resize or protect the range any more.
    ///
    /// # Errors
    /// [`Error::Unmapped`] if there is a hole (nothing is sealed then), [`Error::BadRange`],
    /// [`Error::Unaligned`].
    pub fn mseal(&mut self, start: usize, len: usize) -> Result<(), Error> {
        let end = range_end(start, len)?;
        let mut at = start;
        while at < end {
            at = self.covering(at).ok_or(Error::Unmapped)?.end;
        }
        self.change_each(start, end, |vma| vma.flags |= VmFlags::SEALED)
    }

    /// mbind(2): the memory policy of a range; `None` is the default one. Holes are passed over if
    /// `holes` allows it.
    ///
    /// # Errors
    /// [`Error::NotOneVma`] at a hole (nothing changes then), [`Error::BadRange`],
    /// [`Error::Unaligned`], [`Error::TooManyMaps`], [`Error::OutOfMemory`].
    pub fn mbind(&mut self, start: usize, len: usize, policy: Option<Policy>) -> Result<(), Error> {
        let end = range_end(start, page_align_wrapping(len))?;
        let mut at = start;
        while policy.is_some() && at < end {
            at = self.covering(at).ok_or(Error::NotOneVma)?.end;
        }
        self.change_each(start, end, |vma| vma.policy = policy)
    }

    /// set_mempolicy_home_node(2): the preferred node of the policies in a range.
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

    /// Changes the part of each VMA that lies in the range, merging and splitting.
    fn change_each(
        &mut self,
        start: usize,
        end: usize,
        change: impl Fn(&mut Vma<F>),
    ) -> Result<(), Error> {
        let mut at = start;
        while let Some(area) = self.part(at, end) {
            let from = at.max(area.start);
            let stop = end.min(area.end);
            let mut vma = Vma::clone(&area.vma);
            change(&mut vma);
            if vma.flags == area.vma.flags && vma.policy == area.vma.policy {
                at = stop;
                continue;
            }
            at = self.modify(&area, from, stop, vma)?;
        }
        Ok(())
    }

    /// remap_file_pages(2): shows other pages of a shared file in part of its map, which becomes a
    /// VMA with fresh flags.
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
        let first = self.covering(start).ok_or(Error::WrongKind)?;
        if !first.vma.flags.contains(VmFlags::SHARED) {
            return Err(Error::WrongKind);
        }
        let mut at = first.end;
        while at < end {
            let next = self.covering(at).ok_or(Error::WrongKind)?;
            if next.vma.file != first.vma.file || next.vma.flags != first.vma.flags {
                return Err(Error::WrongKind);
            }
            at = next.end;
        }
        let mut flags = MapFlags::SHARED | MapFlags::FIXED | MapFlags::POPULATE;
        if first.vma.flags.contains(VmFlags::LOCKED) {
            flags |= MapFlags::LOCKED;
        }
        // A file that is sealed against writes forbids them to the new VMA as it did to this one.
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

    /// PR_SET_MEMORY_MERGE: every VMA that qualifies becomes mergeable by content, or none is any
    /// more; those to come too. No VMAs are joined by it.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], with what lies below the failure done; a second call goes on.
    pub fn set_memory_merge(&mut self, on: bool) -> Result<(), Error> {
        if self.state().merge_any == on {
            return Ok(());
        }
        let mut at = 0;
        while let Some(area) = self.at_or_after(at) {
            at = area.end;
            let on = on && can_be_mergeable(area.vma.flags);
            if area.vma.flags.contains(VmFlags::MERGEABLE) != on {
                let mut vma = Vma::clone(&area.vma);
                vma.flags.set(VmFlags::MERGEABLE, on);
                self.store(area.start, area.end, Counted::new(vma)?)?;
            }
        }
        self.state_mut().merge_any = on;
        Ok(())
    }
}
