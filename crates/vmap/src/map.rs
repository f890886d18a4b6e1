//! `vmap` and `vunmap`, and mappings of physical ranges.

use crate::PAGE;
use crate::area::{AreaRecord, AreaState, Made};
use crate::check;
use crate::create::SMALL;
use crate::error::Error;
use crate::request::Request;
use crate::space::Vmap;
use core::panic::Location;
use grace::Concurrent;
use machine::{Frame, Machine, PageSize, PhysAddr, PhysRange, VirtAddr, VirtRange};
use paging::{Attrs, Cache, Format, Geometry};

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// Maps the caller's frames at contiguous addresses, for any length of time.
    /// [`create`](Vmap::create) has further demands.
    ///
    /// It is safe because no code may use the address yet: unsafe code that uses it must ensure
    /// that the frames have not been freed, and that no conflicting access exists.
    ///
    /// The caller keeps the frames. While they are mapped, and for a moment longer,
    /// [`vread`](Vmap::vread) and [`vwrite`](Vmap::vwrite) may access them. Therefore free them
    /// with [`release`](machine::FrameSource::release), which waits for such accesses.
    ///
    /// Cost: a heap allocation, two writes to the tree of this CPU's zone under its lock, and
    /// [`PageTables::map`](paging::PageTables::map). Not in interrupt handlers.
    ///
    /// # Errors
    /// [`Error::ZeroSize`], [`Error::TooLarge`], [`Error::NoSpace`], [`Error::OutOfMemory`],
    /// [`Error::Frames`], [`Error::Tables`]; [`Error::UserAccess`], [`Error::WritableCode`],
    /// [`Error::MemoryType`]. Nothing is mapped then, and new page-table pages are given back,
    /// except those that other areas may need.
    #[track_caller]
    pub fn vmap(&self, frames: &[Frame], attrs: Attrs) -> Result<VirtAddr, Error> {
        self.create(&Request::frames(frames, attrs))
    }

    /// Makes an area that maps the caller's frames, which have been checked.
    #[inline]
    pub(crate) fn create_frames(
        &self,
        frames: &[Frame],
        attrs: Attrs,
        request: &Request<'_>,
        caller: &'static Location<'static>,
    ) -> Result<VirtAddr, Error> {
        let bytes = frames.len() as u64 * PAGE;
        let what = AreaRecord::new(Made::Vmap, frames.len(), bytes, caller);
        self.make(what, request, SMALL, |range| self.map_frames(range, frames, attrs))
    }

    /// Unmaps an area that [`vmap`](Vmap::vmap) mapped, on any CPU. The PTEs are cleared when it
    /// returns. Sends no IPI.
    ///
    /// Cost: a tree lookup, [`PageTables::unmap_lazily`](paging::PageTables::unmap_lazily), and the
    /// lock of the area's zone. Not in interrupt handlers.
    ///
    /// # Errors
    /// [`Error::NotMapped`], [`Error::Twice`], [`Error::NotTheStart`], [`Error::WrongKind`]: the
    /// mappings at that address stay as they are.
    ///
    /// # Safety
    /// No code uses the addresses any more, on any CPU.
    pub unsafe fn vunmap(&self, at: VirtAddr) -> Result<(), Error> {
        let area = self.claim(at, |what| what.is(Made::Vmap), AreaState::Unmapping)?;
        let done = self.unmap_claimed(area);
        self.free_pending();
        done
    }

    /// Maps a physical range, for example a device's registers, and returns the address of its
    /// first byte. Uses the largest pages that fit. The range may begin and end anywhere: all
    /// frames that it touches are mapped.
    ///
    /// In a guest whose memory is encrypted, the range is shared with the host
    /// ([`Format::DEVICE`]). Firmware memory that is private to the guest, such as ACPI's tables,
    /// is mapped by [`vmap`](Vmap::vmap).
    ///
    /// Cost: as for [`vmap`](Vmap::vmap), plus one load of the state of each frame that the frame
    /// source covers. If small pages were mapped before at the place of a large one, a broadcast
    /// flush. Not in interrupt handlers.
    ///
    /// # Errors
    /// [`Error::NotPhysical`]; [`Error::Ram`] if the range contains memory of the frame source,
    /// which would then have two memory types; and those of [`vmap`](Vmap::vmap). Memory that the
    /// frame source does not know, such as firmware memory, is not detected.
    #[track_caller]
    pub fn ioremap(&self, range: PhysRange, cache: Cache) -> Result<VirtAddr, Error> {
        self.create(&Request::device(range, cache))
    }

    /// Makes an area that maps a physical range.
    pub(crate) fn create_device(
        &self,
        range: PhysRange,
        cache: Cache,
        request: &Request<'_>,
        caller: &'static Location<'static>,
    ) -> Result<VirtAddr, Error> {
        let flags = Attrs::KERNEL_RW.flags | F::DEVICE;
        let attrs = Attrs { cache, flags, ..Attrs::KERNEL_RW };
        let wrong = Error::NotPhysical(range.start());
        let last = range.last().ok_or(wrong)?;
        if last.get() >> F::PHYSICAL_BITS != 0 {
            return Err(wrong);
        }
        let first = Frame::containing(range.start());
        let offset = range.start().get() % PAGE;
        let pages = Frame::containing(last).number() - first.number() + 1;
        let largest = self.tables.paging().largest();
        let fits =
            |size: &PageSize| *size <= largest && first.is_aligned(*size) && pages >= size.frames();
        let align = F::sizes().find(fits).unwrap_or_default();
        let bytes = self.mapped_bytes(usize::try_from(pages).unwrap_or(usize::MAX))?;
        check::device(self.machine(), first, bytes / PAGE)?;
        let pages = (bytes / PAGE) as usize;
        let what = AreaRecord::new(Made::Ioremap, pages, range.len(), caller);
        let what = AreaRecord { phys: Some(range.start()), ..what };
        let sizes = PageSize::Size4K..=align;
        let at = self.make(what, request, sizes, |range| self.map_large(range, first, attrs))?;
        at.checked_add(offset).ok_or(wrong)
    }

    /// Unmaps an area that [`ioremap`](Vmap::ioremap) mapped. The address may lie anywhere in its
    /// first page.
    ///
    /// # Errors
    /// As for [`vunmap`](Vmap::vunmap).
    ///
    /// # Safety
    /// As for [`vunmap`](Vmap::vunmap).
    pub unsafe fn iounmap(&self, at: VirtAddr) -> Result<(), Error> {
        let page = at.align_down(PageSize::Size4K);
        let area = self.claim(page, |what| what.is(Made::Ioremap), AreaState::Unmapping)?;
        self.unmap_claimed(area)
    }

    /// Maps contiguous frames, in large pages where they fit. If an empty page-table page of
    /// earlier small pages is in the way, removes it, which costs a flush.
    pub(crate) fn map_large(
        &self,
        range: VirtRange,
        first: Frame,
        attrs: Attrs,
    ) -> Result<(), Error> {
        for again in [false, true] {
            // SAFETY: the area is being made, so its addresses are ours, and no flush is pending
            // for them (I4). The caller may map the frames.
            let mapped = unsafe { self.tables.map(range, first, attrs) };
            let Err(failed) = mapped else { return Ok(()) };
            let error = failed.error;
            // Pages may have been mapped for a moment, and the next attempt maps others.
            failed.pending.flush();
            if again || !matches!(error, paging::Error::EmptyTable(_)) {
                return Err(error.into());
            }
            self.clear_way(range)?;
        }
        Ok(())
    }

    /// Removes empty page-table pages that are in the way of large pages, in a range that the
    /// caller owns. One broadcast if there were any.
    pub(crate) fn clear_way(&self, range: VirtRange) -> Result<(), Error> {
        // SAFETY: the area is being made: its addresses are ours, and no other code holds a table
        // of it.
        match unsafe { self.tables.prune(range) } {
            Ok(pending) => {
                pending.flush();
                Ok(())
            }
            Err(failed) => Err(failed.error.into()),
        }
    }

    /// The frame that is mapped at an address of the space. Takes no lock; any context. Cost: a
    /// walk.
    pub fn vmalloc_to_page(&self, at: VirtAddr) -> Option<Frame> {
        if !self.space.contains(at) {
            return None;
        }
        self.tables.walk(&G::pin()).get(at)?.frame_of(at)
    }

    /// The physical address that an address of the space translates to; see
    /// [`vmalloc_to_page`](Vmap::vmalloc_to_page).
    pub fn vmalloc_to_phys(&self, at: VirtAddr) -> Option<PhysAddr> {
        self.vmalloc_to_page(at)?.start().checked_add(at.offset_in(PageSize::Size4K))
    }
}
