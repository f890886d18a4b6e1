//! `vrealloc`: memory that grows or shrinks keeps its frames.
//!
//! To shrink is to cut the area in two, of which the second is given back. To grow is to take a larger area, to map the same frames
//! there and new ones behind them, and then to unmap the old one: no byte is copied, and whatever fails, the old area is as it was.

use crate::area::{Area, Kind, State};
use crate::error::Error;
use crate::malloc::{Request, is_vmalloc, rest_of};
use crate::vmap::{PAGE, Vmap};
use core::panic::Location;
use grace::Concurrent;
use machine::{Frame, Machine, PageSize, VirtAddr, VirtRange};
use maple::Counted;
use paging::{Attrs, Format, Mapping};

/// Pages that are mapped a second time at once.
const BATCH: usize = 64;

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// Makes memory from [`vmalloc`](Vmap::vmalloc) and its like larger or smaller, and returns where it is now. What was in it is
    /// still there, up to the smaller of both sizes; what is added was left there by others. Whole large pages are kept.
    ///
    /// Cost: of what is added or taken away; and to grow, an entry written twice for each page that there was. Not for interrupts.
    ///
    /// # Errors
    /// Those of [`vmalloc`](Vmap::vmalloc), and of [`vfree`](Vmap::vfree). The memory is where it was, and as it was, then.
    ///
    /// # Safety
    /// Nobody uses the memory meanwhile, nor the old address afterwards, nor what lies beyond the new size.
    #[track_caller]
    pub unsafe fn vrealloc(&self, at: VirtAddr, bytes: u64) -> Result<VirtAddr, Error> {
        let caller = Location::caller();
        if bytes == 0 {
            return Err(Error::ZeroSize);
        }
        if bytes > self.space.len() {
            return Err(Error::TooLarge(bytes));
        }
        let old = self.claim(at, is_vmalloc, State::Unmapping)?;
        let wanted = VirtRange::new(at, bytes.div_ceil(PAGE) * PAGE).ok_or(Error::TooLarge(bytes));
        let done = wanted.and_then(|wanted| match wanted.len() > old.len() {
            true => self.grow(old, bytes, caller).map(Some),
            false => self.shrink(old, self.whole_pages(wanted), bytes, caller),
        });
        match done {
            Ok(Some(moved)) => return Ok(moved),
            Ok(None) => {}
            Err(error) => {
                self.of_area(at, |area| area.set(State::Live));
                return Err(error);
            }
        }
        self.of_area(at, |area| {
            area.set_bytes(bytes);
            area.set(State::Live);
        });
        Ok(at)
    }

    fn of_area<T>(&self, at: VirtAddr, f: impl FnOnce(&Area) -> T) -> Option<T> {
        let guard = G::pin();
        Some(f(self.zone_of(at)?.tree().load(&guard, at.get() as usize)?.get()))
    }

    /// The range, up to the end of the page that its last address lies in.
    fn whole_pages(&self, range: VirtRange) -> VirtRange {
        let page = range.last().and_then(|last| self.tables.walk(&G::pin()).get(last));
        let end = page.and_then(|page: Mapping| page.page.checked_add(page.size.bytes()));
        end.and_then(|end| VirtRange::between(range.start(), end)).unwrap_or(range)
    }

    /// Gives back what lies beyond `kept`.
    fn shrink(
        &self,
        old: VirtRange,
        kept: VirtRange,
        bytes: u64,
        caller: &'static Location<'static>,
    ) -> Result<Option<VirtAddr>, Error> {
        let at = old.start();
        let Some(gone) = kept.end().and_then(|end| rest_of(old, end)) else { return Ok(None) };
        let zone = self.zone_of(at).ok_or(Error::NotMapped(at))?;
        let taken = {
            let guard = G::pin();
            let found = zone.tree().lookup(&guard, at.get() as usize);
            found.map_or(old.len(), |(range, _)| crate::zone::length(&range))
        };
        // The first page that goes guards the rest.
        let border = gone.start().checked_add(taken - old.len()).ok_or(Error::NotMapped(at))?;
        let pages = |range: VirtRange| (range.len() / PAGE) as usize;
        let area =
            |range, bytes| Counted::new(Area::new(Kind::Vmalloc, pages(range), bytes, caller));
        let (front, rest) = (area(kept, bytes)?, area(gone, gone.len())?);
        front.set(State::Unmapping);
        rest.set(State::Unmapping);
        zone.cut(self.machine(), at, border, front, rest)?;
        self.depopulate(gone);
        self.put(border);
        Ok(None)
    }

    /// The same frames in a larger area, and more.
    fn grow(
        &self,
        old: VirtRange,
        bytes: u64,
        caller: &'static Location<'static>,
    ) -> Result<VirtAddr, Error> {
        let first = self.tables.walk(&G::pin()).get(old.start());
        let align = first.map_or(PageSize::Size4K, |page| page.size);
        let request = Request { guard: self.options.guard, ..Request::new(bytes) };
        let what = (Kind::Vmalloc, bytes.div_ceil(PAGE) as usize, bytes);
        let moved = self.make(what, request.guard, align, caller, |new| {
            let twice = VirtRange::new(new.start(), old.len()).ok_or(Error::TooLarge(bytes))?;
            let more = VirtRange::between(
                twice.end().unwrap_or(new.start()),
                new.end().unwrap_or(new.start()),
            );
            let done = self.map_again(old, new.start());
            let done =
                done.and_then(|()| more.map_or(Ok(()), |more| self.populate(more, &request)));
            if done.is_err() {
                // The frames are the old area's.
                let _ = self.unmap_pages(twice);
            }
            done
        })?;
        // It was mapped whole, and is nobody else's: it cannot fail.
        self.unmap_claimed(old)?;
        Ok(moved)
    }

    /// Maps what is mapped in a range a second time, from `to` on.
    fn map_again(&self, range: VirtRange, to: VirtAddr) -> Result<(), Error> {
        let mut at = range.start();
        while let Some(rest) = rest_of(range, at) {
            let mut frames = [Frame::default(); BATCH];
            let (mut len, mut first) = (0, None);
            {
                let guard = G::pin();
                let pages = self.tables.walk(&guard).pages(rest).take(BATCH);
                for page in pages.take_while(|page| page.size == PageSize::Size4K) {
                    frames[len] = page.frame;
                    len += 1;
                    first.get_or_insert(page);
                }
                first = first.or_else(|| self.tables.walk(&guard).get(at));
            }
            let Some(page) = first else { return Err(Error::NotMapped(at)) };
            let bytes = if len == 0 { page.size.bytes() } else { len as u64 * PAGE };
            let offset = at.get() - range.start().get();
            let new = to.checked_add(offset).and_then(|new| VirtRange::new(new, bytes));
            let new = new.ok_or(Error::TooLarge(bytes))?;
            let attrs = Attrs { ..page.attrs };
            match len {
                0 => self.map_large(new, page.frame, attrs)?,
                _ => self.map_frames(new, &frames[..len], attrs)?,
            }
            at = at.checked_add(bytes).ok_or(Error::TooLarge(bytes))?;
        }
        Ok(())
    }
}
