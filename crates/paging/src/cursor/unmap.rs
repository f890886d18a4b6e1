//! Unmapping.

use super::{Error, Failed, Result, Slot, covers};
use crate::format::{Decoded, Flags, Format, size_at};
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use crate::walk::Mapping;
use grace::Concurrent;
use machine::{Machine, VirtRange};

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Unmaps what is mapped in a range; holes do not matter. `gone` is called with each page as it
    /// was at the end, accessed and dirty bits included, with a table's lock held: it takes none,
    /// and gives no frame back; that is for after the flush.
    ///
    /// Tables of a program that become empty are unlinked; what is mapped in the same 2 MiB by
    /// others before the flush may fault once more, spuriously. Those of the kernel stay: see
    /// [`prune`](PageTables::prune).
    ///
    /// # Errors
    /// A range that is not one of these tables' ([`Error::Empty`], [`Error::Misaligned`],
    /// [`Error::NotCanonical`], [`Error::Kernel`]), or cuts a page ([`Error::Cut`]).
    /// [`Error::Malformed`] stops it half-way: somebody has scribbled on the tables.
    ///
    /// # Safety
    /// - *Addresses*: the range is the caller's to change, and nothing relies any more on what is
    ///   mapped there.
    /// - *Flush*: until the flush that is returned is done, the frames are not given back, and the
    ///   range is not mapped anew. Forgetting the value does not do it.
    ///
    /// And `gone` does not call back into these tables: it would wait for the lock that is held. If
    /// it panics, the pages that it was called with, the last one too, are unmapped and flushed
    /// when the panic goes on; all others are mapped as before.
    pub unsafe fn unmap(
        &self,
        range: VirtRange,
        gone: impl FnMut(Mapping),
    ) -> Result<'_, PendingFlush<'_, M, F, G>, M, F, G> {
        let mut owed = PendingFlush::nothing(self);
        let checked = self.check(range).and_then(|()| {
            let guard = G::pin();
            self.check_ends(&self.walk(&guard), range)
        });
        match checked.and_then(|()| self.clear(range, &mut owed, gone)) {
            Ok(()) => Ok(owed),
            Err(error) => Err(Failed { error, owed }),
        }
    }

    pub(super) fn clear<'p>(
        &'p self,
        range: VirtRange,
        owed: &mut PendingFlush<'p, M, F, G>,
        mut gone: impl FnMut(Mapping),
    ) -> core::result::Result<(), Error> {
        self.each_page(range, owed, |owed, count, Slot { at, level, entry, .. }| {
            let Some(size) = size_at(level) else { return Err(Error::Malformed(at)) };
            let page = at.align_down(size);
            if !covers(range, page, size) {
                return Err(Error::Cut(page, size));
            }
            // What hardware has marked since it was looked at is in it.
            let was = entry.swap(0);
            // Before `gone`, which may panic: what is done counts.
            *count -= 1;
            if let Decoded::Page(frame, attrs) = F::decode(was, level) {
                // A parked page is cached nowhere; but the table may go, and hardware knows the way
                // there.
                if let Some(range) = VirtRange::new(page, size.bytes()) {
                    let size = if attrs.flags.intersects(Flags::RWX) { Some(size) } else { None };
                    owed.gather.add(range, size.unwrap_or_default());
                }
                gone(Mapping { page, size: size_at(level).unwrap_or_default(), frame, attrs });
            }
            Ok(())
        })
    }
}
