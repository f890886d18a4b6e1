//! The move of pages within a space, without a copy: mremap and UFFDIO_MOVE.
//!
//! A move is a relocation of page tables and entries ([`paging::Relocation`]). All that can fail
//! comes before it: huge pages that cannot move whole are split, and tables for the target are
//! made. No fault adds a page meanwhile: the VMA of the source is busy, and the target is a hole
//! until then, or busy, too.

use core::{ops::Range, sync::atomic::Ordering};

use grace::Concurrent;
use machine::{Machine, PageSize, VirtAddr};
use paging::{Attrs, Format, Mapping, Relocation, SweepChange};

use crate::{
    addresses::{HUGE, huge_around, virt},
    change::page_host::PageHost,
    entry_marks::CLEAN,
    error::no_memory,
};

/// The moves of a call.
pub(super) struct Moving<'a, M: Machine, F: Format, G: Concurrent> {
    /// A move that has been prepared.
    prepared: Option<Relocation<'a, M, F, G>>,
    /// Whether UFFDIO_MOVE leaves absent pages absent.
    allow_holes: bool,
}

impl<M: Machine, F: Format, G: Concurrent> Moving<'_, M, F, G> {
    pub(super) fn new() -> Self {
        Moving { prepared: None, allow_holes: false }
    }
}

impl<M: Machine, F: Format, G: Concurrent> PageHost<'_, M, F, G> {
    /// Whether UFFDIO_MOVE leaves absent pages absent.
    pub(crate) fn allows_holes(&self) -> bool {
        self.moving.allow_holes
    }

    /// Sets whether UFFDIO_MOVE leaves absent pages absent. At first it does not.
    pub(crate) fn set_allows_holes(&mut self, allow: bool) {
        self.moving.allow_holes = allow;
    }

    /// Prepares all memory that a move may need. If both VMAs stay, checks that it may be made.
    pub(super) fn prepare_move(
        &mut self,
        from: &Range<usize>,
        to: usize,
        stays: bool,
    ) -> Result<(), vma::Error> {
        self.prepare_relocation(from, to)?;
        let checked = if stays { self.check_move(from, to) } else { Ok(()) };
        checked.map_err(|error| {
            self.moving.prepared = None;
            self.refuse(error)
        })
    }

    fn prepare_relocation(&mut self, from: &Range<usize>, to: usize) -> Result<(), vma::Error> {
        let Some(range) = virt(from.clone()) else { return Ok(()) };
        let target = VirtAddr::new(to as u64);
        self.count_change();
        self.moving.prepared = Some(loop {
            let split = self.split_for_move(from, to);
            match split.and_then(|()| self.core.tables.prepare_relocation(range, target)) {
                // A fault that was under way brought it in. After the sweep of the call there are
                // no more of them.
                Err(paging::Error::Cut(..)) if self.core.huge.may_exist() => {}
                Err(paging::Error::Frames(_)) if self.core.waiting.flush(&self.core.tables) > 0 => {
                }
                // Only a move between two VMAs that stay can find one (`Writer::move_private`).
                Err(paging::Error::Occupied(_)) => return Err(vma::Error::Occupied),
                prepared => break prepared.map_err(no_memory)?,
            }
        });
        Ok(())
    }

    /// Splits the huge pages of a range that cannot move whole to `to`. A fault that was under way
    /// may bring in another one until the tables have been swept.
    fn split_for_move(&mut self, range: &Range<usize>, to: usize) -> Result<(), paging::Error> {
        let (true, Some(all)) = (self.core.huge.may_exist(), virt(range.clone())) else {
            return Ok(());
        };
        let alike = (range.start ^ to).is_multiple_of(HUGE);
        let moves_whole =
            |page: &Mapping| alike && huge_around(page.page.get() as usize, range).is_some();
        loop {
            let guard = G::pin();
            let mut pages = self.core.tables.walk(&guard).pages(all);
            let next = pages.find(|page| page.size != PageSize::Size4K && !moves_whole(page));
            drop(guard);
            let Some(page) = next else { return Ok(()) };
            // SAFETY: the space owns the page, and its entries hold references.
            let split = unsafe { self.core.tables.split_counted(page.page, PageSize::Size4K) };
            split.map_err(|failed| failed.error)?.flush();
        }
    }

    /// Moves the pages, and flushes.
    pub(super) fn move_pages(&mut self, from: Range<usize>, to: usize) {
        let Some(moving) = self.moving.prepared.take() else { return };
        let mut pending = self.core.tables.no_flush();
        // SAFETY: the address space owns both ranges. No fault has added a page since the move was
        // prepared: the VMA of `from` was busy, and `to` was a hole, and is busy now, or was busy.
        // The mmap lock keeps calls away from pages next to the target.
        let moved = unsafe { self.core.tables.relocate(moving, &mut pending) };
        pending.flush();
        self.note(moved);
        // As in Linux, pages that were moved are soft-dirty, also where their VMA is not new.
        // Relaxed: the caller has the mmap lock, and pages become clean with it.
        if self.core.tracks_new.load(Ordering::Relaxed) {
            self.sweep_pages(to..to + from.len(), |page| {
                SweepChange::Set(Attrs { soft: page.attrs.soft & !CLEAN, ..page.attrs })
            });
        }
    }
}
