//! Mapping pages over those that are there.
//!
//! Two passes go through the range. The first does all that may fail, and changes no translation:
//! it checks the frames, splits large pages into whose place no page of their size comes, and makes
//! tables where there are none. The second replaces page by page, each by one store (I7).
//!
//! A page is replaced by one of its size, with the lock of its table held. Where the architecture
//! demands it, the old one is broken first (`breaks`): here the two have different contents, so
//! also where neither may be written.

use super::page::{LockedEntry, PageEntry};
use super::{CheckedBlock, Error, LockedTable, Result, covers};
use crate::format::{Attrs, Decoded, Flags, Format, FormatError, Geometry, alone, is_grouped};
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use crate::walk::{Mapping, beyond};
use core::result::Result as Outcome;
use grace::Concurrent;
use machine::{Frame, FrameError, Machine, PageSize, VirtAddr, VirtRange};

/// The pages that a call maps.
#[derive(Clone, Copy)]
struct OverMap {
    range: VirtRange,
    first: Frame,
    attrs: Attrs,
}

impl OverMap {
    fn frame(&self, at: VirtAddr) -> Outcome<Frame, Error> {
        let distance = (at.get() - self.range.start().get()) >> 12;
        self.first.checked_add(distance).ok_or(Error::Frames(FrameError::NotOurs(self.first)))
    }

    /// Whether a page of this size can be at an address.
    fn fits(&self, at: VirtAddr, size: PageSize) -> bool {
        covers(self.range, at, size)
            && at.is_aligned(size)
            && self.frame(at).is_ok_and(|frame| frame.is_aligned(size))
    }

    /// The largest page that fits at an address, of those in tables of this level and below.
    fn largest<M: Machine, F: Format, G: Concurrent>(
        &self,
        tables: &PageTables<M, F, G>,
        at: VirtAddr,
        level: u8,
    ) -> PageSize {
        // As for `map`: a kernel page in the top-level table would be missing in its copies.
        let top = if tables.space().is_some() { F::LEVELS } else { F::LEVELS - 1 };
        let sizes = (1..=level).rev().filter(|level| *level < top).filter_map(F::size_at);
        let mut sizes = sizes.filter(|size| *size <= tables.paging().largest());
        sizes.find(|size| self.fits(at, *size)).unwrap_or(F::PAGE)
    }
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Maps a range to consecutive frames from `first` on, also where pages are mapped already:
    /// each of these is replaced, at one moment. `gone` is called with each page that was replaced,
    /// as it was at the end, accessed and dirty bits included. It runs with a table's lock held: it
    /// must take no table's lock, and give no frame back, which is for after the flush.
    ///
    /// A page is replaced by one of its size. A large page is split first where the new frames are
    /// not aligned to it; that costs a flush. Small pages are not joined, and make no groups. Holes
    /// get the largest pages that fit, as by [`map`](Self::map).
    ///
    /// Where the architecture demands break-before-make ([`Format::BREAK_BEFORE_MAKE`]), a page is
    /// absent for a moment, and is flushed at once. Elsewhere CPUs use the old page or the new one
    /// until the returned flush is done, and no access faults. Deferred frees may run: see
    /// [Context](Self#context).
    ///
    /// Cost: as [`map`](Self::map), and a walk for each large page and each lowest table more.
    ///
    /// # Errors
    /// As for [`map`](Self::map), but for [`Error::Occupied`]; [`Error::Cut`]: the range cuts a
    /// page in two.
    ///
    /// No page was replaced then, and `gone` was not called. Large pages may have been split.
    /// These stop the call half-way, with the flush for the pages before: [`Error::Malformed`], if
    /// the tables are corrupt; [`Error::Occupied`], if another CPU maps pages in the range
    /// meanwhile.
    ///
    /// # Safety
    /// - *Addresses*: the range is the caller's to change, and nothing relies on its old mappings.
    /// - *Frames*: as for [`map`](Self::map). Besides, until the returned flush is done, the old
    ///   frames are not given back. A forgotten value is not a flush.
    /// - *Accesses*: where the architecture demands break-before-make, no CPU uses a page of the
    ///   kernel's half that is replaced or split during the call: the access would fault.
    /// - *Flush*: no flush is pending for an earlier mapping of any of these addresses.
    ///
    /// Besides, `gone` must not call back into these tables: it would deadlock on the held lock. If
    /// it panics, the pages that it was called with, including the last, are replaced, and flushed
    /// when the panic goes on.
    pub unsafe fn map_over(
        &self,
        range: VirtRange,
        first: Frame,
        attrs: Attrs,
        gone: impl FnMut(Mapping),
    ) -> Result<'_, PendingFlush<'_, M, F, G>, M, F, G> {
        let _published = self.publish(range);
        let mapped = self.with_flush(|pending| {
            self.unshare(range)?;
            self.check_kind(range.start(), attrs.flags)?;
            self.check_ends(&self.walk(&G::pin()), range)?;
            let over = OverMap { range, first, attrs };
            if let Err(error) = self.make_ready(over) {
                // Of programs: some may be new.
                let _ = self.unlink_empty(range, pending);
                return Err(error);
            }
            self.replace(over, pending, gone)
        });
        mapped.map(|((), pending)| pending)
    }

