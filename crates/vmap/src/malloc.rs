//! `vmalloc` and its variants: areas with memory of their own.
//!
//! Frames are allocated and freed in batches on the stack. An area keeps no list of its frames:
//! they are in the page tables.
//!
//! # Large requests
//! A large request is compared with the number of free frames before it takes any, and again after
//! every 16 MiB, because other calls take frames, too. It must leave a fraction of them free. So a
//! request for more memory than there is fails at once, and does not make other calls run out of
//! memory meanwhile.
//!
//! A small request takes its frames, and gives them back if there are not enough. It is not
//! compared, because the comparison loads a line per CPU.

use crate::PAGE;
use crate::area::{AreaRecord, AreaState, Made, Ours};
use crate::error::Error;
use crate::request::{Allocation, Contents, Request};
use crate::space::Vmap;
use crate::zone::Span;
use core::panic::Location;
use grace::Concurrent;
use machine::{ENTRIES, Frame, Machine, NodeId, NodePolicy, Owner, PageSize, VirtAddr, VirtRange};
use paging::{Attrs, Format};

/// Frames that are allocated or freed in one batch.
const BATCH: usize = 64;
/// A request is large from this many pages on, and from `LARGE_PER_CPU` pages per CPU on. Only
/// large requests are compared with the number of free frames.
const LARGE: u64 = 512;
const LARGE_PER_CPU: u64 = 16;
/// A large request must leave this fraction (1/32) of the free frames.
const LEFT: u64 = 32;
/// After this many bytes, a large request is compared with the free frames again.
const LOOK_AGAIN: u64 = 16 << 20;

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// Allocates memory at contiguous virtual addresses. Its contents are undefined.
    ///
    /// Cost: as [`vmap`](Vmap::vmap), plus the allocation of the frames. Not in interrupt handlers.
    ///
    /// # Errors
    /// [`Error::ZeroSize`], [`Error::TooLarge`], [`Error::NoSpace`], [`Error::OutOfMemory`],
    /// [`Error::Frames`], [`Error::FewFrames`], [`Error::Tables`]; depending on the attributes of a
    /// request [`Error::UserAccess`], [`Error::WritableCode`], [`Error::MemoryType`]. All memory is
    /// given back then, page-table pages included, except those that other areas may need.
    #[track_caller]
    pub fn vmalloc(&self, bytes: u64) -> Result<VirtAddr, Error> {
        self.create(&Request::memory(bytes))
    }

    /// As [`vmalloc`](Vmap::vmalloc), zeroed.
    #[track_caller]
    pub fn vzalloc(&self, bytes: u64) -> Result<VirtAddr, Error> {
        self.create(&Request::new(Contents::Memory(Allocation {
            zero: true,
            ..Allocation::new(bytes)
        })))
    }

    /// As [`vmalloc`](Vmap::vmalloc), with 2 MiB pages where they fit and memory is available. If
    /// small pages were mapped before at the place of a large one, broadcasts one flush.
    #[track_caller]
    pub fn vmalloc_huge(&self, bytes: u64) -> Result<VirtAddr, Error> {
        self.create(&Request::new(Contents::Memory(Allocation {
            huge: true,
            ..Allocation::new(bytes)
        })))
    }

    /// As [`vmalloc`](Vmap::vmalloc), from this node, or from another if it is full.
    #[track_caller]
    pub fn vmalloc_node(&self, bytes: u64, node: NodeId) -> Result<VirtAddr, Error> {
        self.create(&Request::new(Contents::Memory(Allocation {
            place: NodePolicy::Prefer(node),
            ..Allocation::new(bytes)
        })))
    }

    /// Makes an area with memory of its own, whose attributes have been checked.
    pub(crate) fn create_memory(
        &self,
        memory: Allocation,
        request: &Request<'_>,
        caller: &'static Location<'static>,
    ) -> Result<VirtAddr, Error> {
        if memory.bytes > self.space.len() {
            return Err(Error::TooLarge(memory.bytes));
        }
        let pages = memory.bytes.div_ceil(PAGE) as usize;
        self.check_zones(Span::new(pages as u64 * PAGE, self.guard_of(request)).bytes)?;
        self.check_free_frames(pages as u64)?;
        let large = PageSize::Size2M;
        let huge = memory.huge
            && pages as u64 >= large.frames()
            && self.tables.paging().largest() >= large;
        let align = if huge { large } else { PageSize::Size4K };
        let what = AreaRecord::new(Made::Vmalloc, pages, memory.bytes, caller);
        self.make(what, request, PageSize::Size4K..=align, |range| {
            // Large pages are only used if the area begins at their alignment, so that `vrealloc`
            // can move it as it is.
            let huge = huge && range.start().is_aligned(large);
            if huge {
                self.clear_way(range)?;
            }
            self.populate(range, &Allocation { huge, ..memory })
        })
    }

    /// Refuses a large request that exceeds the free frames.
    pub(crate) fn check_free_frames(&self, pages: u64) -> Result<(), Error> {
        let machine = self.machine();
        if pages < LARGE.max(LARGE_PER_CPU * machine.count() as u64) {
            return Ok(());
        }
        let tables = pages.div_ceil(ENTRIES as u64) + u64::from(F::LEVELS);
        let wanted = pages + tables;
        let free = || machine.free_frames() as u64;
        let suffice = |free: u64| wanted <= free - free / LEFT;
        if suffice(free()) {
            return Ok(());
        }
        // Areas that were freed in interrupts still hold frames.
        self.free_pending();
        let free = free();
        if suffice(free) { Ok(()) } else { Err(Error::FewFrames { wanted, free }) }
    }

    /// Allocates and maps memory for a range: all of it, or none.
    pub(crate) fn populate(&self, range: VirtRange, memory: &Allocation) -> Result<(), Error> {
        let attrs = memory.attrs.unwrap_or(self.options.attrs);
        let mut at = range.start();
        while let Some(rest) = rest_of(range, at) {
            match self.populate_next(rest, attrs, memory) {
                Ok(bytes) => match at.checked_add(bytes) {
                    Some(next) => at = next,
                    None => break,
                },
                Err(error) => {
                    if let Some(mapped) = VirtRange::between(range.start(), at) {
                        self.depopulate(mapped);
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Maps the next large page or the next batch of small pages. Returns the mapped bytes.
    fn populate_next(
        &self,
        rest: VirtRange,
        attrs: Attrs,
        memory: &Allocation,
    ) -> Result<u64, Error> {
        let (at, large) = (rest.start(), PageSize::Size2M);
        if at.get().is_multiple_of(LOOK_AGAIN) {
            self.check_free_frames(rest.len() / PAGE)?;
        }
        if memory.huge
            && at.is_aligned(large)
            && rest.len() >= large.bytes()
            && let Some(bytes) = self.populate_large(at, attrs, memory)?
        {
            return Ok(bytes);
        }
        self.populate_some(rest, attrs, memory)
    }

    /// Maps one large page. `None` if there is no memory for it.
    fn populate_large(
        &self,
        at: VirtAddr,
        attrs: Attrs,
        memory: &Allocation,
    ) -> Result<Option<u64>, Error> {
        let size = PageSize::Size2M;
        let Ok(frame) = self.machine().alloc(size.order(), memory.place) else { return Ok(None) };
        self.prepare(frame, size, memory.zero);
        let range = VirtRange::new(at, size.bytes()).ok_or(Error::TooLarge(size.bytes()))?;
        match self.map_large(range, frame, attrs) {
            Ok(()) => Ok(Some(size.bytes())),
            Err(error) => {
                self.release(&[frame]);
                Err(error)
            }
        }
    }

    /// Maps the next small pages, up to the next possible large page. Returns the mapped bytes.
    fn populate_some(
        &self,
        rest: VirtRange,
        attrs: Attrs,
        memory: &Allocation,
    ) -> Result<u64, Error> {
        let mut frames = [Frame::default(); BATCH];
        let wanted = pages_at_once(rest);
        for len in 0..wanted {
            let mut frame = self.machine().alloc(0, memory.place);
            if frame.is_err() {
                // Areas that were freed in interrupts still hold frames.
                self.free_pending();
                frame = self.machine().alloc(0, memory.place);
            }
            match frame {
                Ok(frame) => {
                    self.prepare(frame, PageSize::Size4K, memory.zero);
                    frames[len] = frame;
                }
                Err(error) => {
                    self.release(&frames[..len]);
                    return Err(error.into());
                }
            }
        }
        let range = VirtRange::new(rest.start(), wanted as u64 * PAGE)
            .ok_or(Error::TooLarge(rest.len()))?;
        if let Err(error) = self.map_frames(range, &frames[..wanted], attrs) {
            self.release(&frames[..wanted]);
            return Err(error);
        }
        Ok(range.len())
    }

    fn prepare(&self, frame: Frame, size: PageSize, zero: bool) {
        let machine = self.machine();
        if zero && let Some(memory) = machine.frame_ptr(frame) {
            // SAFETY: a block of this size that this call has just allocated, so no other code has
            // it.
            unsafe { memory.write_bytes(0, size.bytes() as usize) };
        }
        // SAFETY: the frame is ours, and the kernel owns it.
        let _ = unsafe { machine.set_owner(frame, Owner::Kernel) };
    }

    fn release(&self, frames: &[Frame]) {
        for frame in frames {
            // SAFETY: this area allocated each frame, and none is mapped any more. A stale
            // translation is not used, because its address has no user. The call cannot fail for an
            // allocated frame.
            let released = unsafe { self.machine().release(*frame) };
            debug_assert!(released.is_ok(), "{released:?}");
        }
    }

    /// Unmaps and frees memory of an area, in batches.
    pub(crate) fn depopulate(&self, range: VirtRange) {
        let mut at = range.start();
        while let Some(rest) = rest_of(range, at) {
            let bytes = pages_at_once(rest) as u64 * PAGE;
            // The size of the first page, if it is large.
            let page = if at.is_aligned(PageSize::Size2M) { self.page_size(at) } else { PAGE };
            let bytes = bytes.max(page);
            let Some(some) = VirtRange::new(at, bytes) else { break };
            let mut frames = [Frame::default(); BATCH];
            let mut len = 0;
            let each = |frame, _| {
                if let Some(slot) = frames.get_mut(len) {
                    *slot = frame;
                    len += 1;
                }
            };
            // SAFETY: the addresses are not reused before the end of a TLB grace period that begins
            // from now on. The frames may be reused earlier: no code uses the addresses until then.
            // If the tables are corrupted, the call leaves them alone.
            let gone = unsafe { self.tables.unmap_lazily(some, each) };
            debug_assert!(gone.is_ok(), "{gone:?}");
            self.release(&frames[..len]);
            match at.checked_add(bytes) {
                Some(next) => at = next,
                None => break,
            }
        }
    }

    /// The size of the page that contains `at`.
    pub(crate) fn page_size(&self, at: VirtAddr) -> u64 {
        self.tables.walk(&G::pin()).get(at).map_or(PAGE, |page| page.size.bytes())
    }

    /// Frees memory from [`vmalloc`](Vmap::vmalloc) and its variants, on any CPU. Its frames are
    /// free when this returns, except those that a [`vread`](Vmap::vread) has pinned for a moment.
    /// Sends no IPI.
    ///
    /// Cost: as [`vunmap`](Vmap::vunmap), plus freeing the frames. Not in interrupt handlers: see
    /// [`vfree_atomic`](Vmap::vfree_atomic).
    ///
    /// # Errors
    /// [`Error::NotMapped`], [`Error::Twice`], [`Error::NotTheStart`], [`Error::WrongKind`]: the
    /// mappings at that address stay as they are.
    ///
    /// # Safety
    /// No code uses the memory any more.
    pub unsafe fn vfree(&self, at: VirtAddr) -> Result<(), Error> {
        self.free_claimed(self.claim(at, is_vmalloc, AreaState::Unmapping)?);
        self.free_pending();
        Ok(())
    }

    /// As [`vfree`](Vmap::vfree), for any context, interrupt handlers included. The memory is freed
    /// when this CPU next calls [`vfree`](Vmap::vfree), [`vunmap`](Vmap::vunmap) or
    /// [`poll`](Vmap::poll), or when it lacks memory or space.
    ///
    /// Cost: a tree lookup and one locked instruction. Takes no lock and allocates nothing.
    ///
    /// # Errors
    /// As for [`vfree`](Vmap::vfree).
    ///
    /// # Safety
    /// As for [`vfree`](Vmap::vfree).
    pub unsafe fn vfree_atomic(&self, at: VirtAddr) -> Result<(), Error> {
        let area = self.claim(at, is_vmalloc, AreaState::PendingFree)?;
        self.local.with(|local| local.pending_free.push(area));
        Ok(())
    }

    /// Frees the areas that were freed in interrupts on this CPU.
    pub(crate) fn free_pending(&self) {
        let next = || self.local.with(|local| local.pending_free.pop()).flatten();
        while let Some(area) = next() {
            area.set(AreaState::Unmapping);
            self.free_claimed(area);
        }
    }

    pub(crate) fn free_claimed(&self, area: Ours) {
        if let Some(range) = area.mapped() {
            self.depopulate(range);
        }
        self.put(area);
    }
}

/// Checks that `vmalloc` or a variant made the area.
pub(crate) fn is_vmalloc(what: AreaRecord) -> Result<(), Option<usize>> {
    what.is(Made::Vmalloc)
}

/// The number of pages that are mapped or unmapped in one batch: up to the next possible large
/// page.
fn pages_at_once(rest: VirtRange) -> usize {
    let large = PageSize::Size2M.bytes();
    let to_large = (large - rest.start().offset_in(PageSize::Size2M)) / PAGE;
    (rest.len() / PAGE).min(to_large).min(BATCH as u64) as usize
}

/// The part of a range from an address on; `None` at its end.
pub(crate) fn rest_of(range: VirtRange, at: VirtAddr) -> Option<VirtRange> {
    let done = at.offset_from(range.start())?;
    let left = range.len().checked_sub(done).filter(|left| *left != 0)?;
    VirtRange::new(at, left)
}
