//! Fast path for small kernel mappings with a deferred flush: pages of level 0, of 4 KiB with that
//! granule.
//!
//! These calls do the work of [`map_with`](PageTables::map_with) and [`unmap`](PageTables::unmap)
//! with fewer checks for each page: attributes are encoded once, there is no search for a larger
//! page, and accessed and dirty bits are ignored. An owner of a whole stretch of one table (2 MiB)
//! can keep the table, a [`Leaf`], and skip the walk.
//!
//! Correct for the reasons of the [cursor](super). An entry is cleared by a store, not a swap. If hardware
//! marks the entry accessed or dirty at the same moment, either the mark comes first and is lost,
//! or hardware finds the entry absent.

use super::{CheckedBlock, Error, Failed, Result, fill};
use crate::format::{Attrs, Decoded, Format, Geometry, entries, span_at};
use crate::lock::{Locked, lock};
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use crate::walk::{Mapping, beyond};
use core::ops::Range;
use grace::Concurrent;
use machine::{Entries, Frame, Machine, PageSize, VirtAddr, VirtRange};

/// The lowest table for kernel addresses, for 2 MiB of them with a granule of 4 KiB; see
/// [`PageTables::leaf`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf(Frame);

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Maps frames, in any order and of any owner, to consecutive pages of level 0. Each is the
    /// first of its page's frames. All of these pages must be unmapped. Deferred frees may run: see
    /// [Context](Self#context).
    ///
    /// Cost: for each table a walk and one locked instruction; for each page a load and a store.
    ///
    /// # Errors
    /// As for [`map`](PageTables::map).
    ///
    /// # Safety
    /// As for [`map`](PageTables::map).
    pub unsafe fn map_frames(
        &self,
        start: VirtAddr,
        frames: &[Frame],
        attrs: Attrs,
    ) -> Result<'_, (), M, F, G> {
        let mut pending = PendingFlush::nothing(self);
        let bytes = (frames.len() as u64).checked_mul(F::PAGE.bytes());
        let range = bytes.and_then(|bytes| VirtRange::new(start, bytes));
        let range = range.ok_or(Error::NotCanonical(start));
        let checked = range.and_then(|range| {
            self.check(range)?;
            self.check_kind(range.start(), attrs.flags)?;
            Ok((range, F::page(F::PAGE, Frame::default(), attrs)?))
        });
        let (range, kind) = match checked {
            Ok(checked) => checked,
            Err(error) => return Err(Failed { error, pending }),
        };
        let _published = self.publish(range);
        let (mut at, mut rest, mut lent) = (start, frames, CheckedBlock::default());
        while !rest.is_empty() {
            let index = F::index(at, 0);
            let (now, later) = rest.split_at(rest.len().min(F::ENTRIES - index));
            let mut mapped = 0;
            let mut places = now.iter().zip((at.get()..).step_by(F::PAGE.bytes() as usize));
            let checked = places.try_for_each(|(frame, at)| {
                self.check_frames(&mut lent, VirtAddr::new(at), *frame, F::PAGE.frames())
            });
            let done = checked.and_then(|()| {
                self.with_memory(|| {
                    let guard = G::pin();
                    let walk = self.walk(&guard);
                    let mut locked = self.table_for(&walk, at, 0, &mut self.no_flush())?;
                    let entries = walk.entries(locked.table).ok_or(Error::Malformed(at))?;
                    mapped = fill_alike::<M, F>(&entries, index, now, kind, &mut locked);
                    Ok(())
                })
            });
            // The pages mapped here end after the last one that was written.
            let end = at.checked_add((mapped as u64) << F::PAGE.shift());
            let failed = match (done, now.get(mapped)) {
                (Ok(()), None) => None,
                (Err(error), _) => Some(error),
                (Ok(()), Some(frame)) => Some(why_not::<F>(end.unwrap_or(at), *frame, kind)),
            };
            if let Some(error) = failed {
                self.undo(start, end.unwrap_or(at), &mut pending);
                return Err(Failed { error, pending });
            }
            rest = later;
            // At the last address of all the sum overflows; nothing follows then.
            at = end.unwrap_or(at);
        }
        Ok(())
    }

    /// Unmaps a range of the kernel, and leaves the flush to the caller. Holes are skipped. `gone`
    /// is called with the first frame and the size of each page, with the table's lock held: it
    /// must take no table's lock, and give no frame back. Returns the number of pages. Accessed and
    /// dirty bits are not reported.
    ///
    /// Cost: for each table a walk and one locked instruction; for each small page a load and a
    /// store.
    ///
    /// # Errors
    /// As for [`unmap`](PageTables::unmap); [`Error::NotTheKernels`].
    ///
    /// # Safety
    /// As for [`unmap`](PageTables::unmap) and [`PendingFlush::leave`].
    pub unsafe fn unmap_lazily(
        &self,
        range: VirtRange,
        gone: impl FnMut(Frame, PageSize),
    ) -> core::result::Result<usize, Error> {
        // In small code, all share one loop.
        #[cfg(feature = "small")]
        let gone: &mut dyn FnMut(Frame, PageSize) = &mut { gone };
        // SAFETY: passed on.
        unsafe { self.unmap_lazily_each(range, gone) }
    }

    /// # Safety
    /// As for [`unmap_lazily`](Self::unmap_lazily).
    unsafe fn unmap_lazily_each(
        &self,
        range: VirtRange,
        mut gone: impl FnMut(Frame, PageSize),
    ) -> core::result::Result<usize, Error> {
        self.check(range)?;
        if self.space().is_some() {
            return Err(Error::NotTheKernels);
        }
        let (mut pages, mut next) = (0, Some(range.start()));
        // The ends are checked before anything changes. Within one table no page is cut, unless it
        // is a large one.
        let mut checked = same_table::<F>(range);
        while let Some(at) = next.filter(|at| range.contains(*at)) {
            let guard = G::pin();
            let walk = self.walk(&guard);
            let Some((entry, level, value, _)) = walk.descend(at, 0) else {
                return Err(Error::Malformed(at));
            };
            if !(checked && level == 0) {
                self.check_ends(&walk, range)?;
                checked = true;
            }
            next = beyond::<F>(at, level.max(1));
            if level == 0 {
                let index = entry.index();
                let left = range.len() - (at.get() - range.start().get());
                let end = (index as u64 + left.div_ceil(F::PAGE.bytes())).min(F::ENTRIES as u64);
                let Some(mut locked) = lock::<M, F>(self.machine(), entry.table(), at)? else {
                    next = Some(at);
                    continue;
                };
                let entries = walk.entries(entry.table()).ok_or(Error::Malformed(at))?;
                let each = |frame| gone(frame, F::PAGE);
                pages += clear::<M, F>(&entries, index..end as usize, &mut locked, each);
                continue;
            }
            next = beyond::<F>(at, level);
            let size = match (F::decode(value, level), F::size_at(level)) {
                (Decoded::Page(..), Some(size)) => size,
                (Decoded::Malformed, _) => return Err(Error::Malformed(at)),
                _ => continue,
            };
            let page = VirtRange::new(at, size.bytes()).ok_or(Error::Malformed(at))?;
            let each = |page: Mapping| {
                pages += 1;
                gone(page.frame, page.size);
            };
            // SAFETY: passed on.
            match unsafe { self.unmap(page, each) } {
                // SAFETY: passed on.
                Ok(pending) => drop(unsafe { pending.leave() }),
                Err(failed) => return Err(failed.error),
            }
        }
        Ok(pages)
    }

    /// The kernel's lowest table for `at`; it is made if it does not exist.
    /// Deferred frees may run: see [Context](Self#context).
    ///
    /// # Errors
    /// As for [`map`](PageTables::map).
    pub fn leaf(&self, at: VirtAddr) -> core::result::Result<Leaf, Error> {
        self.check(span_at::<F>(at, 0).ok_or(Error::Empty)?)?;
        if self.space().is_some() {
            return Err(Error::NotTheKernels);
        }
        self.with_memory(|| {
            let guard = G::pin();
            Ok(Leaf(self.table_for(&self.walk(&guard), at, 0, &mut self.no_flush())?.table))
        })
    }

    /// As [`map_frames`](Self::map_frames), in one table that the caller has kept: no walk, and no
    /// memory needed.
    ///
    /// # Errors
    /// [`Error::Occupied`], [`Error::Format`], [`Error::Malformed`]. Nothing is mapped then; some
    /// pages may have been mapped for a moment.
    ///
    /// # Safety
    /// As for [`map`](PageTables::map). Besides:
    /// - `leaf` is the table of these page tables for all of the pages;
    /// - `at` is at a page boundary;
    /// - its addresses have not been [pruned](Self::prune) since `leaf` was taken.
    pub unsafe fn map_leaf(
        &self,
        leaf: Leaf,
        at: VirtAddr,
        frames: &[Frame],
        attrs: Attrs,
    ) -> core::result::Result<(), Error> {
        let kind = F::page(F::PAGE, Frame::default(), attrs)?;
        let index = F::index(at, 0);
        let bytes = frames.len() as u64 * F::PAGE.bytes();
        let _published = VirtRange::new(at, bytes).map(|range| self.publish(range));
        let (entries, mut locked) = self.leaf_entries(leaf, at)?;
        let mapped = fill_alike::<M, F>(&entries, index, frames, kind, &mut locked);
        match frames.get(mapped) {
            None => Ok(()),
            Some(frame) => {
                clear::<M, F>(&entries, index..index + mapped, &mut locked, |_| ());
                let at = at.checked_add((mapped as u64) << F::PAGE.shift()).unwrap_or(at);
                Err(why_not::<F>(at, *frame, kind))
            }
        }
    }

    /// As [`unmap_lazily`](Self::unmap_lazily), in one table that the caller has kept, if
    /// `is_right` returns `true`. It is called with the table's lock held, so nothing is mapped or
    /// unmapped there between the check and the unmapping. Returns `None` if it is `false`.
    ///
    /// # Errors
    /// [`Error::Malformed`]; nothing has changed.
    ///
    /// # Safety
    /// As for [`unmap_lazily`](Self::unmap_lazily); for the leaf, as for
    /// [`map_leaf`](Self::map_leaf).
    pub unsafe fn unmap_leaf(
        &self,
        leaf: Leaf,
        at: VirtAddr,
        pages: usize,
        is_right: impl FnOnce() -> bool,
    ) -> core::result::Result<Option<usize>, Error> {
        let index = F::index(at, 0);
        let (entries, mut locked) = self.leaf_entries(leaf, at)?;
        let mut clear = || clear::<M, F>(&entries, index..index + pages, &mut locked, |_| ());
        Ok(is_right().then(&mut clear))
    }

    #[cfg_attr(not(feature = "small"), inline(always))]
    fn leaf_entries(
        &self,
        leaf: Leaf,
        at: VirtAddr,
    ) -> core::result::Result<(Entries<'_, M>, Locked<'_, F>), Error> {
        let locked = lock::<M, F>(self.machine(), leaf.0, at)?.ok_or(Error::Malformed(at))?;
        // SAFETY: it is a table, and stays one: promised by the callers.
        let entries =
            unsafe { entries::<M, F>(self.machine(), leaf.0) }.ok_or(Error::Malformed(at))?;
        Ok((entries, locked))
    }
}

