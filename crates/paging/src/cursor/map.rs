//! Mapping pages.

use super::group::first_page;
use super::{CheckedBlock, Error, Failed, Result, TableSource, fill};
use crate::format::{Attrs, Decoded, Flags, Format, FormatError, Geometry};
use crate::lock::{Locked, lock};
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use crate::walk::Walk;
use grace::Concurrent;
use machine::{Frame, FrameError, Machine, PageSize, VirtAddr, VirtRange};

/// The supplier of frames. Called with an address and the largest page size that fits there, which
/// may be that of a group ([`Format::GROUP`]). Returns the first frame of a page, and its size,
/// which is no larger. It may call back into the tables. If it panics, the pages mapped so far are
/// unmapped again.
///
/// Every such closure is a `Supply`. The caller of [`PageTables::map_with`] promises that the
/// frames may be mapped.
pub trait Supply:
    FnMut(VirtAddr, PageSize) -> core::result::Result<(Frame, PageSize), FrameError>
{
}

impl<S> Supply for S where
    S: FnMut(VirtAddr, PageSize) -> core::result::Result<(Frame, PageSize), FrameError>
{
}

/// The number of entries written under one acquisition of the lock.
const BATCH: usize = 64;

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Maps a range to consecutive frames from `first` on, in the largest pages that fit. The whole
    /// range must be unmapped.
    ///
    /// Small pages of a program or a guest become groups ([`Format::GROUP`]) where they fit, if
    /// `attrs` has all marks that hardware would set: the pages can be read, are accessed, and
    /// dirty if they can be written. A call that changes a part of a group makes its pages single
    /// first, which costs a flush. Each page stays one for all calls.
    ///
    /// No flush is pending afterwards: the range is [published](machine::Tlb::published). Deferred
    /// frees may run: see [Context](Self#context).
    ///
    /// # Errors
    /// - [`Error::Empty`], [`Error::Misaligned`], [`Error::NotCanonical`], [`Error::Kernel`]: not a
    ///   range of these tables.
    /// - [`Error::Occupied`], [`Error::EmptyTable`]: something is in the way.
    /// - [`Error::Global`], [`Error::NotUser`], [`Error::Frame`]: not a valid user page.
    /// - [`Error::Format`], [`Error::Malformed`], [`Error::TopLevelFixed`].
    /// - [`Error::Frames`]: no memory for tables.
    ///
    /// Nothing is mapped then. But the pending flush in the error must be done before the frames
    /// are used for another purpose.
    ///
    /// # Safety
    /// - *Addresses*: the range is the caller's to change.
    /// - *Frames*: they are the caller's to lend with these rights. Until it is unmapped again and
    ///   the flush for that is done, no frame is given back, or used for data that code on the CPUs
    ///   must not see.
    /// - *Flush*: no flush is pending for an earlier mapping of any of these addresses.
    pub unsafe fn map(
        &self,
        range: VirtRange,
        first: Frame,
        attrs: Attrs,
    ) -> Result<'_, (), M, F, G> {
        // SAFETY: passed on.
        unsafe { self.map_with(range, attrs, consecutive::<F>(range, first)) }
    }

    /// Maps a range to the frames that `supply` returns. `supply` is called once for each page,
    /// with no lock held; if it fails, so does this call. Deferred frees may run: see
    /// [Context](Self#context).
    ///
    /// # Errors
    /// As for [`map`](PageTables::map); [`Error::Frames`] with the error of `supply`;
    /// [`Error::TooLarge`].
    ///
    /// # Safety
    /// As for [`map`](PageTables::map), for the frames that `supply` returns.
    pub unsafe fn map_with(
        &self,
        range: VirtRange,
        attrs: Attrs,
        supply: impl Supply,
    ) -> Result<'_, (), M, F, G> {
        self.map_checked(range, attrs, supply, Self::check_kind)
    }

    /// Maps a range to the frames that `supply` returns, if `check` accepts the flags.
    #[cfg_attr(not(feature = "small"), inline(always))]
    pub(super) fn map_checked(
        &self,
        range: VirtRange,
        attrs: Attrs,
        supply: impl Supply,
        check: impl FnOnce(&Self, VirtAddr, Flags) -> core::result::Result<(), Error>,
    ) -> Result<'_, (), M, F, G> {
        let _published = self.publish(range);
        if let Err(error) =
            self.unshare(range).and_then(|()| check(self, range.start(), attrs.flags))
        {
            return Err(Failed { error, pending: PendingFlush::nothing(self) });
        }
        let mut under_way =
            UnderWay { tables: self, start: range.start(), end: Some(range.start()) };
        match self.fill(range, attrs, supply, &mut under_way) {
            Ok(()) => {
                under_way.end = None;
                Ok(())
            }
            Err(error) => Err(Failed { error, pending: under_way.undo() }),
        }
    }

    /// Checks that pages of these tables may have these flags. A user page must not be global,
    /// since a flush of its space need not drop global translations. It must have USER: a page for
    /// the kernel alone is mapped by a call of its own (`supervisor`).
    pub(super) fn check_kind(&self, at: VirtAddr, flags: Flags) -> core::result::Result<(), Error> {
        match self.space() {
            Some(_) if flags.contains(Flags::GLOBAL) => Err(Error::Global(at)),
            // A `PROT_NONE` page is accessible to no code, so it needs no USER.
            Some(_) if flags.intersects(Flags::RWX) && !flags.contains(Flags::USER) => {
                Err(Error::NotUser(at))
            }
            _ => Ok(()),
        }
    }

    /// Unmaps the pages from `start` up to `end`, and unlinks the empty tables made for `end`.
    pub(super) fn undo<'p>(
        &'p self,
        start: VirtAddr,
        end: VirtAddr,
        pending: &mut PendingFlush<'p, M, F, G>,
    ) {
        if let Some(range) = VirtRange::between(start, end)
            && !range.is_empty()
        {
            // All pages in it are ours, and none is cut, so this cannot fail.
            let _ = self.clear(range, pending, |_| ());
        }
        if self.space().is_some() {
            let guard = G::pin();
            let walk = self.walk(&guard);
            if let Some(spot) = walk.find(end, 0) {
                self.prune_at(&walk, end, spot.level, &mut pending.gather);
            }
        }
    }

    fn fill(
        &self,
        range: VirtRange,
        attrs: Attrs,
        mut supply: impl Supply,
        mapped: &mut UnderWay<'_, M, F, G>,
    ) -> core::result::Result<(), Error> {
        let mut lent = CheckedBlock::default();
        let mut get = |at| {
            let largest = self.largest(range, at, attrs);
            let (frame, size) = supply(at, largest)?;
            if size > largest {
                return Err(Error::TooLarge(at, size));
            }
            let page = match F::GROUP == Some(size) {
                true => first_page::<F>(size, frame, attrs)?,
                false => F::page(size, frame, attrs)?,
            };
            self.check_frames(&mut lent, at, frame, size.frames())?;
            Ok((page, size))
        };
        let mut left = None;
        let mut next = Some(range.start());
        while let Some(at) = next.filter(|at| range.contains(*at)) {
            let (first, size) = match left.take() {
                Some(page) => page,
                None => get(at)?,
            };
            let mut batch = [first; BATCH];
            let mut len = 1;
            next = at.checked_add(size.bytes());
            while let Some(to) = next.filter(|to| range.contains(*to)) {
                if len == BATCH || F::level_of(size).is_none_or(|level| F::index(to, level) == 0) {
                    break;
                }
                let (value, other) = get(to)?;
                if other != size {
                    left = Some((value, other));
                    break;
                }
                batch[len] = value;
                len += 1;
                next = to.checked_add(size.bytes());
            }
            self.with_memory(|| self.place(at, size, &batch[..len], mapped))?;
        }
        Ok(())
    }

    /// Writes consecutive entries of one table.
    fn place(
        &self,
        first: VirtAddr,
        size: PageSize,
        values: &[u64],
        mapped: &mut UnderWay<'_, M, F, G>,
    ) -> core::result::Result<(), Error> {
        let group = F::GROUP == Some(size);
        let size = if group { F::PAGE } else { size };
        let guard = G::pin();
        let walk = self.walk(&guard);
        let level = F::level_of(size).ok_or(Error::Format(FormatError::Size(size)))?;
        mapped.end = Some(first);
        let mut pending = self.no_flush();
        let mut locked = self.table_for(&walk, first, level, &mut pending)?;
        let entries = walk.entries(locked.table).ok_or(Error::Malformed(first))?;
        let index = F::index(first, level);
        let (written, all) = match values {
            &[page] if group => self.fill_group(&entries, index, page, &mut locked),
            _ => {
                let pages = values.iter().map(|value| Some(*value));
                let entries = entries.range(index..F::ENTRIES);
                let written = fill::<M, F>(entries, level, pages, &mut locked);
                (written, written == values.len())
            }
        };
        // At the last address of all the sum overflows; nothing follows then.
        let end = first.checked_add(written as u64 * size.bytes()).unwrap_or(first);
        mapped.end = Some(end);
        if all {
            return Ok(());
        }
        drop(locked);
        Err(in_the_way(walk, end, if group { F::GROUP.unwrap_or(size) } else { size }))
    }

    /// Finds the table of this level on the way to `at`, or makes it, makes the way this space's
    /// own, and locks the table.
    pub(super) fn table_for<'g, 'p: 'g>(
        &'p self,
        walk: &Walk<'g, M, F>,
        at: VirtAddr,
        level: u8,
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> core::result::Result<Locked<'g, F>, Error> {
        self.table_from(walk, at, level, pending, &mut TableSource::Lists)
    }

    /// As [`table_for`](Self::table_for), with new tables from `source`.
    pub(super) fn table_from<'g, 'p: 'g>(
        &'p self,
        walk: &Walk<'g, M, F>,
        at: VirtAddr,
        level: u8,
        pending: &mut PendingFlush<'p, M, F, G>,
        source: &mut TableSource<'_, '_, M, F, G>,
    ) -> core::result::Result<Locked<'g, F>, Error> {
        loop {
            self.own_way(walk, at, level, pending)?;
            let spot = walk.find(at, level).ok_or(Error::Malformed(at))?;
            if spot.level == level {
                match lock::<M, F>(self.machine(), spot.entry.table(), at)? {
                    Some(locked) if self.may_change(walk, at, level, &locked) => return Ok(locked),
                    // Unlinked or left meanwhile; or a fork has shared it, and is about to mark the
                    // way.
                    _ => {
                        self.machine().relax();
                        continue;
                    }
                }
            }
            match spot.found {
                Decoded::Absent => {
                    if !self.grow(walk, &spot, at, source)? {
                        self.machine().relax();
                    }
                }
                Decoded::Malformed => return Err(Error::Malformed(at)),
                Decoded::Page(..) | Decoded::Table(_) => {
                    let size = F::size_at(spot.level).unwrap_or_default();
                    return Err(Error::Occupied(at.align_down(size)));
                }
            }
        }
    }

    /// The largest page that fits at `at`.
    #[inline]
    fn largest(&self, range: VirtRange, at: VirtAddr, attrs: Attrs) -> PageSize {
        let small = || self.group_at(range, at, attrs).unwrap_or(F::PAGE);
        if !at.is_aligned(F::LARGE) {
            return small();
        }
        // A kernel page in the top-level table itself would be missing in the copies of that table.
        let levels = if self.space().is_some() { F::LEVELS } else { F::LEVELS - 1 };
        let fits = |level: &u8| {
            F::size_at(*level).is_some_and(|size| {
                size <= self.paging().largest()
                    && *level < levels
                    && at.is_aligned(size)
                    && super::covers(range, at, size)
            })
        };
        [2, 1].into_iter().find(fits).and_then(F::size_at).unwrap_or_else(small)
    }
}

