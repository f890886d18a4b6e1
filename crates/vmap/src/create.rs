//! Creation of an area, and its claim by the caller that unmaps it.

use crate::PAGE;
use crate::area::{Area, AreaRecord, AreaState, Guard, Ours, Record};
use crate::error::Error;
use crate::request::Request;
use crate::space::Vmap;
use crate::zone::{Span, Zone};
use core::ops::RangeInclusive;
use grace::Concurrent;
use machine::{Checker, Machine, PageSize, SharedAccess, VirtAddr, VirtRange};
use maple::Index;
use paging::{Format, Geometry};

/// The alignments of areas without large pages.
pub(crate) const SMALL: RangeInclusive<PageSize> = PageSize::Size4K..=PageSize::Size4K;

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// Takes addresses for an area: a kept area of this CPU's zone, or new addresses.
    fn take(&self, span: Span) -> Result<Ours, Error> {
        if span.align == PAGE
            && let Some(zone) = self.zones.get(self.first_zone(span.bytes))
            && let Some(area) = zone.take_kept(&self.tlb_grace, span.bytes)
        {
            return Ok(area);
        }
        let record = Record::aligned(Area::new(None))?;
        self.take_new(span, record, true).map_err(|(error, _)| error)
    }

    /// Takes addresses with the alignment of one of the page sizes in `sizes`, the largest first.
    #[inline(never)]
    fn take_aligned(&self, span: Span, sizes: RangeInclusive<PageSize>) -> Result<Ours, Error> {
        let mut taken = Err(Error::NoSpace(span.bytes));
        let mut tried = 0;
        for size in F::sizes().filter(|size| sizes.contains(size)) {
            let align = span.align.max(size.bytes());
            if align == tried {
                continue;
            }
            tried = align;
            taken = self.take(Span { align, ..span });
            if !matches!(taken, Err(Error::NoSpace(_))) {
                break;
            }
        }
        taken
    }

    /// Takes the addresses of an area whose first page is at `at`. If only freed addresses are in
    /// the way, purges the space and tries once more.
    #[cold]
    fn take_at(&self, at: VirtAddr, span: Span) -> Result<Ours, Error> {
        let (zone, range) = self.range_at(at, span)?;
        let record = Record::aligned(Area::new(None))?;
        let record = match zone.take_at(&self.tlb_grace, at, range, record) {
            Err((Error::InTheWay(_), record)) if !zone.is_in_use(range) => record,
            done => return done.map_err(|(error, _)| error),
        };
        self.purge();
        zone.take_at(&self.tlb_grace, at, range, record).map_err(|(error, _)| error)
    }

    /// The zone and the addresses of an area whose first page is at `at`, guard pages included.
    fn range_at(&self, at: VirtAddr, span: Span) -> Result<(&Zone<G>, VirtRange), Error> {
        let (bytes, align) = (span.bytes, span.align);
        if !at.get().is_multiple_of(align) {
            return Err(Error::Unaligned { at, align });
        }
        // Areas lie in zones, the first of which begins at a 2 MiB boundary.
        let first = self.zones.first().map_or(self.space.start(), |zone| zone.range().start());
        let less = first.offset_from(self.space.start()).unwrap_or(0);
        let space = VirtRange::new(first, self.space.len() - less).unwrap_or(self.space);
        let outside = Error::Outside { at, bytes, space };
        let start = at.get().checked_sub(span.below).map(VirtAddr::new).ok_or(outside)?;
        let range = VirtRange::new(start, bytes).ok_or(outside)?;
        let zone = self.zone_of(start).filter(|_| space.covers(&range)).ok_or(outside)?;
        if zone.range().covers(&range) {
            return Ok((zone, range));
        }
        let border = zone.range().end().ok_or(outside)?;
        Err(Error::AcrossZones { at, border })
    }

    /// Takes addresses for a record: from this CPU's zone or, if that is full, from others. If all
    /// are full and the request is `urgent`, purges the space and tries once more.
    pub(crate) fn take_new(
        &self,
        span: Span,
        mut record: Record,
        urgent: bool,
    ) -> Result<Ours, (Error, Record)> {
        let bytes = span.bytes;
        if let Err(error) = self.check_zones(bytes) {
            return Err((error, record));
        }
        let first = self.first_zone(bytes);
        for again in [false, true] {
            let others = (0..self.zones.len()).rev().filter(|zone| *zone != first);
            for number in core::iter::once(first).chain(others) {
                let Some(zone) = self.zones.get(number) else { continue };
                record = match zone.take(&self.tlb_grace, span, record) {
                    Err((Error::NoSpace(_), record)) => record,
                    done => return done,
                };
            }
            if again || !urgent {
                break;
            }
            self.purge();
        }
        Err((Error::NoSpace(bytes), record))
    }

    /// Refuses sizes that no zone could ever hold.
    pub(crate) fn check_zones(&self, bytes: u64) -> Result<(), Error> {
        let fits = self.zones.iter().any(|zone| zone.range().len() >= bytes);
        if fits { Ok(()) } else { Err(Error::NoSpace(bytes)) }
    }

    /// Makes an area: takes addresses, maps them with `fill`, and publishes the area as live.
    /// Unless the request names the address, tries the alignments of the page sizes in `sizes`, the
    /// largest first. If `fill` fails, gives back the page-table pages and lets the addresses wait:
    /// something may have been mapped there for a moment.
    pub(crate) fn make(
        &self,
        mut what: AreaRecord,
        request: &Request<'_>,
        sizes: RangeInclusive<PageSize>,
        fill: impl FnOnce(VirtRange) -> Result<(), Error>,
    ) -> Result<VirtAddr, Error> {
        // The caller will use the addresses on this CPU.
        self.tlb_grace.idle_exit();
        let mapped = self.mapped_bytes(what.pages)?;
        let (guard, align) = (self.guard_of(request), request.alignment()?);
        let span = Span { align, ..Span::new(mapped, guard) };
        let area = match request.at {
            None if *sizes.end() == PageSize::Size4K => self.take(span)?,
            None => self.take_aligned(span, sizes)?,
            Some(at) => self.take_at(at, span)?,
        };
        what.guard = guard;
        what.align = align.trailing_zeros() as u8;
        area.prepare(what);
        let at = what.first(area.start());
        let range = VirtRange::new(at, mapped).ok_or(Error::TooLarge(mapped))?;
        // No CPU may hold a translation of a guard page, either.
        if let Some(all) = VirtRange::new(area.start(), area.len()) {
            self.machine().checker().check_reuse(None, all);
        }
        match fill(range) {
            Ok(()) => {
                self.machine().step(SharedAccess::Other);
                area.set(AreaState::Live);
                Ok(at)
            }
            Err(error) => {
                self.give_tables(area);
                self.put(area);
                Err(error)
            }
        }
    }

    /// The guard pages of a request.
    pub(crate) fn guard_of(&self, request: &Request<'_>) -> Guard {
        request.guard.unwrap_or(self.options.guard)
    }

    /// The size of so many pages in bytes. Fails for zero pages and for more than the space has.
    pub(crate) fn mapped_bytes(&self, pages: usize) -> Result<u64, Error> {
        if pages == 0 {
            return Err(Error::ZeroSize);
        }
        let bytes = (pages as u64).checked_mul(PAGE).ok_or(Error::TooLarge(u64::MAX))?;
        if bytes > self.space.len() { Err(Error::TooLarge(bytes)) } else { Ok(bytes) }
    }

    /// Claims the area whose first page is at `at`: the caller owns it then. `is_right` checks the
    /// record; it fails with the wrong number of pages, or with `None` for a wrong kind.
    pub(crate) fn claim(
        &self,
        at: VirtAddr,
        is_right: impl FnOnce(AreaRecord) -> Result<(), Option<usize>>,
        to: AreaState,
    ) -> Result<Ours, Error> {
        let zone = self.zone_of(at).ok_or(Error::NotMapped(at))?;
        let guard = G::pin();
        let Some((range, area)) = zone.tree().lookup(&guard, at.get() as Index) else {
            return Err(Error::NotMapped(at));
        };
        let (start, area) = (VirtAddr::new(*range.start() as u64), area.get());
        let culprit = || area.culprit(at, start);
        let not_live = |state| match state {
            // Its address has not been returned to a caller yet, or it was freed long ago.
            AreaState::Ready | AreaState::Mapping => Error::NotMapped(at),
            _ => Error::Twice(culprit()),
        };
        let state = area.state();
        if matches!(state, AreaState::Ready | AreaState::Mapping | AreaState::Waiting) {
            return Err(not_live(state));
        }
        let is_right = |what: AreaRecord| {
            if what.first(start) != at {
                return Err(Error::NotTheStart(culprit()));
            }
            is_right(what).map_err(|pages| match pages {
                Some(pages) => Error::WrongSize { area: culprit(), pages },
                None => Error::WrongKind(culprit()),
            })
        };
        self.machine().step(SharedAccess::Other);
        area.claim(to, is_right, not_live)?;
        // SAFETY: this call has just claimed it.
        Ok(unsafe { Ours::of(area) })
    }

    /// Unmaps the pages of a claimed area and lets its addresses wait.
    pub(crate) fn unmap_claimed(&self, area: Ours) -> Result<(), Error> {
        if let Some(range) = area.mapped()
            && let Err(error) = self.unmap_pages(range)
        {
            // The page tables have been corrupted.
            area.set(AreaState::Live);
            return Err(error);
        }
        self.put(area);
        Ok(())
    }

    /// Unmaps pages and leaves their flush to the grace period. Returns the number of pages.
    pub(crate) fn unmap_pages(&self, range: VirtRange) -> Result<usize, Error> {
        // SAFETY: the addresses are not reused before the end of a TLB grace period that begins
        // from now on.
        Ok(unsafe { self.tables.unmap_lazily(range, |_, _| ()) }?)
    }
}
