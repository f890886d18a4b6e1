//! Splitting a large page into as many smaller ones as a table has entries: 512, with a granule of
//! 4 KiB.

use super::{Error, Result, Spare};
use crate::block::{block_of, is_counted};
use crate::format::{Attrs, Decoded, Flags, Format, FormatError, Geometry, entries, span_at};
use crate::lock::{count_of, lock};
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use core::mem;
use core::sync::atomic::Ordering;
use grace::Concurrent;
use machine::{Frame, FrameError, FrameInfo, Machine, PageSize, VirtAddr, VirtRange};

/// Where the references to the frames of pages are held.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PieceReferences {
    /// The caller: the tables hold none.
    Lent,
    /// Each entry.
    Counted,
    /// Each entry. The call is ordered with each `decide` at the address, as a sweep is.
    Ends,
}

/// Tables for the pages of [`Geometry::LARGE`] that a range cuts; see [`PageTables::reserve_ends`].
/// They are given back when this is dropped. Without a table, there are lowest tables with pages at
/// both ends, which stay while only this CPU unmaps pages: no large page can come there.
pub struct Reserve<'p, M: Machine, F: Format, G: Concurrent>(Spare<'p, M, F, G>);

/// The ends of a range that may lie within a large page; one if both would lie in the same.
fn ends<F: Format>(range: VirtRange) -> impl Iterator<Item = VirtAddr> {
    let start = range.start();
    let end = start.checked_add(range.len());
    let large = |at: VirtAddr| at.align_down(F::LARGE);
    let end = end.filter(|end| start.is_aligned(F::LARGE) || large(*end) != large(start));
    [Some(start), end].into_iter().flatten().filter(|at| !at.is_aligned(F::LARGE))
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Splits the page that contains `at`, repeatedly, until it is no larger than `size`. The
    /// translation does not change, but the pieces can be unmapped and protected separately. Does
    /// nothing where nothing is mapped or pages are small enough.
    ///
    /// The old, large translation stays right until a piece is changed. A flush is pending
    /// nevertheless, since some CPUs do not tolerate translations of two sizes for one address.
    /// Deferred frees may run: see [Context](Self#context).
    ///
    /// # Errors
    /// [`Error::NotCanonical`], [`Error::Kernel`], [`Error::Malformed`]; [`Error::Format`]: the
    /// format has no pages of this size; [`Error::Frames`]: no memory for the tables. Nothing has
    /// changed then: all tables are allocated before the first is linked.
    ///
    /// # Safety
    /// - *Addresses*: the page is the caller's to change, and nothing relies on its being one page.
    /// - *Accesses*: where the architecture demands break-before-make
    ///   ([`Format::BREAK_BEFORE_MAKE`]), no CPU uses a page of the kernel's half during the call:
    ///   the access would fault. A kernel maps what it always uses in pages that it never splits.
    /// - *Flush*: on CPUs that do not tolerate translations of two sizes for one address, the page
    ///   is not used before the returned flush is done. Its pieces can be changed at once: their
    ///   flush drops the large translation, too.
    pub unsafe fn split(
        &self,
        at: VirtAddr,
        size: PageSize,
    ) -> Result<'_, PendingFlush<'_, M, F, G>, M, F, G> {
        self.split_as(at, size, PieceReferences::Lent)
    }

    /// As [`split`](Self::split), where each entry that leads to a frame with
    /// [`Owner::User`](machine::Owner::User) holds a reference to its block. The pieces hold one
    /// each. If the entry held the only one, and each piece is a frame of the block and each frame
    /// a piece, the block becomes single frames. Otherwise it stays one, with a reference more for
    /// each further piece.
    ///
    /// # Errors
    /// As for [`split`](Self::split); [`Error::Frames`]: also too many references.
    ///
    /// # Safety
    /// As for [`split`](Self::split), and references are held as above.
    pub unsafe fn split_counted(
        &self,
        at: VirtAddr,
        size: PageSize,
    ) -> Result<'_, PendingFlush<'_, M, F, G>, M, F, G> {
        self.split_as(at, size, PieceReferences::Counted)
    }

    fn split_as(
        &self,
        at: VirtAddr,
        size: PageSize,
        pieces: PieceReferences,
    ) -> Result<'_, PendingFlush<'_, M, F, G>, M, F, G> {
        let split = self.with_flush(|pending| {
            let wanted = F::level_of(size).ok_or(FormatError::Size(size))?;
            self.split_to(at, wanted, pieces, &mut Spare::none(self), pending)
        });
        split.map(|((), pending)| pending)
    }

    /// Takes the tables that [`split_ends`](Self::split_ends) may need for a range. Deferred frees
    /// may run: see [Context](Self#context).
    ///
    /// Cost: nothing if both ends are multiples of [`Geometry::LARGE`]; otherwise a walk for each,
    /// or one for both, and a table where no lowest table is in use.
    ///
    /// # Errors
    /// [`Error::Frames`]: no memory for the tables. [`Error::Malformed`].
    pub fn reserve_ends(
        &self,
        range: VirtRange,
    ) -> core::result::Result<Reserve<'_, M, F, G>, Error> {
        let mut spare = Spare::none(self);
        let needed = ends::<F>(range).filter(|at| self.may_be_large(*at)).count();
        spare.fill(needed)?;
        Ok(Reserve(spare))
    }

    /// Whether a large page is at `at`, or could come there while this CPU is the only one that
    /// unmaps pages.
    fn may_be_large(&self, at: VirtAddr) -> bool {
        let guard = G::pin();
        let Some((entry, level, ..)) = self.walk(&guard).descend(at, 0) else { return false };
        let count = self.machine().info(entry.table()).map_or(0, |info| {
            // SAFETY: a table; only its count is read. Relaxed: only this CPU decrements it to 0.
            count_of::<F>(unsafe { info.word() }.load(Ordering::Relaxed))
        });
        level != 0 || count == 0
    }

    /// Splits the large pages that the ends of a range cut, so that it can be swept or changed.
    /// References are held as for [`split_counted`](Self::split_counted). The tables on the way are
    /// this space's own ([`unshare`](Self::unshare), [`unshare_ends`](Self::unshare_ends)).
    ///
    /// No large page appears at an end afterwards: the caller has stored, before this call, what
    /// `decide` of [`with_large`](Self::with_large) looks at. `reserve` was made for the range, and
    /// no other CPU has unmapped pages since. So no memory is needed; and if there were lowest
    /// tables with pages then, there is nothing to do, and nothing is walked.
    ///
    /// # Errors
    /// As for [`split_counted`](Self::split_counted); [`Error::NotTheTables`]: `pending` or
    /// `reserve` is of other tables.
    ///
    /// # Safety
    /// As for [`split_counted`](Self::split_counted); the flush is added to `pending`.
    pub unsafe fn split_ends<'p>(
        &'p self,
        range: VirtRange,
        reserve: &mut Reserve<'p, M, F, G>,
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> core::result::Result<(), Error> {
        let Reserve(spare) = reserve;
        if !pending.is_of(self) || !spare.is_of(self) {
            return Err(Error::NotTheTables);
        }
        if spare.len() == 0 {
            return Ok(());
        }
        ends::<F>(range)
            .try_for_each(|at| self.split_to(at, 0, PieceReferences::Ends, spare, pending))
    }

    fn split_to(
        &self,
        at: VirtAddr,
        wanted: u8,
        pieces: PieceReferences,
        spare: &mut Spare<'_, M, F, G>,
        pending: &mut PendingFlush<'_, M, F, G>,
    ) -> core::result::Result<(), Error> {
        let range = span_at::<F>(at, 0).ok_or(Error::Empty)?;
        let mut needed = 0;
        loop {
            // Each time: another CPU may fork from these tables.
            self.unshare(range)?;
            spare.fill(mem::take(&mut needed))?;
            let guard = G::pin();
            let walk = self.walk(&guard);
            let spot = walk.find(at, wanted).ok_or(Error::Malformed(at))?;
            let (Decoded::Page(..), Some(size)) = (spot.found, F::size_at(spot.level)) else {
                match spot.found {
                    Decoded::Malformed => return Err(Error::Malformed(at)),
                    Decoded::Absent if pieces == PieceReferences::Ends => {
                        // A page may appear there until the lock is held, and none that a CPU
                        // decided on by what was stored before this call does later.
                        let table = spot.entry.table();
                        let Some(locked) = lock::<M, F>(self.machine(), table, at)? else {
                            continue;
                        };
                        let still = self.may_change(&walk, at, spot.level, &locked)
                            && F::decode(spot.entry.load(), spot.level) == Decoded::Absent;
                        if !still {
                            continue;
                        }
                    }
                    _ => {}
                }
                return Ok(());
            };
            if spot.level <= wanted {
                return Ok(());
            }
            let steps = usize::from(spot.level - wanted);
            if spare.len() < steps {
                needed = steps;
                continue;
            }
            let Some(new) = spare.take(spot.level - 1) else { return Err(Error::Malformed(at)) };
            let table = spot.entry.table();
            let done = match lock::<M, F>(self.machine(), table, at) {
                Ok(Some(locked)) if self.may_change(&walk, at, spot.level, &locked) => {
                    self.split_entry(at, &spot.entry, spot.level, new, pieces)
                }
                Ok(_) => Ok(false),
                Err(error) => Err(error),
            };
            if done == Ok(true) {
                self.flush_during_fork(&walk, at, spot.level, table);
                drop(self.publish_page(at, size));
            }
            match done {
                // The break has flushed it.
                Ok(true) if F::BREAK_BEFORE_MAKE => {}
                Ok(true) => {
                    if let Some(range) = VirtRange::new(at.align_down(size), size.bytes()) {
                        pending.gather.add(range, size);
                    }
                }
                // Another CPU changed the entry first: walk again.
                Ok(false) => spare.put(new),
                Err(error) => {
                    spare.put(new);
                    return Err(error);
                }
            }
        }
    }

    /// Called with the lock of the entry's table. If it returns `false` or an error, the new table
    /// is empty again.
    fn split_entry(
        &self,
        at: VirtAddr,
        entry: &machine::Entry<'_, M>,
        level: u8,
        new: Frame,
        pieces: PieceReferences,
    ) -> core::result::Result<bool, Error> {
        let link = F::table(new)?;
        let info = self.machine().info(new);
        let (mut value, mut divided) = (entry.load(), pieces == PieceReferences::Lent);
        while let Decoded::Page(frame, attrs) = F::decode(value, level) {
            if let Err(error) = self.fill_table(new, level - 1, frame, attrs) {
                self.empty_table(new);
                return Err(error);
            }
            if !core::mem::replace(&mut divided, true)
                && let Err(error) = self.divide(frame, level)
            {
                self.empty_table(new);
                return Err(error);
            }
            // SAFETY: the count of a table that is ours alone. Relaxed: the exchange below links
            // it, with Release.
            info.inspect(|info| unsafe { info.word() }.store(F::ENTRIES as u32, Ordering::Relaxed));
            let done = match F::BREAK_BEFORE_MAKE && attrs.flags.intersects(Flags::RWX) {
                // Hardware sets no bit of the broken entry, and the lock is held.
                true => self.break_page(at, level, entry, value).map(|()| entry.store(link)),
                false => entry.compare_exchange(value, link),
            };
            match done {
                Ok(()) => return Ok(true),
                // Hardware has set accessed or dirty bits: copy them to the pieces.
                Err(now) => value = now,
            }
        }
        // The table is still empty: with the lock held, only hardware changes the entry of a page,
        // and it stays one.
        Ok(false)
    }

    /// Makes the block of a large page of this level ready for pieces that hold a reference each.
    /// Called with the lock of the page's table, so the entry stays a page.
    fn divide(&self, frame: Frame, level: u8) -> core::result::Result<(), Error> {
        let machine = self.machine();
        if !is_counted(machine, frame) {
            return Ok(());
        }
        // A piece of several frames has one reference, and frames outside of the page have no
        // piece. So only a block that the pieces have frame by frame is split into frames.
        let order = machine.info(frame).map(FrameInfo::order);
        let by_frames = F::size_at(level - 1).map(PageSize::order) == Some(0)
            && order == Some(F::LARGE.order());
        // SAFETY: the entry holds a reference. If it is the only one, no other code relies on the
        // block: the exchange of the count decides. A pin without a lock that comes later finds
        // single frames.
        if by_frames && unsafe { machine.split(frame) }.is_ok() {
            return Ok(());
        }
        let more = F::ENTRIES as u32 - 1;
        match block_of(machine, frame).is_some_and(|(_, info)| info.try_get_many(more)) {
            true => Ok(()),
            false => Err(Error::Frames(FrameError::InUse { frame, refs: u32::MAX, pins: 0 })),
        }
    }

    fn fill_table(
        &self,
        table: Frame,
        level: u8,
        first: Frame,
        attrs: Attrs,
    ) -> core::result::Result<(), Error> {
        let Some(size) = F::size_at(level) else { return Ok(()) };
        // SAFETY: a table that is not linked yet.
        let entries = unsafe { entries::<M, F>(self.machine(), table) };
        for entry in entries.iter().flat_map(|all| all.range(0..F::ENTRIES)) {
            let frame = first.checked_add(entry.index() as u64 * size.frames()).unwrap_or(first);
            entry.store(F::page(size, frame, attrs)?);
        }
        Ok(())
    }

    fn empty_table(&self, table: Frame) {
        // SAFETY: a table that is not linked.
        let entries = unsafe { entries::<M, F>(self.machine(), table) };
        entries.iter().flat_map(|all| all.range(0..F::ENTRIES)).for_each(|entry| entry.store(0));
    }
}
