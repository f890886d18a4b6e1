//! mremap: resize, move, or both (rule 12).
//!
//! A move is a store of the new VMA and an erase of the old range. The memory for both is allocated
//! first. Anonymous memory that was never written takes the offset of its new address. All other
//! memory keeps its offset, so that its pages are found.

use crate::anon_vma::AnonSlot;
use crate::{
    Area, Error, MapFlags, MappedFile, PAGE_SIZE, Placement, RefCounted, VmFlags, Vma,
    host::Host,
    space::Writer,
    step_plan::{StepPlan, StepStores},
    tree::TreeWrite,
    tree::VmaRef,
    unmapped_area::{WantedPlace, pages},
    vma::{page_align, page_align_wrapping},
    work::Work,
};

/// The arguments of mremap.
///
/// ```
/// # use vma::*;
/// # let layout = Layout { mmap_base: 0x7fff_0000_0000, ..Layout::default() };
/// # let mut space = AddressSpace::<NoFile, grace::Single>::new(Profile::LINUX_6_18, layout);
/// # let mut writer = space.get_mut();
/// # let at = writer.mmap(MapRequest::anonymous(0x4000, 3))?;
/// let grown = writer.mremap(RemapRequest::resizing(at, 0x4000, 0x8000))?;
/// assert_eq!(writer.area_at(grown).unwrap().end, grown + 0x8000);
/// # Ok::<(), vma::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RemapRequest {
    /// The start of the old range.
    pub addr: usize,
    /// The length of the old range in bytes; 0 makes a second map of a shared object.
    pub old_len: usize,
    /// The new length in bytes.
    pub new_len: usize,
    /// MREMAP_MAYMOVE.
    pub may_move: bool,
    /// MREMAP_FIXED: the address to move to. Existing maps there are unmapped.
    pub fixed: Option<usize>,
    /// MREMAP_DONTUNMAP: the old range stays mapped, but empty. The value is a hint for the new
    /// address.
    pub dont_unmap: Option<usize>,
}

impl RemapRequest {
    /// The move of `len` bytes from `addr` to exactly `to`.
    pub fn moving(addr: usize, len: usize, to: usize) -> Self {
        let (old_len, new_len, may_move) = (len, len, true);
        RemapRequest { addr, old_len, new_len, may_move, fixed: Some(to), dont_unmap: None }
    }

    /// A range of another length, which moves if it must.
    pub fn resizing(addr: usize, old_len: usize, new_len: usize) -> Self {
        RemapRequest { addr, old_len, new_len, may_move: true, ..RemapRequest::default() }
    }

    fn new_addr(&self) -> Option<usize> {
        self.fixed.or(self.dont_unmap)
    }
}