/// The supplier of consecutive frames from `first` on, in the largest pages that fit.
#[cfg_attr(not(feature = "small"), inline(always))]
pub(super) fn consecutive<F: Format>(range: VirtRange, first: Frame) -> impl Supply {
    move |at: VirtAddr, largest| {
        let distance = (at.get() - range.start().get()) >> 12;
        let frame = first.checked_add(distance).ok_or(FrameError::NotOurs(first))?;
        let sizes = F::sizes().chain(F::GROUP);
        let size = sizes.filter(|size| *size <= largest && frame.is_aligned(*size)).max();
        Ok((frame, size.unwrap_or(F::PAGE)))
    }
}

/// The error for a page that is to be mapped where an entry is not absent.
#[cold]
fn in_the_way<M: Machine, F: Format>(walk: Walk<'_, M, F>, at: VirtAddr, size: PageSize) -> Error {
    let first = VirtRange::new(at, size.bytes()).and_then(|range| walk.pages(range).next());
    first.map_or(Error::EmptyTable(at), |page| Error::Occupied(page.page))
}

/// A mapping in progress. If it is dropped before it is complete, also by a panic of the supplier
/// of frames, the pages mapped so far are unmapped again.
struct UnderWay<'p, M: Machine, F: Format, G: Concurrent> {
    tables: &'p PageTables<M, F, G>,
    start: VirtAddr,
    /// The first address that is not mapped yet; `None` when the mapping is complete.
    end: Option<VirtAddr>,
}

impl<'p, M: Machine, F: Format, G: Concurrent> UnderWay<'p, M, F, G> {
    /// Unmaps the pages mapped so far.
    fn undo(&mut self) -> PendingFlush<'p, M, F, G> {
        let mut pending = PendingFlush::nothing(self.tables);
        if let Some(end) = self.end.take() {
            self.tables.undo(self.start, end, &mut pending);
        }
        pending
    }
}

impl<M: Machine, F: Format, G: Concurrent> Drop for UnderWay<'_, M, F, G> {
    fn drop(&mut self) {
        if self.end.is_some() {
            drop(self.undo());
        }
    }
}