    /// The first pass.
    fn make_ready(&self, over: OverMap) -> Outcome<(), Error> {
        let mut lent = CheckedBlock::default();
        let mut check = |at, size: PageSize| {
            let frame = over.frame(at)?;
            F::page(size, frame, over.attrs)?;
            self.check_frames(&mut lent, at, frame, size.frames())
        };
        let mut next = Some(over.range.start());
        while let Some(at) = next.filter(|at| over.range.contains(*at)) {
            let spot = self.walk(&G::pin()).find(at, 0).map(|spot| (spot.found, spot.level));
            let (found, level) = spot.ok_or(Error::Malformed(at))?;
            let size = match found {
                // Each entry of a lowest table can be replaced.
                Decoded::Absent | Decoded::Page(..) if level == 0 => {
                    let end = beyond::<F>(at, 1);
                    while let Some(at) = next.filter(|at| over.range.contains(*at) && next != end) {
                        check(at, F::PAGE)?;
                        next = beyond::<F>(at, 0);
                    }
                    continue;
                }
                Decoded::Absent => {
                    let size = over.largest(self, at, level);
                    let wanted = F::level_of(size).ok_or(FormatError::Size(size))?;
                    if wanted < level {
                        self.with_memory(|| {
                            let (guard, mut pending) = (G::pin(), self.no_flush());
                            self.table_for(&self.walk(&guard), at, wanted, &mut pending).map(drop)
                        })?;
                    }
                    size
                }
                Decoded::Page(..) => {
                    let size = F::size_at(level).ok_or(Error::Malformed(at))?;
                    if !over.fits(at, size) {
                        let pieces = over.largest(self, at, level - 1);
                        // SAFETY: passed on.
                        let split = unsafe { self.split(at, pieces) };
                        split.map_err(|failed| failed.error)?.flush();
                        continue;
                    }
                    size
                }
                Decoded::Table(_) | Decoded::Malformed => return Err(Error::Malformed(at)),
            };
            check(at, size)?;
            next = at.checked_add(size.bytes());
        }
        Ok(())
    }

    /// The second pass.
    fn replace<'p>(
        &'p self,
        over: OverMap,
        pending: &mut PendingFlush<'p, M, F, G>,
        mut gone: impl FnMut(Mapping),
    ) -> Outcome<(), Error> {
        let mut next = Some(over.range.start());
        while let Some(at) = next.filter(|at| over.range.contains(*at)) {
            let guard = G::pin();
            let walk = self.walk(&guard);
            let spot = walk.find(at, 0).ok_or(Error::Malformed(at))?;
            let level = match spot.found {
                Decoded::Absent => F::level_of(over.largest(self, at, spot.level)),
                _ => None,
            };
            let level = level.unwrap_or(spot.level);
            let locked = self.table_for(&walk, at, level, pending)?;
            let mut place = Some(at);
            let mut table = self.locked_table(walk, at, level, locked, pending);
            table.replace(over, &mut place, &mut gone)?;
            next = place;
        }
        Ok(())
    }
}

impl<M: Machine, F: Format, G: Concurrent> LockedTable<'_, '_, M, F, G> {
    /// Maps the pages of this table from `place` on, as far as pages of its level fit. `place`
    /// becomes the address that follows.
    fn replace(
        &mut self,
        over: OverMap,
        place: &mut Option<VirtAddr>,
        mut gone: impl FnMut(Mapping),
    ) -> Outcome<(), Error> {
        let (level, first) = (self.level, self.at);
        let size = F::size_at(level).ok_or(Error::Malformed(first))?;
        while let Some(at) = place.filter(|at| over.range.contains(*at)) {
            let index = F::index(at, level);
            // Another table.
            if at != first && index == 0 {
                break;
            }
            let entry = self.walk.entry(self.table, index).ok_or(Error::Malformed(at))?;
            let stored = entry.load();
            let value = alone::<F>(stored, level, index);
            let found = match F::decode(value, level) {
                Decoded::Absent => None,
                Decoded::Page(frame, attrs) => Some(Mapping { page: at, size, frame, attrs }),
                Decoded::Table(_) if at != first => break,
                Decoded::Table(_) => return Err(Error::Occupied(at)),
                Decoded::Malformed => return Err(Error::Malformed(at)),
            };
            if !over.fits(at, size) {
                // The first one did when this table was chosen.
                if at == first {
                    return Err(Error::Occupied(at.align_down(size)));
                }
                break;
            }
            let entry = PageEntry { at, level, entry, value };
            let grouped = is_grouped::<F>(stored, level);
            let mut page = LockedEntry { table: self, entry, grouped };
            page.put_over(found, over.frame(at)?, over.attrs)?.into_iter().for_each(&mut gone);
            *place = at.checked_add(size.bytes());
        }
        Ok(())
    }
}

impl<M: Machine, F: Format, G: Concurrent> LockedEntry<'_, '_, '_, M, F, G> {
    /// Maps a frame of other contents in the place of the page that was found, or where nothing is.
    /// Returns that page as it was at the end.
    fn put_over(
        &mut self,
        found: Option<Mapping>,
        frame: Frame,
        attrs: Attrs,
    ) -> Outcome<Option<Mapping>, Error> {
        let (tables, PageEntry { at, level, entry, .. }) = (self.table.tables, self.entry);
        let value = F::page(F::size_at(level).ok_or(Error::Malformed(at))?, frame, attrs)?;
        let Some(mut found) = found else {
            entry.store(value);
            self.table.count_up();
            return Ok(None);
        };
        self.part();
        let (same, is_valid) = (found.frame == frame, found.attrs.flags.intersects(Flags::RWX));
        if PageTables::<M, F, G>::must_break(found.attrs, attrs, same)
            || F::BREAK_BEFORE_MAKE && is_valid && !same
        {
            self.entry.break_first(tables);
        }
        // A swap: hardware may set bits of the old entry until then. A broken entry has kept them.
        if let Decoded::Page(_, was) = F::decode(entry.swap(value), level) {
            found.attrs.flags |= was.flags & (Flags::ACCESSED | Flags::DIRTY);
        }
        self.drop_cached();
        Ok(Some(found))
    }
}
