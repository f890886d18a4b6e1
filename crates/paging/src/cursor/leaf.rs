//! Pages of 4 KiB, table by table: for who maps frames one by one, again and again, and leaves the
//! flush to others.
//!
//! What [`map_with`](PageTables::map_with) and [`unmap`](PageTables::unmap) do, with less to ask at
//! each page: its attributes are encoded once, there is no larger page to look for, and what
//! hardware has marked is nobody's concern. Who has a stretch of 2 MiB to himself can keep the
//! table for it, a [`Leaf`], and need not walk any more.
//!
//! Why it is right: as the [cursor](super). An entry is cleared by a store, not a swap: hardware
//! that marks it at the same moment does so before, and the mark is lost, or finds it absent.

use super::{Error, Failed, Lent, Result, fill};
use crate::format::{Attrs, Decoded, Format, size_at};
use crate::lock::{Locked, lock};
use crate::pending::PendingFlush;
use crate::tables::PageTables;
use crate::walk::{Mapping, beyond};
use core::ops::Range;
use core::sync::atomic::AtomicU32;
use grace::Concurrent;
use machine::{ENTRIES, Entries, Frame, Machine, PageSize, VirtAddr, VirtRange};

/// The table for 2 MiB of the kernel's addresses; see [`PageTables::leaf`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf(Frame);

impl<M: Machine, F: Format, G: Concurrent> PageTables<M, F, G> {
    /// Maps frames, whoever's they are, to pages of 4 KiB that follow one another. All of them were
    /// unmapped. Deferred frees may run: see [Context](Self#context).
    ///
    /// Cost: for each table a walk and one locked instruction; for each page a load and a store.
    ///
    /// # Errors
    /// As [`map`](PageTables::map).
    ///
    /// # Safety
    /// As for [`map`](PageTables::map).
    pub unsafe fn map_frames(
        &self,
        start: VirtAddr,
        frames: &[Frame],
        attrs: Attrs,
    ) -> Result<'_, (), M, F, G> {
        let mut owed = PendingFlush::nothing(self);
        let bytes = (frames.len() as u64).checked_mul(PageSize::Size4K.bytes());
        let range = bytes.and_then(|bytes| VirtRange::new(start, bytes));
        let range = range.ok_or(Error::NotCanonical(start));
        let checked = range.and_then(|range| {
            self.check(range)?;
            self.check_kind(range, attrs.flags)?;
            Ok(F::page(PageSize::Size4K, Frame::default(), attrs)?)
        });
        let kind = match checked {
            Ok(kind) => kind,
            Err(error) => return Err(Failed { error, owed }),
        };
        let (mut at, mut rest, mut lent) = (start, frames, Lent::default());
        while !rest.is_empty() {
            let index = F::index(at, 0);
            let (now, later) = rest.split_at(rest.len().min(ENTRIES - index));
            let mut mapped = 0;
            let mut places = now.iter().zip((at.get()..).step_by(4096));
            let checked = places.try_for_each(|(frame, at)| {
                self.check_frames(&mut lent, VirtAddr::new(at), *frame, 1)
            });
            let done = checked.and_then(|()| {
                self.with_memory(|| {
                    let guard = G::pin();
                    let walk = self.walk(&guard);
                    let (table, mut locked) = self.table_for(&walk, at, 0)?;
                    let entries = walk.entries(table).ok_or(Error::Malformed(at))?;
                    mapped = fill_alike::<M, F>(&entries, index, now, kind, &mut locked);
                    Ok(())
                })
            });
            // What was mapped here ends behind the last page that was.
            let end = at.checked_add((mapped as u64) << 12);
            let failed = match (done, now.get(mapped)) {
                (Ok(()), None) => None,
                (Err(error), _) => Some(error),
                (Ok(()), Some(frame)) => Some(why_not::<F>(end.unwrap_or(at), *frame, kind)),
            };
            if let Some(error) = failed {
                self.undo(start, end.unwrap_or(at), &mut owed);
                return Err(Failed { error, owed });
            }
            rest = later;
            // A range that reaches the last address ends there.
            at = end.unwrap_or(at);
        }
        Ok(())
    }

    /// Unmaps what is mapped in a range of the kernel, and leaves the flush to the caller; holes do
    /// not matter. `gone` is called with the first frame of each page, and its size, with a table's
    /// lock held: it takes none, and gives no frame back. Returns how many pages there were. What
    /// hardware has marked is not told.
    ///
    /// Cost: for each table a walk and one locked instruction; for each page of 4 KiB a load and a
    /// store.
    ///
    /// # Errors
    /// As [`unmap`](PageTables::unmap); [`Error::NotTheKernels`].
    ///
    /// # Safety
    /// As for [`unmap`](PageTables::unmap) and [`PendingFlush::leave`].
    pub unsafe fn unmap_lazily(
        &self,
        range: VirtRange,
        mut gone: impl FnMut(Frame, PageSize),
    ) -> core::result::Result<usize, Error> {
        self.check(range)?;
        if self.space().is_some() {
            return Err(Error::NotTheKernels);
        }
        let (mut pages, mut next) = (0, Some(range.start()));
        // The ends are looked at before anything changes; within one table no page is cut, unless
        // it is larger.
        let mut checked = same_table(range);
        while let Some(at) = next.filter(|at| range.contains(*at)) {
            let guard = G::pin();
            let walk = self.walk(&guard);
            let Some((entry, level, value)) = walk.descend(at, 0) else {
                return Err(Error::Malformed(at));
            };
            if !(checked && level == 0) {
                self.check_ends(&walk, range)?;
                checked = true;
            }
            next = beyond(at, level.max(1));
            if level == 0 {
                let index = entry.index();
                let left = range.len() - (at.get() - range.start().get());
                let end =
                    (index as u64 + left.div_ceil(PageSize::Size4K.bytes())).min(ENTRIES as u64);
                let Some(mut locked) = lock(self.machine(), entry.table(), at)? else {
                    next = Some(at);
                    continue;
                };
                let entries = walk.entries(entry.table()).ok_or(Error::Malformed(at))?;
                let each = |frame| gone(frame, PageSize::Size4K);
                pages += clear::<M, F>(&entries, index..end as usize, &mut locked, each);
            } else if let (Decoded::Page(..), Some(size)) =
                (F::decode(value, level), size_at(level))
            {
                let page = VirtRange::new(at, size.bytes()).ok_or(Error::Malformed(at))?;
                let each = |page: Mapping| {
                    pages += 1;
                    gone(page.frame, page.size);
                };
                // SAFETY: passed on.
                match unsafe { self.unmap(page, each) } {
                    // SAFETY: passed on.
                    Ok(owed) => drop(unsafe { owed.leave() }),
                    Err(failed) => return Err(failed.error),
                }
                next = beyond(at, level);
            } else {
                next = beyond(at, level);
            }
        }
        Ok(pages)
    }

    /// The kernel's table for the 2 MiB that `at` lies in; made if it is not there. Deferred frees
    /// may run: see [Context](Self#context).
    ///
    /// # Errors
    /// As [`map`](PageTables::map).
    pub fn leaf(&self, at: VirtAddr) -> core::result::Result<Leaf, Error> {
        let page = at.align_down(PageSize::Size4K);
        self.check(VirtRange::new(page, PageSize::Size4K.bytes()).ok_or(Error::Empty)?)?;
        if self.space().is_some() {
            return Err(Error::NotTheKernels);
        }
        self.with_memory(|| {
            let guard = G::pin();
            Ok(Leaf(self.table_for(&self.walk(&guard), at, 0)?.0))
        })
    }

    /// As [`map_frames`](Self::map_frames), in one table that the caller has kept: no walk, and no
    /// memory is needed.
    ///
    /// # Errors
    /// [`Error::Occupied`], [`Error::Format`], [`Error::Malformed`]. Nothing is mapped then;
    /// something may have been for a moment.
    ///
    /// # Safety
    /// As for [`map`](PageTables::map). And the leaf is of the 2 MiB that all pages lie in, which
    /// are whole frames of 4 KiB of these tables; and nobody has [pruned](Self::prune) them since.
    pub unsafe fn map_leaf(
        &self,
        leaf: Leaf,
        at: VirtAddr,
        frames: &[Frame],
        attrs: Attrs,
    ) -> core::result::Result<(), Error> {
        let kind = F::page(PageSize::Size4K, Frame::default(), attrs)?;
        let index = F::index(at, 0);
        let (entries, mut locked) = self.leaf_entries(leaf, at)?;
        let mapped = fill_alike::<M, F>(&entries, index, frames, kind, &mut locked);
        match frames.get(mapped) {
            None => Ok(()),
            Some(frame) => {
                clear::<M, F>(&entries, index..index + mapped, &mut locked, |_| ());
                let at = at.checked_add((mapped as u64) << 12).unwrap_or(at);
                Err(why_not::<F>(at, *frame, kind))
            }
        }
    }

    /// As [`unmap_lazily`](Self::unmap_lazily), in one table that the caller has kept, if
    /// `is_right` says so, which is asked with the table's lock held: so nothing is mapped or
    /// unmapped there between the question and what is done. `None` if it does not.
    ///
    /// # Errors
    /// [`Error::Malformed`]; nothing has changed.
    ///
    /// # Safety
    /// As for [`unmap_lazily`](Self::unmap_lazily); and of the leaf as for
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

    #[inline(always)]
    fn leaf_entries(
        &self,
        leaf: Leaf,
        at: VirtAddr,
    ) -> core::result::Result<(Entries<'_, M>, Locked<'_, AtomicU32>), Error> {
        let locked = lock(self.machine(), leaf.0, at)?.ok_or(Error::Malformed(at))?;
        // SAFETY: it is a table, which stays, by the promise of our callers.
        let entries = unsafe { self.machine().entries(leaf.0) }.ok_or(Error::Malformed(at))?;
        Ok((entries, locked))
    }
}

