//! mmap: checks the arguments, computes the flags, chooses the address, and makes one store.

use crate::{
    Area, Error, MapFlags, MapRequest, MappedFile, Placement, RefCounted, VmFlags, Vma,
    anon_vma::AnonSlot,
    host::Host,
    map_request::MapType,
    space::Writer,
    step_plan::StepPlan,
    tree::{Overlap, VmaRef},
    unmapped_area::{Found, WantedPlace, pages},
    vma::{PAGE_SIZE, page_align},
    vma_counts::VmaCounts,
    work::Work,
};

impl<F: MappedFile, R: grace::Reclaim, H: Host<F, R>> Writer<'_, F, R, H> {
    /// The address that [`mmap`](Self::mmap) would choose for this map. Changes nothing.
    pub fn choose_address(&self, request: &MapRequest<F>) -> Result<usize, Error> {
        let len = self.map_len(request)?;
        Ok(self.place(self.wanted(request, len))?.addr)
    }

    /// mmap(2). Returns the address of the map. A fixed map replaces the maps in its range.
    ///
    /// One gap search and one store into the tree. May allocate. All or nothing (I7).
    ///
    /// # Errors
    /// As in the manual page of mmap; [`Error`] lists the causes.
    pub fn mmap(&mut self, request: MapRequest<F>) -> Result<usize, Error> {
        self.mmap_as(request, VmFlags::empty())
    }

    /// mmap of a VMA that lacks the flags `without`.
    pub(crate) fn mmap_as(
        &mut self,
        request: MapRequest<F>,
        without: VmFlags,
    ) -> Result<usize, Error> {
        let len = self.map_len(&request)?;
        if self.count() > self.vmas.profile.max_map_count {
            return Err(Error::TooManyMaps);
        }
        let pkey = self.pkey_of_map(request.prot);
        let Found { addr, next } = match self.place(self.wanted(&request, len)) {
            // A range that waits may be in the way.
            Err(Error::NoSpace) => {
                self.end_wait()?;
                self.place(self.wanted(&request, len))?
            }
            found => found?,
        };
        let end = addr + len;
        if request.flags.contains(MapFlags::FIXED_NOREPLACE)
            && self.vmas.at_or_after(addr).is_some_and(|next| next.start < end)
        {
            return Err(Error::Occupied);
        }
        let flags = self.allowed_flags(&request, len, without, pkey)?;
        let fixed = request.flags.contains(MapFlags::FIXED);
        if self.is_limited()
            && let Err(error) = self.has_room(addr, end, flags, fixed)
        {
            if fixed {
                // Linux has split the VMAs at the edges by then.
                self.split(addr, end)?;
            }
            return Err(error);
        }
        let populate = flags.contains(VmFlags::LOCKED)
            || (request.flags.contains(MapFlags::POPULATE)
                && !request.flags.contains(MapFlags::NONBLOCK));
        let vma = self.new_vma(request, addr, flags);
        if fixed {
            self.map_over(addr, end, vma)?;
        } else {
            let plan = self.plan_in_hole(addr, end, vma, next)?;
            self.apply(plan)?;
        }
        if populate {
            self.populate(addr, end);
        }
        Ok(addr)
    }

    /// The flags of the new VMA, which lacks those of `without`, before its driver may change them.
    ///
    /// # Errors
    /// Those of a map that the program may not make, wherever it lies.
    fn allowed_flags(
        &self,
        request: &MapRequest<F>,
        len: usize,
        without: VmFlags,
        pkey: u8,
    ) -> Result<VmFlags, Error> {
        let mut locked = self.vmas.state.default_flags();
        if request.flags.contains(MapFlags::LOCKED) {
            self.may_lock()?;
            locked |= VmFlags::LOCKED;
        }
        self.may_lock_more(locked - without, len)?;
        // As in Linux, kinds and files are checked last.
        let flags = self.map_flags(request)?.with_pkey(pkey) - without;
        if self.denies_exec(flags, flags) {
            return Err(Error::Access);
        }
        Ok(flags)
    }

    /// The contents of a new map at `addr`.
    fn new_vma(&self, request: MapRequest<F>, addr: usize, flags: VmFlags) -> Vma<F> {
        let private_anonymous = request.file.is_none();
        let more = request.file.as_ref().map_or(VmFlags::empty(), MappedFile::driver_flags);
        let mut vma = match request.file {
            None => Vma::anonymous(flags),
            Some(file) => Vma::of_file(flags, file, addr, pages(request.offset)),
        };
        vma.anon = AnonSlot::empty(self.vmas.state.moment());
        if let Some(chosen) = request.driver_flags {
            vma.flags = chosen;
        }
        vma.flags |= more;
        if private_anonymous {
            debug_assert_eq!(vma.slide, 0, "an anonymous page's offset is its address");
        }
        vma
    }

    /// Stores a fixed map, in the place of the maps in its range.
    fn map_over(&mut self, addr: usize, end: usize, vma: Vma<F>) -> Result<(), Error> {
        let gone = self.clear_way(addr, end)?.gone;
        let (area, taken) = self.mapped(addr, end, vma, self.vmas.look_at(end))?;
        let work = Work::replacing(addr..end, gone);
        let plan = StepPlan::change(area.into(), gone + taken, work).enters(addr..end, true);
        let stored = self.apply(plan);
        if stored == Err(Error::Overcommit) {
            self.split(addr, end)?;
        }
        stored
    }

    /// The step of a map in a free range: its address was chosen, or checked. `next` is what the
    /// search has [found](Found::next).
    fn plan_in_hole(
        &self,
        addr: usize,
        end: usize,
        vma: Vma<F>,
        next: Option<Option<VmaRef<'_, F>>>,
    ) -> Result<StepPlan<F>, Error> {
        let right = match next {
            Some(next) => next.filter(|next| next.start == end),
            None => self.vmas.look_at(end),
        };
        let (area, taken) = self.mapped(addr, end, vma, right)?;
        Ok(StepPlan::change(area.into(), taken, Work::Nothing).enters(addr..end, true))
    }

    /// Whether the limits allow a new VMA over `start..end`, in the place of what a `fixed` map
    /// replaces.
    fn has_room(&self, start: usize, end: usize, flags: VmFlags, fixed: bool) -> Result<(), Error> {
        let replaced = if fixed { self.vmas.overlap(start, end) } else { Overlap::default() };
        // The call fails for that reason.
        if replaced.sealed {
            return Ok(());
        }
        let gone = replaced.gone.sizes;
        self.may_expand(flags, end - start, gone.total().unsigned_abs())
    }

    /// Splits the VMAs that a range cuts.
    fn split(&mut self, start: usize, end: usize) -> Result<(), Error> {
        for at in [start, end] {
            let Some(area) = self.vmas.covering(at).filter(|area| area.start < at) else {
                continue;
            };
            self.room_for(1)?;
            self.vmas.own_anon(at)?;
            // Both parts are this object from now on.
            let area = self.vmas.covering(at).unwrap_or(area);
            area.vma.anon.close();
            self.vmas.store(area.start, at, area.vma)?;
        }
        Ok(())
    }

    /// The area that will contain a new map, as [`placed`](Self::placed), with two rules of mmap.
    fn mapped(
        &self,
        start: usize,
        end: usize,
        mut vma: Vma<F>,
        right: Option<VmaRef<'_, F>>,
    ) -> Result<(Area<F>, VmaCounts), Error> {
        let never_locked = VmFlags::SPECIAL | VmFlags::HUGETLB | VmFlags::DROPPABLE;
        if vma.flags.intersects(never_locked) && vma.flags.intersects(VmFlags::LOCKED_MASK) {
            // Linux clears these flags after merging. No neighbour of this kind is locked, so the
            // VMA joins nothing.
            vma.flags -= VmFlags::LOCKED_MASK;
            let vma = RefCounted::new(vma)?;
            return Ok((Area { start, end, vma }, VmaCounts::default()));
        }
        let driver = |file: &F| file.placement() == Placement::Driver;
        let mergeable = self.vmas.state.merge_any() && vma.flags.contains(VmFlags::MERGEABLE);
        if mergeable && vma.file.as_ref().is_some_and(driver) {
            // The driver might forbid MERGEABLE. So the VMA gets it only if it joins no neighbour.
            let flags = vma.flags - VmFlags::MERGEABLE;
            let unmarked = Vma { flags, ..Vma::clone(&vma) };
            if let Some(merged) = self.merge_new(start, end, &unmarked, right)? {
                return Ok(merged);
            }
            let vma = RefCounted::new(vma)?;
            return Ok((Area { start, end, vma }, VmaCounts::default()));
        }
        self.placed(start, end, vma, right)
    }

    /// Lets a fault fill the anon_vma of a changed VMA that has none.
    pub(crate) fn open(&self, vma: &mut Vma<F>) {
        vma.anon.open(self.vmas.state.moment());
    }

    fn map_len(&self, request: &MapRequest<F>) -> Result<usize, Error> {
        if request.len == 0 {
            return Err(Error::BadRange);
        }
        if !request.offset.is_multiple_of(PAGE_SIZE) {
            return Err(Error::Unaligned);
        }
        let unit = match request.file.as_ref().map(MappedFile::placement) {
            Some(Placement::HugeOnly(size)) => size,
            _ => PAGE_SIZE,
        };
        let len = request.len.checked_next_multiple_of(unit).ok_or(Error::TooLong)?;
        pages(request.offset).checked_add(pages(len)).ok_or(Error::OffsetOverflow)?;
        Ok(len)
    }

    /// The address that mmap would choose for a private anonymous map of `len` bytes. Changes
    /// nothing.
    ///
    /// # Errors
    /// As [`mmap`](Self::mmap) without an address.
    pub fn likely_place(&self, len: usize) -> Result<usize, Error> {
        let flags = MapFlags::PRIVATE | MapFlags::ANONYMOUS;
        let len = len.checked_next_multiple_of(PAGE_SIZE).ok_or(Error::NoSpace)?;
        Ok(self.place(WantedPlace { hint: 0, len, pgoff: 0, flags, file: None })?.addr)
    }

    fn wanted<'f>(&self, request: &'f MapRequest<F>, len: usize) -> WantedPlace<'f, F> {
        let mut flags = request.flags;
        if flags.contains(MapFlags::FIXED_NOREPLACE) {
            flags |= MapFlags::FIXED;
        }
        let hint = if flags.contains(MapFlags::FIXED) {
            request.addr
        } else {
            self.round_hint(request.addr)
        };
        WantedPlace { hint, len, pgoff: pages(request.offset), flags, file: request.file.as_ref() }
    }

    /// The flags that the request and its file ask for.
    fn map_flags(&self, request: &MapRequest<F>) -> Result<VmFlags, Error> {
        let kind = request.flags.map_type().ok_or(Error::BadFlags)?;
        let mut prot = VmFlags::from_prot(request.prot);
        let noexec = request.file.as_ref().is_some_and(MappedFile::noexec);
        if self.vmas.state.read_implies_exec() && prot.contains(VmFlags::READ) && !noexec {
            prot |= VmFlags::EXEC;
        }
        let mut flags = prot
            | VmFlags::MAYREAD
            | VmFlags::MAYWRITE
            | VmFlags::MAYEXEC
            | self.vmas.state.default_flags();
        for (asked, flag) in [
            (MapFlags::GROWSDOWN, VmFlags::GROWSDOWN),
            (MapFlags::LOCKED, VmFlags::LOCKED),
            (MapFlags::STACK, VmFlags::NOHUGEPAGE),
            (MapFlags::SYNC, VmFlags::SYNC),
        ] {
            if request.flags.contains(asked) {
                flags |= flag;
            }
        }
        let grows = flags.contains(VmFlags::GROWSDOWN);
        match (kind, &request.file) {
            (MapType::Droppable, Some(_)) => return Err(Error::BadFlags),
            (MapType::Droppable, None) if grows || request.flags.contains(MapFlags::LOCKED) => {
                return Err(Error::BadFlags);
            }
            (MapType::Droppable, None) => {
                flags |= VmFlags::DROPPABLE
                    | VmFlags::NORESERVE
                    | VmFlags::WIPEONFORK
                    | VmFlags::DONTDUMP;
            }
            (MapType::Private, None) => {}
            (MapType::Shared, None) => return Err(Error::BadFlags),
            (_, Some(file)) => {
                if grows {
                    return Err(Error::BadFlags);
                }
                if kind == MapType::Shared {
                    flags = share(flags, file)?;
                }
                if file.noexec() {
                    if flags.contains(VmFlags::EXEC) {
                        return Err(Error::NoExec);
                    }
                    flags -= VmFlags::MAYEXEC;
                }
                if let Placement::HugeOnly(_) = file.placement() {
                    flags |= VmFlags::HUGETLB | VmFlags::DONTEXPAND;
                }
            }
        }
        if request.flags.contains(MapFlags::NORESERVE) && self.vmas.profile.honours_noreserve {
            flags |= VmFlags::NORESERVE;
        }
        Ok(self.mergeable(accounted(flags)))
    }

    /// Adds MERGEABLE if the address space has PR_SET_MEMORY_MERGE and the VMA qualifies.
    pub(crate) fn mergeable(&self, flags: VmFlags) -> VmFlags {
        if self.vmas.state.merge_any() && can_be_mergeable(flags) {
            flags | VmFlags::MERGEABLE
        } else {
            flags
        }
    }
}

