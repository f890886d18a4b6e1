//! UFFDIO_MOVE: pages that a monitor moves, without a copy.
//!
//! # Correctness
//! The VMAs are busy while pages move: faults there wait for the mmap lock. The page tables move
//! the entries (`vma::Writer::move_private`), or nothing has changed.
//!
//! A pin takes no lock. So the pages lose all rights first, with a flush, which has a SeqCst fence
//! (`AtomicCpuSet::targets`). It pairs with the fence of a pin before its second look (`paging`,
//! `gup`): either that look finds no right, and the pin fails, or the pin is seen here. The pages
//! get their rights back after the move; a fault that is faster gives them back, too.

use core::{
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
};

use grace::Concurrent;
use machine::Machine;
use paging::{Attrs, Format, Share, SweepChange};
use vma::PAGE_SIZE;

use crate::{
    AddressSpace, Error, Resolved, UserFaultError,
    addresses::{HUGE, virt},
    change::page_host::PageHost,
    entry_marks::{CLEAN, WP},
    fault::frame_ref::{block_of, is_counted},
    monitor::{aligned, page_marks::sweep_areas},
    space::Core,
};

impl<M: Machine, F: Format, G: Concurrent> AddressSpace<M, F, G> {
    /// UFFDIO_MOVE: moves the private pages of `from` to `to`, without a copy. Both ranges lie in
    /// one VMA each, with the same rights; that of `to` is registered. With `allow_holes`, pages
    /// that are absent in `from` stay absent in `to`.
    ///
    /// # Errors
    /// [`Resolved`], with the bytes before the page at fault: [`UserFaultError::Busy`]: it is
    /// pinned or shared with a fork; [`UserFaultError::Absent`]: a guard page;
    /// [`UserFaultError::Hole`]: a hole, without `allow_holes`; [`UserFaultError::Present`]: a page
    /// is in the way. With nothing moved:
    /// [`UserFaultError::NotRegistered`]: nothing is mapped; [`vma::Error`]: not such ranges, or no
    /// memory.
    pub fn userfault_move(
        &self,
        to: usize,
        from: usize,
        len: usize,
        allow_holes: bool,
    ) -> Result<(), Resolved> {
        let none = |error| Resolved { done: 0, error };
        let (source, target) = (aligned(from, len).map_err(none)?, aligned(to, len).map_err(none)?);
        self.prepare_private(to).map_err(none)?;
        let range = source.clone();
        self.change(|calls| self.clear_old_marks(calls, range)).map_err(none)?;
        self.check_move_vmas(&source, &target).map_err(none)?;
        let _any = self.bring_in_swapped(source.clone());
        // Ranges that overlap are moved page by page, as in Linux.
        if source.end <= target.start || target.end <= source.start {
            match self.move_part(&source, to, allow_holes) {
                Err(Error::UserFault(_)) => {}
                moved => return moved.map_err(none),
            }
        }
        // Something is in the way: up to there.
        let mut done = 0;
        while done < len {
            let (at, target) = (from + done, to + done);
            let whole = (at | target).is_multiple_of(HUGE) && len - done >= HUGE;
            let moved = whole && self.move_part(&(at..at + HUGE), target, allow_holes).is_ok();
            if !moved {
                self.move_part(&(at..at + PAGE_SIZE), target, allow_holes)
                    .map_err(|error| Resolved { done, error })?;
            }
            done += if moved { HUGE } else { PAGE_SIZE };
        }
        Ok(())
    }

    /// The conditions on the VMAs of a move: as [`vma::Writer::move_private`] has it for each part.
    fn check_move_vmas(&self, source: &Range<usize>, target: &Range<usize>) -> Result<(), Error> {
        // A VMA that does not fit may be a moment of a call.
        let look = || self.look_at_move(source, target);
        look().or_else(|_| {
            let _lock = self.core.writer();
            look()
        })
    }

    fn look_at_move(&self, source: &Range<usize>, target: &Range<usize>) -> Result<(), Error> {
        let guard = G::pin();
        let find = |range: &Range<usize>| {
            let found = self.core.vmas.lookup(&guard, range.start);
            let (whole, vma) = found.ok_or(UserFaultError::NotRegistered)?;
            Ok::<_, Error>((range.end <= whole.end, vma))
        };
        let ((from_fits, from), (to_fits, to)) = (find(source)?, find(target)?);
        let fit = from_fits && to_fits && from.may_move_to(to);
        if fit { Ok(()) } else { Err(vma::Error::WrongKind.into()) }
    }

