//! Unmapping pages.

use super::{Error, Locking, Result};
use crate::format::Format;
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use crate::walk::Mapping;
use grace::Concurrent;
use machine::{Machine, VirtRange};

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Unmaps a range. Holes are skipped. `gone` is called with each page as it was at the end,
    /// accessed and dirty bits included. It runs with a table's lock held: it must take no table's
    /// lock, and give no frame back, which is for after the flush.
    ///
    /// User tables that become empty are unlinked. Until the flush, another caller's mapping in the
    /// same 2 MiB may fault once, spuriously. Kernel tables stay: see [`prune`](PageTables::prune).
    ///
    /// # Errors
    /// - [`Error::Empty`], [`Error::Misaligned`], [`Error::NotCanonical`], [`Error::Kernel`]: not a
    ///   range of these tables.
    /// - [`Error::Cut`]: the range cuts a page in two.
    /// - [`Error::Malformed`]: the tables are corrupt. This stops the call half-way.
    ///
    /// # Safety
    /// - *Addresses*: the range is the caller's to change, and nothing relies on its mappings any
    ///   more.
    /// - *Flush*: until the returned flush is done, the frames are not given back, and the range is
    ///   not mapped again. A forgotten value is not a flush.
    ///
    /// Besides, `gone` must not call back into these tables: it would deadlock on the held lock. If
    /// it panics, the pages that it was called with, including the last, are unmapped, and flushed
    /// when the panic goes on. All others stay mapped.
    pub unsafe fn unmap(
        &self,
        range: VirtRange,
        gone: impl FnMut(Mapping),
    ) -> Result<'_, PendingFlush<'_, M, F, G>, M, F, G> {
        let unmapped = self.with_flush(|pending| {
            self.unshare(range)?;
            self.check_ends(&self.walk(&G::pin()), range)?;
            self.clear(range, pending, gone)
        });
        unmapped.map(|((), pending)| pending)
    }

    pub(super) fn clear<'p>(
        &'p self,
        range: VirtRange,
        pending: &mut PendingFlush<'p, M, F, G>,
        mut gone: impl FnMut(Mapping),
    ) -> core::result::Result<(), Error> {
        let mut cursor = self.cursor(range, Locking::WherePages, pending);
        while let Some(mut table) = cursor.next_table()? {
            while let Some((_, mut page)) = table.next_page()? {
                page.take().into_iter().for_each(&mut gone);
            }
        }
        Ok(())
    }
}