/// The flags of a shared map of `mapped_file`.
fn share<F: MappedFile>(flags: VmFlags, file: &F) -> Result<VmFlags, Error> {
    let shared = flags | VmFlags::SHARED | VmFlags::MAYSHARE;
    if file.writable() && file.is_write_sealed() {
        match flags.contains(VmFlags::WRITE) {
            true => Err(Error::Sealed),
            false => Ok(shared - VmFlags::MAYWRITE),
        }
    } else if file.writable() {
        Ok(shared)
    } else if flags.contains(VmFlags::WRITE) {
        Err(Error::Access)
    } else {
        Ok(shared - VmFlags::MAYWRITE - VmFlags::SHARED)
    }
}

/// A private writable map counts against the commit limit, unless it is exempt.
pub(crate) fn accounted(flags: VmFlags) -> VmFlags {
    let decides = VmFlags::NORESERVE | VmFlags::SHARED | VmFlags::WRITE | VmFlags::HUGETLB;
    if flags & decides == VmFlags::WRITE { flags | VmFlags::ACCOUNT } else { flags }
}

/// Whether KSM may merge equal pages of such a VMA.
pub(crate) fn can_be_mergeable(flags: VmFlags) -> bool {
    !flags.intersects(
        VmFlags::SHARED
            | VmFlags::MAYSHARE
            | VmFlags::SPECIAL
            | VmFlags::HUGETLB
            | VmFlags::DROPPABLE,
    )
}

/// The page-aligned end of a range, which may be empty. `start` must be aligned.
pub(crate) fn range_end(start: usize, len: usize) -> Result<usize, Error> {
    if !start.is_multiple_of(PAGE_SIZE) {
        return Err(Error::Unaligned);
    }
    page_align(len).and_then(|len| start.checked_add(len)).ok_or(Error::BadRange)
}
