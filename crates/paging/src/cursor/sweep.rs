//! Going through the pages of a range with the lock of every table that a page could appear in.
//!
//! `unmap` and `protect` need no lock where there is no page. A sweep takes it nevertheless, so
//! that it is ordered with each [`with_entry`](PageTables::with_entry) in the range: see `entry`.

use super::range::{Cursor, Locking};
use super::{Error, SweepChange};
use crate::format::Format;
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use crate::walk::Mapping;
use grace::Concurrent;
use machine::{Frame, Machine, PageSize, VirtAddr, VirtRange};

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Goes through the pages of a range in ascending order, with the lock of each lowest table of
    /// the range held in turn, also of a table without pages. `change` is called for each page and
    /// returns its change.
    ///
    /// Where a table is absent, the sweep locks the upper table that would lead to it, and reads
    /// the entry again. So it is ordered with each [`with_entry`](Self::with_entry) in the range:
    /// the `decide` of one that comes later sees everything that this CPU stored before the sweep.
    ///
    /// Returns the address of the page at which `change` returned [`SweepChange::Stop`], or `None`
    /// at the end of the range. To go on, the caller does the flush, and sweeps from that address.
    ///
    /// The flush of the changes is added to `pending`: for pages that are cleared, for pages that
    /// lost a right, got another key or memory type, or became private or shared with the host, and
    /// for user tables that became empty.
    /// Kernel tables stay: see [`prune`](Self::prune). Where the architecture demands
    /// break-before-make, cleared pages are also flushed before the lock of their table is given
    /// up, so that a fault may store new pages at once.
    ///
    /// An accessed or dirty bit that hardware sets between `change` and a clearing is not reported.
    /// [`unmap`](Self::unmap) reports all.
    ///
    /// Cost: a walk and one locked instruction for each lowest table; the same for each upper table
    /// with absent entries in the range, and a load for each of these entries, which stand for 2
    /// MiB, 1 GiB or 512 GiB with a granule of 4 KiB; for each page a load, and one locked
    /// instruction if it changes. No allocation.
    ///
    /// # Context
    /// Not in an interrupt. `change` takes no lock of a table, takes no other lock that is held
    /// around a call on these tables, allocates nothing, waits for no CPU, and does not call back
    /// into these tables: that would deadlock. Nor does it give a frame back, which is for after
    /// the flush.
    ///
    /// # Errors
    /// - [`Error::Empty`], [`Error::Misaligned`], [`Error::NotCanonical`], [`Error::Kernel`]: not a
    ///   range of these tables.
    /// - [`Error::Cut`]: the range cuts a page in two.
    /// - [`Error::NotTheTables`]: `pending` is of other tables.
    ///
    /// Nothing has changed then. These stop the call half-way, before the page that is at fault;
    /// the flush for the pages before it is pending:
    /// - [`Error::Global`], [`Error::NotUser`], [`Error::Format`]: the page cannot have the
    ///   attributes that `change` returned.
    /// - [`Error::Frames`]: no memory to make a table this space's own, that a fork shares. After
    ///   [`unshare`](Self::unshare), or [`unshare_ends`](Self::unshare_ends) and
    ///   [`leave_shared`](Self::leave_shared), there is none.
    /// - [`Error::Malformed`]: the tables are corrupt.
    ///
    /// If `change` panics, the changes before that stay, and their flush is pending.
    ///
    /// # Safety
    /// - *Addresses*: the pages that change are the caller's to change, and nothing relies on a
    ///   mapping or on rights that are removed.
    /// - *Frames*: they are the caller's to lend with the new rights.
    /// - *Flush*: until `pending` is flushed, the removed rights are in effect, the frames of
    ///   cleared pages are not given back, and these pages are not mapped again. A forgotten value
    ///   is not a flush.
    ///
    /// # Misuse
    /// A closure that panics leaves what is done, and the rest unchanged; the pending flush is
    /// performed. It runs with a table's lock held: it must not call the tables.
    pub unsafe fn sweep<'p>(
        &'p self,
        range: VirtRange,
        pending: &mut PendingFlush<'p, M, F, G>,
        change: impl FnMut(Mapping) -> SweepChange,
    ) -> core::result::Result<Option<VirtAddr>, Error> {
        // In small code, all share one loop.
        #[cfg(feature = "small")]
        let change: &mut dyn FnMut(Mapping) -> SweepChange = &mut { change };
        self.sweep_each(range, pending, change)
    }

    fn sweep_each<'p>(
        &'p self,
        range: VirtRange,
        pending: &mut PendingFlush<'p, M, F, G>,
        mut change: impl FnMut(Mapping) -> SweepChange,
    ) -> core::result::Result<Option<VirtAddr>, Error> {
        let _published = self.publish(range);
        let mut cursor = self.sweep_cursor(range, pending)?;
        while let Some(mut table) = cursor.next_table()? {
            while let Some((found, mut page)) = table.next_page()? {
                match change(found) {
                    SweepChange::Stop => return Ok(Some(found.page)),
                    change => page.change(found, change)?,
                }
            }
        }
        Ok(None)
    }

    /// Clears all pages of a range, as a [`sweep`](Self::sweep) that answers
    /// [`SweepChange::Clear`] for each, but for less: no attributes are decoded. `gone` is called
    /// for each page before it is cleared, with its frame and its size. If it returns `false`, the
    /// page stays, and the call ends before it. Returns the page's address then.
    ///
    /// # Context
    /// As for [`sweep`](Self::sweep), of `change`.
    ///
    /// # Errors
    /// As for [`sweep`](Self::sweep), but for those of attributes.
    ///
    /// # Safety
    /// As for [`sweep`](Self::sweep).
    pub unsafe fn sweep_clear<'p>(
        &'p self,
        range: VirtRange,
        pending: &mut PendingFlush<'p, M, F, G>,
        gone: impl FnMut(Frame, PageSize) -> bool,
    ) -> core::result::Result<Option<VirtAddr>, Error> {
        #[cfg(feature = "small")]
        let gone: &mut dyn FnMut(Frame, PageSize) -> bool = &mut { gone };
        self.sweep_clear_each(range, pending, gone)
    }

    fn sweep_clear_each<'p>(
        &'p self,
        range: VirtRange,
        pending: &mut PendingFlush<'p, M, F, G>,
        mut gone: impl FnMut(Frame, PageSize) -> bool,
    ) -> core::result::Result<Option<VirtAddr>, Error> {
        let mut cursor = self.sweep_cursor(range, pending)?;
        while let Some(mut table) = cursor.next_table()? {
            let stop = table.clear_pages(&mut gone)?;
            if stop.is_some() {
                return Ok(stop);
            }
        }
        Ok(None)
    }

    /// A cursor over the pages of a range, none of which it cuts.
    fn sweep_cursor<'c, 'p>(
        &'p self,
        range: VirtRange,
        pending: &'c mut PendingFlush<'p, M, F, G>,
    ) -> core::result::Result<Cursor<'c, 'p, M, F, G>, Error> {
        if !pending.is_of(self) {
            return Err(Error::NotTheTables);
        }
        self.check(range)?;
        self.check_ends(&self.walk(&G::pin()), range)?;
        Ok(self.cursor(range, Locking::Everywhere, pending))
    }

    /// Unlinks the tables of programs in a range that are empty, as [`sweep`](Self::sweep) does
    /// unless [`PendingFlush::keep_tables`] says otherwise. No page changes. Tables that a fork
    /// shares are made this space's own first, which may need memory. Otherwise no entry of a
    /// lowest table is read.
    ///
    /// # Context
    /// Not in an interrupt, and with no lock of a table held.
    ///
    /// # Errors
    /// As for [`sweep`](Self::sweep), but for [`Error::Cut`]; [`Error::Frames`].
    pub fn unlink_empty<'p>(
        &'p self,
        range: VirtRange,
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> core::result::Result<(), Error> {
        if !pending.is_of(self) {
            return Err(Error::NotTheTables);
        }
        self.check(range)?;
        self.cursor(range, Locking::Everywhere, pending).pass_tables()
    }
}