/// Whether a range lies in the 2 MiB of one table.
fn same_table(range: VirtRange) -> bool {
    let large = PageSize::Size2M;
    range.last().is_some_and(|last| last.align_down(large) == range.start().align_down(large))
}

/// Writes entries from `index` on, up to the first that is not absent, or that cannot be; how many.
fn fill_alike<M: Machine, F: Format>(
    entries: &Entries<'_, M>,
    index: usize,
    frames: &[Frame],
    kind: u64,
    locked: &mut Locked<'_, AtomicU32>,
) -> usize {
    let pages = frames.iter().map(|frame| F::alike(kind, *frame).ok());
    fill::<M, F>(entries.range(index..index + frames.len()), 0, pages, locked)
}

/// Why an entry could not be written.
#[cold]
fn why_not<F: Format>(at: VirtAddr, frame: Frame, kind: u64) -> Error {
    F::alike(kind, frame).map_or_else(Error::Format, |_| Error::Occupied(at))
}

/// Clears entries, and calls `gone` with the frame of each that was a page; how many.
fn clear<M: Machine, F: Format>(
    entries: &Entries<'_, M>,
    range: Range<usize>,
    locked: &mut Locked<'_, AtomicU32>,
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

/// Entries of a table that were cleared. Its count is without them when this is dropped, also by a
/// panic.
struct Cleared<'c, 'm> {
    locked: &'c mut Locked<'m, AtomicU32>,
    entries: u32,
}

impl Drop for Cleared<'_, '_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.locked.count -= self.entries;
    }
}
