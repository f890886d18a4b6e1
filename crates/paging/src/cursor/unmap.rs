//! Unmapping pages.

use super::{Error, Failed, Result, Slot, covers};
use crate::format::{Decoded, Flags, Format, alone};
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
        let mut pending = PendingFlush::nothing(self);
        let checked = self.unshare(range).and_then(|()| {
            let guard = G::pin();
            self.check_ends(&self.walk(&guard), range)
        });
        match checked.and_then(|()| self.clear(range, &mut pending, gone)) {
            Ok(()) => Ok(pending),
            Err(error) => Err(Failed { error, pending }),
        }
    }

    pub(super) fn clear<'p>(
        &'p self,
        range: VirtRange,
        pending: &mut PendingFlush<'p, M, F, G>,
        mut gone: impl FnMut(Mapping),
    ) -> core::result::Result<(), Error> {
        self.each_page(range, pending, |pending, count, slot| {
            Self::take_page(range, pending, count, slot, &mut gone)
        })
    }

    /// Clears the entry of a page, and calls `gone` with the page.
    #[inline(always)]
    pub(super) fn take_page(
        range: VirtRange,
        pending: &mut PendingFlush<'_, M, F, G>,
        count: &mut u32,
        Slot { at, level, entry, .. }: Slot<'_, M>,
        gone: &mut impl FnMut(Mapping),
    ) -> core::result::Result<(), Error> {
        let Some(size) = F::size_at(level) else { return Err(Error::Malformed(at)) };
        let page = at.align_down(size);
        if !covers(range, page, size) {
            return Err(Error::Cut(page, size));
        }
        // A swap: it includes the bits that hardware has set since the entry was read.
        let was = entry.swap(0);
        // Before `gone`, which may panic: the entry is cleared, so it must not count.
        *count -= 1;
        if let Decoded::Page(frame, attrs) = F::decode(alone::<F>(was, level, entry.index()), level)
        {
            // A `PROT_NONE` page is not cached. But its table may become empty, and hardware
            // may have cached the way to it.
            if let Some(range) = VirtRange::new(page, size.bytes()) {
                let cached = attrs.flags.intersects(Flags::RWX);
                pending.gather.add(range, if cached { size } else { F::PAGE });
            }
            gone(Mapping { page, size: F::size_at(level).unwrap_or_default(), frame, attrs });
        }
        Ok(())
    }
}