impl<F: MappedFile, R: grace::Reclaim, H: Host<F, R>> Writer<'_, F, R, H> {
    /// mremap(2). Returns the new address.
    ///
    /// All or nothing (I7), with two exceptions, as in Linux: a FIXED move of several VMAs moves
    /// one VMA after the other and stops at the first that cannot be moved, and FIXED unmaps its
    /// target first.
    ///
    /// # Errors
    /// [`Error::NotOneVma`], [`Error::NoSpace`], [`Error::BadFlags`], [`Error::BadRange`],
    /// [`Error::Unaligned`], [`Error::Sealed`], [`Error::WrongKind`], [`Error::TooManyMaps`],
    /// [`Error::OutOfMemory`].
    pub fn mremap(&mut self, request: RemapRequest) -> Result<usize, Error> {
        let request = self.check_request(request)?;
        match request.fixed {
            Some(to) if request.old_len == request.new_len => self.move_range(request, to),
            Some(_) => self.remap_one(request),
            None => self.remap_one(request),
        }
    }

    fn check_request(&self, request: RemapRequest) -> Result<RemapRequest, Error> {
        if !request.addr.is_multiple_of(PAGE_SIZE) {
            return Err(Error::Unaligned);
        }
        // As in Linux, an old length that wraps is 0.
        let old_len = page_align_wrapping(request.old_len);
        let new_len = page_align(request.new_len).filter(|&len| len > 0).ok_or(Error::BadRange)?;
        if new_len > self.vmas.profile.task_size {
            return Err(Error::BadRange);
        }
        let request = RemapRequest { old_len, new_len, ..request };
        let Some(to) = request.new_addr() else { return Ok(request) };
        if !to.is_multiple_of(PAGE_SIZE) {
            return Err(Error::Unaligned);
        }
        if to > self.vmas.profile.task_size - new_len {
            return Err(Error::BadRange);
        }
        if !request.may_move || (request.dont_unmap.is_some() && old_len != new_len) {
            return Err(Error::BadFlags);
        }
        // An old range that wraps overlaps nothing. Its end cannot be unmapped, which fails later.
        let old_end = request.addr.wrapping_add(old_len);
        if old_end > to && to + new_len > request.addr {
            return Err(Error::BadRange);
        }
        if self.count() + 5 >= self.vmas.profile.max_map_count {
            return Err(Error::TooManyMaps);
        }
        if request.addr >= self.vmas.profile.task_size {
            return Err(Error::NotOneVma);
        }
        Ok(request)
    }

    /// Moves all VMAs of a range, one after the other. Keeps the holes between them.
    fn move_range(&mut self, whole: RemapRequest, to: usize) -> Result<usize, Error> {
        let end = whole.addr + whole.old_len;
        if !self.vmas.profile.moves_many {
            return self.remap_one(whole);
        }
        let mut at = whole.addr;
        let mut first = true;
        // A moved VMA may have merged with its source and reach below `at`. The search still ends
        // at the end of the range.
        while let Some(area) = self.vmas.part(at, end).map(VmaRef::keep) {
            if first && area.start > whole.addr {
                return Err(Error::NotOneVma);
            }
            if !moves_with_others(&area.vma) && (!first || area.end < end) {
                return Err(Error::NotOneVma);
            }
            first = false;
            let addr = area.start.max(whole.addr);
            let len = end.min(area.end) - addr;
            let target = to + (addr - whole.addr);
            let part = RemapRequest {
                addr,
                old_len: len,
                new_len: len,
                fixed: Some(target),
                dont_unmap: whole.dont_unmap.map(|_| target),
                ..whole
            };
            self.remap_one(part)?;
            at = area.end;
        }
        if first { Err(Error::NotOneVma) } else { Ok(to) }
    }

    fn remap_one(&mut self, request: RemapRequest) -> Result<usize, Error> {
        // Its contents may be stored at another place, in addition to what stays.
        self.vmas.own_anon(request.addr)?;
        let area = self.vmas.covering(request.addr).ok_or(Error::NotOneVma)?;
        self.check_area(&request, &area)?;
        let shrinks = request.old_len > request.new_len;
        if request.new_addr().is_none() {
            return if request.old_len == request.new_len {
                Ok(request.addr)
            } else if shrinks {
                self.shrink(&request)?;
                Ok(request.addr)
            } else {
                self.expand(request, area)
            };
        }
        self.remap_to(request, shrinks)
    }

    fn check_area(&self, request: &RemapRequest, area: &Area<F>) -> Result<(), Error> {
        let flags = area.vma.flags;
        if flags.contains(VmFlags::SEALED) {
            return Err(Error::Sealed);
        }
        let grows = request.new_len > request.old_len;
        if !grows && request.new_addr().is_none() {
            return Ok(());
        }
        if request.old_len == 0 && !flags.intersects(VmFlags::SHARED | VmFlags::MAYSHARE) {
            return Err(Error::WrongKind);
        }
        let fixed_size = flags.intersects(VmFlags::DONTEXPAND | VmFlags::PFNMAP);
        if request.dont_unmap.is_some() && fixed_size {
            return Err(Error::WrongKind);
        }
        // A move that shrinks unmaps the tail first, so only the rest must be within one VMA.
        if request.old_len.min(request.new_len) > area.end - request.addr {
            return Err(Error::NotOneVma);
        }
        if request.old_len == request.new_len {
            return Ok(());
        }
        let pgoff = area.vma.offset_at(request.addr);
        pgoff.checked_add(pages(request.new_len)).ok_or(Error::BadRange)?;
        if fixed_size {
            return Err(Error::NotOneVma);
        }
        if grows {
            self.may_lock_more(flags, request.new_len - request.old_len)?;
            self.may_expand(flags, request.new_len - request.old_len, 0)?;
        }
        Ok(())
    }

    /// Moves to a given address (FIXED) or to a free one (DONTUNMAP).
    fn remap_to(&mut self, mut request: RemapRequest, shrinks: bool) -> Result<usize, Error> {
        if let Some(to) = request.fixed {
            self.unmap(to, to + request.new_len)?;
        }
        if shrinks {
            self.shrink(&request)?;
            request.old_len = request.new_len;
        }
        let area = self.vmas.covering(request.addr).ok_or(Error::NotOneVma)?;
        if request.dont_unmap.is_some() {
            self.may_expand(area.vma.flags, request.old_len, 0)?;
        }
        let to = self.place_moved(&request, &area)?;
        self.move_vma(&request, area, to)
    }

    /// Unmaps the end of the old range, whatever is mapped there.
    fn shrink(&mut self, request: &RemapRequest) -> Result<(), Error> {
        let old_end = request.addr.checked_add(request.old_len).ok_or(Error::BadRange)?;
        if old_end > self.vmas.profile.task_size {
            return Err(Error::BadRange);
        }
        self.unmap(request.addr + request.new_len, old_end)
    }

    fn expand(&mut self, request: RemapRequest, area: Area<F>) -> Result<usize, Error> {
        let delta = request.new_len - request.old_len;
        let locked = area.vma.flags.contains(VmFlags::LOCKED);
        let old_end = request.addr + request.old_len;
        if old_end == area.end && self.is_free_above(area.end, delta) {
            let new_end = area.end + delta;
            let right = self.vmas.look_at(new_end);
            // Linux does not ask here whether the VMA came by a fork (rule 12).
            let anon = area.vma.anon.get().not_inherited();
            let new =
                anon.map(|anon| Vma { anon: AnonSlot::filled(anon), ..Vma::clone(&area.vma) });
            let new = new.as_ref().unwrap_or(&area.vma);
            let grown = self.merge_new(area.end, new_end, new, right)?;
            let (grown, taken) = grown.ok_or(Error::WrongKind)?;
            let plan = StepPlan::change(grown.into(), taken, Work::Nothing);
            self.apply(plan.enters(old_end..new_end, false))?;
            if locked {
                self.populate(old_end, new_end);
            }
            return Ok(request.addr);
        }
        if !request.may_move {
            return Err(Error::NoSpace);
        }
        let to = self.place_moved(&request, &area)?;
        self.move_vma(&request, area, to)
    }

    fn is_free_above(&self, end: usize, delta: usize) -> bool {
        end.checked_add(delta).is_some_and(|new_end| {
            new_end <= self.vmas.profile.task_size
                && self.vmas.at_or_after(end).is_none_or(|next| next.start >= new_end)
        })
    }

    fn place_moved(&mut self, request: &RemapRequest, area: &Area<F>) -> Result<usize, Error> {
        let mut flags = MapFlags::empty();
        if request.fixed.is_some() {
            flags |= MapFlags::FIXED;
        }
        if area.vma.flags.contains(VmFlags::MAYSHARE) {
            flags |= MapFlags::SHARED;
        }
        let wanted = WantedPlace {
            hint: request.new_addr().unwrap_or(0),
            len: request.new_len,
            pgoff: area.vma.offset_at(request.addr),
            flags,
            file: area.vma.file.as_ref(),
        };
        Ok(match self.place(wanted) {
            // A range that waits may be in the way.
            Err(Error::NoSpace) => {
                self.end_wait()?;
                self.place(wanted)?.addr
            }
            found => found?.addr,
        })
    }

    /// Stores the VMA at its new address and removes it from the old one.
    fn move_vma(
        &mut self,
        request: &RemapRequest,
        area: Area<F>,
        to: usize,
    ) -> Result<usize, Error> {
        let (old, old_end) = (request.addr, request.addr + request.old_len);
        let unmaps = request.dont_unmap.is_none() && request.old_len > 0;
        if unmaps && area.start < old && area.end > old_end {
            self.room_for(2)?;
        } else {
            self.room_for(1)?;
        }
        let pgoff = area.vma.offset_at(old);
        let mut moved = Vma::clone(&area.vma);
        if moved.is_anonymous() && !moved.is_faulted() {
            moved.set_offset(to, pages(to));
        } else {
            moved.set_offset(to, pgoff);
        }
        let moves = moved.flags;
        let locked = moves.contains(VmFlags::LOCKED);
        let to_end = to + request.new_len;
        let (mut new, taken) = self.placed(to, to_end, moved, self.vmas.look_at(to_end))?;
        self.forget_uffd(&mut new)?;
        let left_behind = match request.dont_unmap {
            Some(_) => Some(TreeWrite::from(left_behind(request, &area, &new)?)),
            None => unmaps.then(|| TreeWrite::hole(old, old_end)),
        };
        let plan = match left_behind {
            Some(left_behind) => {
                let accounted = moves.contains(VmFlags::ACCOUNT);
                let less = if request.dont_unmap.is_some() { 0 } else { request.old_len };
                let growth = request.new_len.wrapping_sub(less) as isize;
                StepPlan {
                    stores: StepStores::Move { new, area, left_behind },
                    work: Work::Move { from: old..old_end, to, stays: false },
                    enters: None,
                    growth: if accounted { growth } else { 0 },
                }
            }
            None => StepPlan::change(new.into(), taken, Work::Nothing),
        };
        self.apply(plan.enters(to..to_end, false))?;
        if locked && request.new_len > request.old_len {
            self.populate(to + request.old_len, to + request.new_len);
        }
        Ok(to)
    }
}

/// Whether one call may move this VMA together with others. It must not be registered with a
/// userfaultfd, because its owner would have to be notified in between. And no driver may choose
/// another address for it.
fn moves_with_others<F: MappedFile>(vma: &Vma<F>) -> bool {
    let has_say = |file: &F| file.placement() == Placement::Driver || file.segment_size().is_some();
    vma.uffd.is_none() && !vma.file.as_ref().is_some_and(has_say)
}

/// The old VMA after DONTUNMAP. It is no longer locked. If all of it moved, it has no private
/// pages. If the `new` VMA merged with it, the two are one VMA.
fn left_behind<F: MappedFile>(
    request: &RemapRequest,
    area: &Area<F>,
    new: &Area<F>,
) -> Result<Area<F>, Error> {
    let joined = new.start <= area.start && area.start < new.end;
    let emptied =
        !joined && area.start == request.addr && area.end == request.addr + request.old_len;
    let old = if joined { new } else { area };
    let mut vma = Vma::clone(&old.vma);
    vma.flags -= VmFlags::LOCKED_MASK;
    if emptied {
        vma.anon = AnonSlot::default();
    }
    Ok(Area { start: old.start, end: old.end, vma: RefCounted::new(vma)? })
}
