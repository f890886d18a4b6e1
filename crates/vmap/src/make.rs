//! Creation of an area, and its claim by the caller that unmaps it.

use crate::area::{Area, Ours, Record, State, What};
use crate::error::Error;
use crate::vmap::{PAGE, Vmap};
use core::ops::RangeInclusive;
use grace::Concurrent;
use machine::{Access, Machine, PageSize, VirtAddr, VirtRange};
use maple::Index;
use paging::Format;

/// The alignments of areas without large pages.
pub(crate) const SMALL: RangeInclusive<PageSize> = PageSize::Size4K..=PageSize::Size4K;

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// Takes addresses for an area: a kept area of this CPU's zone, or new addresses.
    fn take(&self, bytes: u64, align: PageSize) -> Result<Ours, Error> {
        if align == PageSize::Size4K
            && let Some(zone) = self.zones.get(self.first_zone(bytes))
            && let Some(area) = zone.take_kept(&self.tlb_grace, bytes)
        {
            return Ok(area);
        }
        let record = Record::aligned(Area::new(None))?;
        self.take_new(bytes, align, record, true).map_err(|(error, _)| error)
    }

    /// Takes addresses for a record: from this CPU's zone or, if that is full, from others. If all
    /// are full and the request is `urgent`, purges the space and tries once more.
    pub(crate) fn take_new(
        &self,
        bytes: u64,
        align: PageSize,
        mut record: Record,
        urgent: bool,
    ) -> Result<Ours, (Error, Record)> {
        if let Err(error) = self.check_zones(bytes) {
            return Err((error, record));
        }
        let first = self.first_zone(bytes);
        for again in [false, true] {
            let others = (0..self.zones.len()).rev().filter(|zone| *zone != first);
            for number in core::iter::once(first).chain(others) {
                let Some(zone) = self.zones.get(number) else { continue };
                record = match zone.take(&self.tlb_grace, bytes, align.bytes(), record) {
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

    /// Makes an area: takes addresses, maps them with `fill`, and publishes the area as live. Tries
    /// the alignments in `align`, the largest first. If `fill` fails, gives back the page-table
    /// pages and lets the addresses wait: something may have been mapped there for a moment.
    pub(crate) fn make(
        &self,
        what: What,
        guard: bool,
        align: RangeInclusive<PageSize>,
        fill: impl FnOnce(VirtRange) -> Result<(), Error>,
    ) -> Result<VirtAddr, Error> {
        // The caller will use the addresses on this CPU.
        self.tlb_grace.idle_exit();
        let mapped = self.mapped_bytes(what.pages)?;
        let bytes = mapped + if guard { PAGE } else { 0 };
        let sizes = F::sizes().filter(|size| align.contains(size));
        let mut taken = Err(Error::NoSpace(bytes));
        for size in sizes {
            taken = self.take(bytes, size);
            if !matches!(taken, Err(Error::NoSpace(_))) {
                break;
            }
        }
        let area = taken?;
        area.prepare(what);
        let at = area.start();
        let range = VirtRange::new(at, mapped).ok_or(Error::TooLarge(mapped))?;
        self.machine().check_reuse(None, range);
        match fill(range) {
            Ok(()) => {
                self.machine().step(Access::Shared);
                area.set(State::Live);
                Ok(at)
            }
            Err(error) => {
                self.give_tables(area);
                self.put(area);
                Err(error)
            }
        }
    }

    /// The size of so many pages in bytes. Fails for zero pages and for more than the space has.
    pub(crate) fn mapped_bytes(&self, pages: usize) -> Result<u64, Error> {
        if pages == 0 {
            return Err(Error::ZeroSize);
        }
        let bytes = (pages as u64).checked_mul(PAGE).ok_or(Error::TooLarge(u64::MAX))?;
        if bytes > self.space.len() { Err(Error::TooLarge(bytes)) } else { Ok(bytes) }
    }

    /// Claims the area that begins at `at`: the caller owns it then. `is_right` checks the record;
    /// it fails with the wrong number of pages, or with `None` for a wrong kind.
    pub(crate) fn claim(
        &self,
        at: VirtAddr,
        is_right: impl FnOnce(What) -> Result<(), Option<usize>>,
        to: State,
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
            State::Ready | State::Mapping => Error::NotMapped(at),
            _ => Error::Twice(culprit()),
        };
        match area.state() {
            state @ (State::Ready | State::Mapping | State::Waiting) => {
                return Err(not_live(state));
            }
            _ if start != at => return Err(Error::NotTheStart(culprit())),
            _ => {}
        }
        let is_right = |what| {
            is_right(what).map_err(|pages| match pages {
                Some(pages) => Error::WrongSize { area: culprit(), pages },
                None => Error::WrongKind(culprit()),
            })
        };
        self.machine().step(Access::Shared);
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
            area.set(State::Live);
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