    /// Moves the pages of a range, or none.
    fn move_part(&self, source: &Range<usize>, to: usize, allow_holes: bool) -> Result<(), Error> {
        let target = to..to + source.len();
        if target == *source {
            return match (self.core.has_pages(&target), allow_holes) {
                (true, _) => Err(UserFaultError::Present.into()),
                (false, true) => Ok(()),
                (false, false) => Err(UserFaultError::Hole.into()),
            };
        }
        let move_all = || {
            self.change(|calls| {
                calls.host().set_allows_holes(allow_holes);
                calls.move_private(source.clone(), to)?;
                // The tables are this space's own, so no memory is needed. A page that is left out,
                // as its tables are corrupt, gets its rights by a fault.
                let _later = sweep_areas(calls, target.clone(), |host, part, vma| {
                    host.give_rights(part, vma);
                });
                Ok::<_, vma::Error>(())
            })
        };
        let mut moved = move_all();
        // Reclaim may take pages back again before the call has the mmap lock.
        while moved == Err(UserFaultError::Busy.into()) && self.bring_in_swapped(source.clone()) {
            moved = move_all();
        }
        match moved {
            Ok(()) => Ok(()),
            Err(Error::Vma(vma::Error::Occupied)) => Err(UserFaultError::Present.into()),
            // The memory may have changed since the checks.
            Err(error @ Error::Vma(vma::Error::Unmapped | vma::Error::WrongKind)) => {
                Err(self.check_move_vmas(source, &target).err().unwrap_or(error))
            }
            Err(error) => Err(error),
        }
    }
}

impl<M: Machine, F: Format, G: Concurrent> Core<M, F, G> {
    fn has_pages(&self, range: &Range<usize>) -> bool {
        let guard = G::pin();
        let range = virt(range.clone());
        range.is_some_and(|range| self.tables.walk(&guard).pages(range).next().is_some())
    }

    /// Whether the pages of a range may move. Returns their number.
    fn check_pages(&self, from: &Range<usize>) -> Result<usize, Error> {
        let (machine, guard) = (self.tables.machine(), G::pin());
        let pages = virt(from.clone()).map(|range| self.tables.walk(&guard).pages(range));
        let mut found = 0;
        for page in pages.into_iter().flatten() {
            let special = self.is_special(page.frame);
            if self.is_guard(page.frame) {
                return Err(UserFaultError::Absent.into());
            }
            // Other references than those of pins are held for a moment, such as that of reclaim,
            // which looks at the entry again.
            let block = block_of(machine, page.frame);
            let alone = block.is_some_and(|(_, info)| info.pins() == 0);
            // A copy whose flush is pending goes as it is: the move flushes, too.
            let exclusive = matches!(page.attrs.share(), Share::Exclusive | Share::Flushing);
            let zeros = !special && !is_counted(machine, page.frame);
            if !zeros && (!exclusive || !alone) {
                return Err(UserFaultError::Busy.into());
            }
            found += page.size.bytes() as usize / PAGE_SIZE;
        }
        Ok(found)
    }
}

impl<M: Machine, F: Format, G: Concurrent> PageHost<'_, M, F, G> {
    /// Whether pages may move; the VMAs are busy. If so, the pages have lost their rights and
    /// marks.
    pub(crate) fn check_move(&mut self, from: &Range<usize>, to: usize) -> Result<(), Error> {
        let guard = G::pin();
        let find = |at| self.core.vmas.lookup(&guard, at).map(|(_, vma)| vma);
        self.core.check_unchanging(find(to).and_then(|vma| vma.uffd()))?;
        if self.core.has_pages(&(to..to + from.len())) {
            return Err(UserFaultError::Present.into());
        }
        if self.core.check_pages(from)? != from.len() / PAGE_SIZE && !self.allows_holes() {
            return Err(UserFaultError::Hole.into());
        }
        drop(guard);
        self.take_rights(from.clone());
        // Pins that came before.
        let checked = self.core.check_pages(from);
        if checked.is_err()
            && let Some((_, vma)) = self.core.vmas.lookup(&G::pin(), from.start)
        {
            self.give_rights(from.clone(), vma);
        }
        checked?;
        self.clear_marks(from.clone());
        Ok(self.noted()?)
    }

    /// Clears the marks of pages that are about to move: at the target they are dirty, and not
    /// write-protected. The next write gives the right back.
    fn clear_marks(&mut self, range: Range<usize>) {
        // Relaxed: the caller has the mmap lock, and marks are set with it.
        let marked = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        if marked(&self.core.had_marks) || marked(&self.core.tracks_new) {
            self.sweep_pages(range, |page| {
                SweepChange::Set(Attrs { soft: page.attrs.soft & !(WP | CLEAN), ..page.attrs })
            });
        }
    }
}
