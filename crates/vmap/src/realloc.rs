//! `vrealloc`: grows or shrinks memory without copying it.
//!
//! To shrink, it splits the area and frees the second part. To grow, it takes a larger area, maps
//! the same frames there, adds new frames behind them, and then unmaps the old area. No byte is
//! copied. If any step fails, the old area is unchanged.

use crate::PAGE;
use crate::area::{Area, AreaRecord, AreaState, Made, Ours, Record};
use crate::error::Error;
use crate::malloc::{is_vmalloc, rest_of};
use crate::request::{Allocation, Contents, Request};
use crate::space::Vmap;
use crate::zone::Span;
use core::panic::Location;
use grace::Concurrent;
use machine::{Frame, Machine, PageSize, VirtAddr, VirtRange};
use paging::{Attrs, Flags, Format, Mapping};

/// Pages that are mapped a second time in one batch.
const BATCH: usize = 64;

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// Grows or shrinks memory from [`vmalloc`](Vmap::vmalloc) and its variants, and returns its
    /// new address. The contents are preserved up to the smaller of the two sizes. The contents of
    /// added memory are undefined; it gets the attributes of the old last page. A large page at the
    /// new end is kept whole. The area keeps its alignment and its guard pages. To grow, it moves,
    /// even if its request named an address.
    ///
    /// Cost: of the memory that is added or removed; to grow, also two writes of a PTE for each
    /// existing page. Not in interrupt handlers.
    ///
    /// # Errors
    /// Those of [`vmalloc`](Vmap::vmalloc) and of [`vfree`](Vmap::vfree). The memory is unchanged
    /// then, at its old address.
    ///
    /// # Safety
    /// No code uses the memory during the call, nor afterwards the old address or the memory beyond
    /// the new size.
    #[track_caller]
    pub unsafe fn vrealloc(&self, at: VirtAddr, bytes: u64) -> Result<VirtAddr, Error> {
        let caller = Location::caller();
        if bytes == 0 {
            return Err(Error::ZeroSize);
        }
        if bytes > self.space.len() {
            return Err(Error::TooLarge(bytes));
        }
        let area = self.claim(at, is_vmalloc, AreaState::Unmapping)?;
        let done = match (area.mapped(), VirtRange::new(at, bytes.div_ceil(PAGE) * PAGE)) {
            (Some(old), Some(new)) if new.len() > old.len() => self.grow(area, old, bytes, caller),
            (Some(old), Some(new)) => self.shrink(area, old, self.whole_pages(new), bytes, caller),
            _ => Err(Error::TooLarge(bytes)),
        };
        if done.is_err() {
            area.set(AreaState::Live);
        }
        done
    }

    /// Extends a range to the end of the page that contains its last address.
    fn whole_pages(&self, range: VirtRange) -> VirtRange {
        let page = range.last().and_then(|last| self.tables.walk(&G::pin()).get(last));
        let end = page.and_then(|page: Mapping| page.page.checked_add(page.size.bytes()));
        end.and_then(|end| VirtRange::between(range.start(), end)).unwrap_or(range)
    }

    /// Frees the memory behind `kept`.
    fn shrink(
        &self,
        area: Ours,
        old: VirtRange,
        kept: VirtRange,
        bytes: u64,
        caller: &'static Location<'static>,
    ) -> Result<VirtAddr, Error> {
        let at = old.start();
        let Some(gone) = kept.end().and_then(|end| rest_of(old, end)) else {
            area.set_bytes(bytes);
            area.set(AreaState::Live);
            return Ok(at);
        };
        // If the area had a guard page above, the first removed page becomes the new one.
        let AreaRecord { guard, align, .. } = area.what();
        let border = gone.start().checked_add(guard.above()).ok_or(Error::NotMapped(at))?;
        let zone = self.zone_of(at).ok_or(Error::NotMapped(at))?;
        let (front, rest) = (Record::aligned(Area::new(None))?, Record::aligned(Area::new(None))?);
        let (front, rest) = zone.cut(self.machine(), area, border, front, rest)?;
        let what = |range: VirtRange, bytes| {
            AreaRecord::new(Made::Vmalloc, (range.len() / PAGE) as usize, bytes, caller)
        };
        front.prepare(AreaRecord { guard, align, ..what(kept, bytes) });
        rest.prepare(what(gone, gone.len()));
        rest.set(AreaState::Unmapping);
        self.depopulate(gone);
        self.put(rest);
        front.set(AreaState::Live);
        Ok(at)
    }

    /// Maps the same frames in a larger area, and adds more.
    fn grow(
        &self,
        area: Ours,
        old: VirtRange,
        bytes: u64,
        caller: &'static Location<'static>,
    ) -> Result<VirtAddr, Error> {
        let last = old.last().and_then(|last| self.tables.walk(&G::pin()).get(last));
        let attrs = last.map(|page| unmarked(page.attrs));
        let AreaRecord { guard, align, .. } = area.what();
        let pages = bytes.div_ceil(PAGE);
        self.check_zones(Span::new(pages * PAGE, guard).bytes)?;
        self.check_free_frames(pages - old.len() / PAGE)?;
        let memory = Allocation { attrs, ..Allocation::new(bytes) };
        let request = Request::new(Contents::Memory(memory));
        let request = Request { align: 1 << align, guard: Some(guard), ..request };
        // Large pages stay large, so they need an aligned range. One may follow small pages, if
        // there was no memory for large pages at first.
        let large = old.pages(PageSize::Size2M).any(|at| self.page_size(at) > PAGE);
        let size = if large { PageSize::Size2M } else { PageSize::Size4K };
        let what = AreaRecord::new(Made::Vmalloc, bytes.div_ceil(PAGE) as usize, bytes, caller);
        let moved = self.make(what, &request, size..=size, |new| {
            let end = new.start().checked_add(old.len()).ok_or(Error::TooLarge(bytes))?;
            let done = self.map_again(old, new.start()).and_then(|()| match rest_of(new, end) {
                Some(more) => self.populate(more, &memory),
                None => Ok(()),
            });
            if done.is_err()
                && let Some(twice) = VirtRange::between(new.start(), end)
            {
                // The frames still belong to the old area.
                let _ = self.unmap_pages(twice);
            }
            done
        })?;
        // The range is mapped completely and belongs to this call, so this cannot fail.
        let unmapped = self.unmap_pages(old);
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
        self.put(area);
        Ok(moved)
    }

    /// Maps the pages of a range a second time, from `to` on.
    fn map_again(&self, range: VirtRange, to: VirtAddr) -> Result<(), Error> {
        let mut at = range.start();
        while let Some(rest) = rest_of(range, at) {
            let mut frames = [Frame::default(); BATCH];
            let mut len = 0;
            let first = {
                let guard = G::pin();
                let walk = || self.tables.walk(&guard);
                let pages = walk().pages(rest).take(BATCH);
                let first = walk().get(at).ok_or(Error::NotMapped(at))?;
                let alike = |page: &Mapping| {
                    page.size == PageSize::Size4K && unmarked(page.attrs) == unmarked(first.attrs)
                };
                for page in pages.take_while(alike) {
                    frames[len] = page.frame;
                    len += 1;
                }
                first
            };
            let bytes = if len == 0 { first.size.bytes() } else { len as u64 * PAGE };
            let offset = at.get() - range.start().get();
            let new = to.checked_add(offset).and_then(|new| VirtRange::new(new, bytes));
            let new = new.ok_or(Error::TooLarge(bytes))?;
            match len {
                0 => self.map_large(new, first.frame, unmarked(first.attrs))?,
                _ => self.map_frames(new, &frames[..len], unmarked(first.attrs))?,
            }
            at = at.checked_add(bytes).ok_or(Error::TooLarge(bytes))?;
        }
        Ok(())
    }
}

/// The attributes without the accessed and dirty bits.
fn unmarked(attrs: Attrs) -> Attrs {
    Attrs { flags: attrs.flags.difference(Flags::ACCESSED | Flags::DIRTY), ..attrs }
}
