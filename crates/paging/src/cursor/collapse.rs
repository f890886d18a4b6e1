//! Putting a large page in the place of the table that led to its pieces.
//!
//! Correct for the reasons of the [cursor](super): with the locks of both tables held, the entries
//! of the lower one are taken out, it is marked dead, and the upper entry becomes the page, by one
//! store. A walk that is in the old table reads absent entries.

use super::{CheckedBlock, Error};
use crate::format::{Attrs, Decoded, Format, Geometry};
use crate::lock::lock;
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use crate::walk::Mapping;
use grace::Concurrent;
use machine::{Frame, Machine, VirtAddr, VirtRange};

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Maps the block at `frame` as a page of [`Geometry::LARGE`] (2 MiB, with a granule of 4 KiB)
    /// in the place of the lowest table at `at`. `gone` is called for each page that the table
    /// mapped, with both locks held. The flush is added to `pending`; the old frames are the
    /// caller's after it. If `gone` panics, the pages that it was called with are unmapped, and the
    /// others stay.
    ///
    /// Cost: two locks, and a swap for each page. No allocation.
    ///
    /// # Context
    /// As for [`sweep`](Self::sweep).
    ///
    /// # Errors
    /// [`Error::NotTheTables`]: `pending` is of other tables. [`Error::Misaligned`], and as for
    /// [`map`](Self::map). [`Error::EmptyTable`]: there is no lowest table.
    /// [`Error::Fork`]: the way there is not this space's own: see [`unshare`](Self::unshare).
    /// Nothing has changed.
    ///
    /// # Safety
    /// As for [`sweep`](Self::sweep), for pages that are cleared, and for
    /// [`map`](Self::map). No other page appears in the range meanwhile. A CPU that uses an old
    /// page before the flush has no right to write to it, and the block has the same contents; or
    /// the block consists of the old pages.
    pub unsafe fn collapse<'p>(
        &'p self,
        at: VirtAddr,
        frame: Frame,
        attrs: Attrs,
        pending: &mut PendingFlush<'p, M, F, G>,
        mut gone: impl FnMut(Mapping),
    ) -> core::result::Result<(), Error> {
        let size = F::LARGE;
        if !pending.is_of(self) {
            return Err(Error::NotTheTables);
        }
        if !at.is_aligned(size) {
            return Err(Error::Misaligned(at));
        }
        let range = VirtRange::new(at, size.bytes()).ok_or(Error::Empty)?;
        self.check(range)?;
        let _published = self.publish(range);
        self.check_kind(at, attrs.flags)?;
        let value = F::page(size, frame, attrs)?;
        self.check_frames(&mut CheckedBlock::default(), at, frame, size.frames())?;
        let guard = G::pin();
        let walk = self.walk(&guard);
        let spot = walk.find(at, 1).filter(|spot| spot.level == 1);
        let spot = spot.ok_or(Error::EmptyTable(at))?;
        let upper = lock::<M, F>(self.machine(), spot.entry.table(), at)?.ok_or(Error::Fork)?;
        if !self.may_change(&walk, at, 1, &upper) {
            return Err(Error::Fork);
        }
        let link = spot.entry.load();
        let Decoded::Table(table) = F::decode(link, 1) else { return Err(Error::EmptyTable(at)) };
        let lower = lock::<M, F>(self.machine(), table, at)?.ok_or(Error::Malformed(at))?;
        if link & F::OWN == 0 || lower.shares != 0 {
            return Err(Error::Fork);
        }
        let (lower, mut next) = (self.locked_table(walk, at, 0, lower, pending), None);
        let mut pages = lower.pages(range, &mut next)?;
        pages.table.unlinks = true;
        // Given up before the lower table: if `gone` panics, that one may be empty, and is
        // unlinked.
        let upper = upper;
        while let Some((_, mut page)) = pages.next_page()? {
            if let Some(page) = page.take() {
                gone(page);
            }
        }
        pages.kill();
        if F::BREAK_BEFORE_MAKE {
            self.break_table(at, size, &spot.entry, value)?;
        } else {
            spot.entry.store(value);
        }
        drop(upper);
        pending.gather.add(range, F::PAGE);
        pending.gather.add_table(self.machine(), table);
        self.paging().went();
        Ok(())
    }
}
