//! `vmap` and `vunmap`, and maps of physical ranges.

use crate::area::{Made, State, What};
use crate::check;
use crate::error::Error;
use crate::vmap::{PAGE, Vmap};
use core::panic::Location;
use grace::Concurrent;
use machine::{Frame, Machine, PageSize, PhysAddr, PhysRange, VirtAddr, VirtRange};
use paging::{Attrs, Cache, Format};

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// Maps frames of the caller so that they follow one another, for as long as he likes. Behind
    /// them is a guard page, if the space has such.
    ///
    /// Safe, as nothing has a pointer to the fresh address: code that uses it answers for the
    /// frames, which must not have been freed meanwhile, nor be used by others in a way that
    /// conflicts.
    ///
    /// The frames stay the caller's. As long as they are mapped, and for a moment longer,
    /// [`vread`](Vmap::vread) and [`vwrite`](Vmap::vwrite) may access them: so they are given back
    /// with [`release`](machine::FrameSource::release), which waits for that.
    ///
    /// Cost: a heap block, two writes to the tree of this CPU's zone with its lock, and
    /// [`PageTables::map`](paging::PageTables::map). Not for interrupts.
    ///
    /// # Errors
    /// [`Error::ZeroSize`], [`Error::TooLarge`], [`Error::NoSpace`], [`Error::OutOfMemory`],
    /// [`Error::Frames`], [`Error::Tables`]; [`Error::UserAccess`], [`Error::WritableCode`],
    /// [`Error::MemoryType`]. Nothing is mapped then, and page tables are given back, but for those
    /// that other areas may need.
    #[track_caller]
    pub fn vmap(&self, frames: &[Frame], attrs: Attrs) -> Result<VirtAddr, Error> {
        self.vmap_guarded(frames, attrs, self.options.guard)
    }

    /// As [`vmap`](Vmap::vmap), with a guard page or without.
    ///
    /// # Errors
    /// As for [`vmap`](Vmap::vmap).
    #[track_caller]
    pub fn vmap_guarded(
        &self,
        frames: &[Frame],
        attrs: Attrs,
        guard: bool,
    ) -> Result<VirtAddr, Error> {
        check::frames(self.machine(), frames, attrs)?;
        self.vmap_checked(frames, attrs, guard, Location::caller())
    }

    /// As [`vmap_guarded`](Vmap::vmap_guarded), for pages that are writable and executable, and for
    /// RAM that is not mapped write-back.
    ///
    /// # Errors
    /// As for [`vmap`](Vmap::vmap), without [`Error::WritableCode`] and [`Error::MemoryType`].
    ///
    /// # Safety
    /// As long as the frames are mapped:
    /// - every other mapping of them has the same memory type, or is not used, not even
    ///   speculatively; whoever changed the type of the other mappings has called
    ///   [`vm_unmap_aliases`](Vmap::vm_unmap_aliases) afterwards;
    /// - what is executable holds code that the kernel may run, after every write to it.
    #[track_caller]
    pub unsafe fn vmap_unchecked(
        &self,
        frames: &[Frame],
        attrs: Attrs,
        guard: bool,
    ) -> Result<VirtAddr, Error> {
        check::kernel_only(attrs)?;
        self.vmap_checked(frames, attrs, guard, Location::caller())
    }

    fn vmap_checked(
        &self,
        frames: &[Frame],
        attrs: Attrs,
        guard: bool,
        caller: &'static Location<'static>,
    ) -> Result<VirtAddr, Error> {
        let bytes = frames.len() as u64 * PAGE;
        let what = What::new(Made::Vmap, frames.len(), bytes, caller);
        self.make(what, guard, PageSize::Size4K, |range| self.map_frames(range, frames, attrs))
    }

    /// Unmaps what [`vmap`](Vmap::vmap) mapped, on any CPU. The entries are cleared when it
    /// returns; nobody is interrupted.
    ///
    /// Cost: a lookup, [`PageTables::unmap_lazily`](paging::PageTables::unmap_lazily), and the lock
    /// of the area's zone. Not for interrupts.
    ///
    /// # Errors
    /// [`Error::NotMapped`], [`Error::Twice`], [`Error::NotTheStart`], [`Error::WrongKind`]: what
    /// is mapped there stays as it is.
    ///
    /// # Safety
    /// No code uses the addresses any more, on any CPU.
    pub unsafe fn vunmap(&self, at: VirtAddr) -> Result<(), Error> {
        let area = self.claim(at, |what| what.is(Made::Vmap), State::Unmapping)?;
        let done = self.unmap_claimed(area);
        self.free_pending();
        done
    }

    /// Maps a physical range, a device's for instance, in the largest pages that fit, if there are
    /// addresses for that, and returns the address of its first byte. The range may begin and end
    /// anywhere: all frames that it touches are mapped.
    ///
    /// Cost as for [`vmap`](Vmap::vmap); where small pages were mapped in the place of a large one
    /// before, a broadcast flush. Not for interrupts. It looks at the state of each frame that the
    /// frame source covers.
    ///
    /// # Errors
    /// [`Error::NotPhysical`]; [`Error::Ram`] if the frame source has memory in the range, which
    /// would then have two memory types; as for [`vmap`](Vmap::vmap). Memory that the frame source
    /// does not know, such as that of firmware, is not noticed.
    #[track_caller]
    pub fn ioremap(&self, range: PhysRange, cache: Cache) -> Result<VirtAddr, Error> {
        let attrs = Attrs { cache, ..Attrs::KERNEL_RW };
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
        let align = PageSize::ALL.into_iter().rev().find(fits).unwrap_or_default();
        let bytes = self.mapped_bytes(usize::try_from(pages).unwrap_or(usize::MAX))?;
        check::device(self.machine(), first, bytes / PAGE)?;
        let pages = (bytes / PAGE) as usize;
        let what = What::new(Made::Ioremap, pages, range.len(), Location::caller());
        let what = What { phys: Some(range.start()), ..what };
        let guard = self.options.guard;
        let at = self.make(what, guard, align, |range| self.map_large(range, first, attrs))?;
        at.checked_add(offset).ok_or(wrong)
    }

    /// Unmaps what [`ioremap`](Vmap::ioremap) mapped; the address may lie anywhere in its first
    /// page.
    ///
    /// # Errors
    /// As for [`vunmap`](Vmap::vunmap).
    ///
    /// # Safety
    /// As for [`vunmap`](Vmap::vunmap).
    pub unsafe fn iounmap(&self, at: VirtAddr) -> Result<(), Error> {
        let page = at.align_down(PageSize::Size4K);
        let area = self.claim(page, |what| what.is(Made::Ioremap), State::Unmapping)?;
        self.unmap_claimed(area)
    }

    /// Maps frames that follow one another, in large pages where they fit. Where small ones were
    /// before, an empty table is in the way: it is taken out, at the price of a flush.
    pub(crate) fn map_large(
        &self,
        range: VirtRange,
        first: Frame,
        attrs: Attrs,
    ) -> Result<(), Error> {
        for again in [false, true] {
            // SAFETY: the area is being made, so its addresses are ours, and no flush is pending
            // for them (I4). The frames are the caller's to map.
            let mapped = unsafe { self.tables.map(range, first, attrs) };
            let Err(failed) = mapped else { return Ok(()) };
            let error = failed.error;
            // Something may have been mapped for a moment, and other pages will be.
            failed.owed.flush();
            if again || !matches!(error, paging::Error::EmptyTable(_)) {
                return Err(error.into());
            }
            self.clear_way(range)?;
        }
        Ok(())
    }

    /// Takes empty tables out that are in the way of large pages in a range of the caller's. One
    /// broadcast, if there were any.
    pub(crate) fn clear_way(&self, range: VirtRange) -> Result<(), Error> {
        // SAFETY: an area that is being made: its addresses are ours, and nobody has a table of it.
        match unsafe { self.tables.prune(range) } {
            Ok(owed) => {
                owed.flush();
                Ok(())
            }
            Err(failed) => Err(failed.error.into()),
        }
    }

    /// The frame that is mapped at an address of the space. Takes no lock; any context. A walk.
    pub fn vmalloc_to_page(&self, at: VirtAddr) -> Option<Frame> {
        if !self.space.contains(at) {
            return None;
        }
        self.tables.walk(&G::pin()).get(at)?.frame_of(at)
    }

    /// The physical address that an address of the space translates to. As
    /// [`vmalloc_to_page`](Vmap::vmalloc_to_page).
    pub fn vmalloc_to_phys(&self, at: VirtAddr) -> Option<PhysAddr> {
        self.vmalloc_to_page(at)?.start().checked_add(at.offset_in(PageSize::Size4K))
    }
}