/// Whether a range lies in one lowest table.
fn same_table<F: Format>(range: VirtRange) -> bool {
    let large = F::LARGE;
    range.last().is_some_and(|last| last.align_down(large) == range.start().align_down(large))
}

/// Writes entries from `index` on, up to the first entry that is not absent, or the first frame
/// that has no encoding. Returns how many were written.
fn fill_alike<M: Machine, F: Format>(
    entries: &Entries<'_, M>,
    index: usize,
    frames: &[Frame],
    kind: u64,
    locked: &mut Locked<'_, F>,
) -> usize {
    let pages = frames.iter().map(|frame| F::alike(kind, *frame).ok());
    fill::<M, F>(entries.range(index..index + frames.len()), 0, pages, locked)
}

/// The reason why an entry could not be written.
#[cold]
fn why_not<F: Format>(at: VirtAddr, frame: Frame, kind: u64) -> Error {
    F::alike(kind, frame).map_or_else(Error::Format, |_| Error::Occupied(at))
}

/// Clears entries, and calls `gone` with the frame of each that was a page. Returns how many were.
fn clear<M: Machine, F: Format>(
    entries: &Entries<'_, M>,
    range: Range<usize>,
    locked: &mut Locked<'_, F>,
    mut gone: impl FnMut(Frame),
) -> usize {
    let mut done = Cleared { locked, entries: 0 };
    for entry in entries.range(range) {
        if let Decoded::Page(frame, _) = F::decode(entry.load(), 0) {
            entry.store(0);
            done.entries += 1;
            gone(frame);
        }
    }
    done.entries as usize
}

/// Entries of a table that were cleared. When this is dropped, also by a panic, they are subtracted
/// from the table's count.
struct Cleared<'c, 'm, F: Format> {
    locked: &'c mut Locked<'m, F>,
    entries: u32,
}

impl<F: Format> Drop for Cleared<'_, '_, F> {
    #[cfg_attr(not(feature = "small"), inline(always))]
    fn drop(&mut self) {
        self.locked.count -= self.entries;
    }
}
