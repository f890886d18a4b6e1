//! Dirty logging: which pages of a range were written since they were looked at last.
//!
//! For a guest that moves while it runs, for snapshots, and for write-back. The entry of a page is
//! the record: its dirty bit, or its right to write.
//!
//! # Why no write is lost
//! [`collect_dirty`](PageTables::collect_dirty) takes the mark of a page by an atomic operation, and
//! reports the page if there was one. Until the flush that follows, CPUs may write to the page by
//! what they have cached, and leave no mark. The caller reads the contents after the flush. So it
//! sees these writes. A write after the flush finds no mark in the CPU's TLB, and makes one: the
//! next round reports the page.
//!
//! Cost: as a [`sweep`](PageTables::sweep), with a locked instruction for each page that was
//! written, and one flush for each round. Write protection costs a fault for each page and round.

use super::{EntryChange, Error, Result, SweepChange, rest};
use crate::format::{Attrs, Decoded, Flags, Format, Geometry, load};
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use crate::walk::Mapping;
use grace::Concurrent;
use machine::{Machine, VirtAddr, VirtRange};

/// The mark that a write leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Logging {
    /// The dirty bit, which hardware sets.
    DirtyBits,
    /// The right to write. Logging takes it, so the first write to a page faults, and
    /// [`log_write`](PageTables::log_write) gives it back. For hardware without dirty bits.
    WriteProtection,
}

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Begins to log the writes to a range: splits its large pages into the smallest, and takes
    /// all marks. When `pending` has been flushed, each page that is written gets a mark. Deferred
    /// frees may run: see [Context](Self#context).
    ///
    /// # Errors
    /// As for [`split`](Self::split) and [`sweep`](Self::sweep). Some large pages may be split, and
    /// some marks taken.
    ///
    /// # Safety
    /// As for [`sweep`](Self::sweep), and for [`split`](Self::split): the caller may change these
    /// pages.
    pub unsafe fn log_start<'p>(
        &'p self,
        range: VirtRange,
        how: Logging,
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> core::result::Result<(), Error> {
        let mut next = Some(range.start());
        while let Some(at) = next.filter(|at| range.contains(*at)) {
            let large = {
                let guard = G::pin();
                let rest = rest(range, at).unwrap_or(range);
                self.walk(&guard).pages(rest).find(|page| page.size != F::PAGE)
            };
            let Some(large) = large else { break };
            // SAFETY: passed on. The flush comes at once.
            match unsafe { self.split(large.page, F::PAGE) } {
                Ok(split) => split.flush(),
                Err(failed) => return Err(failed.error),
            }
            next = large.page.checked_add(F::LARGE.bytes());
        }
        // SAFETY: passed on.
        unsafe { self.collect_dirty(range, how, pending, |_| ()) }
    }

    /// Calls `dirty` with each page of the range that has a mark, and takes the mark. After the
    /// flush of `pending`, the caller reads the contents of these pages. `dirty` runs with a
    /// table's lock held, as `change` of a [`sweep`](Self::sweep).
    ///
    /// # Errors
    /// As for [`sweep`](Self::sweep).
    ///
    /// # Safety
    /// As for [`sweep`](Self::sweep).
    pub unsafe fn collect_dirty<'p>(
        &'p self,
        range: VirtRange,
        how: Logging,
        pending: &mut PendingFlush<'p, M, F, G>,
        mut dirty: impl FnMut(Mapping),
    ) -> core::result::Result<(), Error> {
        let each = |page: Mapping| {
            let flags = page.attrs.flags;
            match how {
                Logging::DirtyBits if flags.contains(Flags::DIRTY) => {
                    dirty(page);
                    SweepChange::Clean
                }
                Logging::WriteProtection if flags.contains(Flags::WRITE) => {
                    dirty(page);
                    SweepChange::Set(Attrs { flags: flags - Flags::WRITE, ..page.attrs })
                }
                _ => SweepChange::Keep,
            }
        };
        // SAFETY: passed on.
        unsafe { self.sweep(range, pending, each) }.map(drop)
    }

    /// For a fault by a write, where logging has taken the right to write: gives it back, which
    /// marks the page, if `may_write` agrees. It gets the page, with the table's lock held. Returns
    /// whether the page may be written now; then the access is made again. No flush is pending.
    ///
    /// Cost and context as for [`with_entry`](Self::with_entry).
    ///
    /// # Errors
    /// As for [`with_entry`](Self::with_entry).
    ///
    /// # Safety
    /// As for [`with_entry`](Self::with_entry), for a page that may be written if `may_write` says
    /// so.
    pub unsafe fn log_write(
        &self,
        guard: &G::Guard,
        at: VirtAddr,
        may_write: impl FnOnce(Mapping) -> bool,
    ) -> Result<'_, bool, M, F, G> {
        let decide = |page: Option<Mapping>| match page {
            Some(page) if page.attrs.flags.contains(Flags::WRITE) => (EntryChange::Keep, true),
            Some(page) if page.attrs.flags.contains(Flags::READ) && may_write(page) => {
                let flags = page.attrs.flags | Flags::WRITE | Flags::DIRTY;
                (EntryChange::Set(page.frame, Attrs { flags, ..page.attrs }), true)
            }
            _ => (EntryChange::Keep, false),
        };
        // SAFETY: passed on.
        let (may, pending) = unsafe { self.with_entry(guard, at, decide) }?;
        pending.flush();
        Ok(may)
    }

    /// Puts a large page in the place of the lowest table at `at`, if its pages are the pieces of a
    /// block in their order, with the same attributes. Only their accessed and dirty bits may
    /// differ: the large page has both, so that none is lost. Returns whether it did. The flush is
    /// added to `pending`.
    ///
    /// Cost: a load for each page, and as for [`collapse`](Self::collapse).
    ///
    /// # Errors
    /// As for [`collapse`](Self::collapse).
    ///
    /// # Safety
    /// As for [`sweep`](Self::sweep). No other CPU changes these pages meanwhile, except that
    /// hardware marks them.
    pub unsafe fn rejoin<'p>(
        &'p self,
        at: VirtAddr,
        pending: &mut PendingFlush<'p, M, F, G>,
    ) -> core::result::Result<bool, Error> {
        let marks = Flags::ACCESSED | Flags::DIRTY;
        let first = {
            let guard = G::pin();
            let walk = self.walk(&guard);
            let Some(spot) = walk.find(at, 0).filter(|spot| spot.level == 0) else {
                return Ok(false);
            };
            let Decoded::Page(first, attrs) = spot.found else { return Ok(false) };
            let unmarked = |attrs: Attrs| Attrs { flags: attrs.flags | marks, ..attrs };
            let is_piece = |index: usize| {
                let entry = walk.entry(spot.entry.table(), index)?;
                let value = load::<M, F>(&entry, 0);
                let Decoded::Page(frame, of) = F::decode(value, 0) else { return None };
                let same = Some(frame) == first.checked_add(index as u64 * F::PAGE.frames());
                (same && unmarked(of) == unmarked(attrs)).then_some(())
            };
            let whole = at.is_aligned(F::LARGE)
                && first.is_aligned(F::LARGE)
                && (0..F::ENTRIES).all(|index| is_piece(index).is_some());
            whole.then(|| (first, unmarked(attrs)))
        };
        let Some((frame, attrs)) = first else { return Ok(false) };
        // SAFETY: passed on. The block has the frames of the pieces, so a write by an old
        // translation is none to other memory.
        unsafe { self.collapse(at, frame, attrs, pending, |_| ()) }.map(|()| true)
    }
}
