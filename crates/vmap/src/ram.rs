//! `vm_map_ram` and `vm_unmap_ram`: maps that are small and do not live long.

use crate::area::{Area, Kind, State};
use crate::block::{self, Bits, MOST, Own, PAGES};
use crate::error::Error;
use crate::mutant::{self, Mutant};
use crate::vmap::{PAGE, Vmap};
use core::panic::Location;
use grace::Concurrent;
use machine::{Access, Frame, FrameError, Machine, PageSize, VirtAddr, VirtRange};
use maple::Counted;
use paging::{Attrs, Format};

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// Maps frames of the caller, one after the other, for a short time. Up to 64 come from this CPU's blocks; more, or where
    /// there is no space for a block, from an area. There is no guard page.
    ///
    /// Cost from a block: two words of this CPU's own, and [`PageTables::map`](paging::PageTables::map) in a page table that
    /// no other CPU uses unless it unmaps there: one locked instruction. Not for interrupts.
    ///
    /// # Errors
    /// [`Error::ZeroSize`], [`Error::TooLarge`], [`Error::NoSpace`], [`Error::OutOfMemory`], [`Error::Frames`],
    /// [`Error::Tables`]. Nothing is mapped then.
    #[track_caller]
    pub fn vm_map_ram(&self, frames: &[Frame], attrs: Attrs) -> Result<VirtAddr, Error> {
        self.mapped_bytes(frames.len())?;
        let caller = Location::caller();
        let run = if frames.len() <= MOST { self.take_run(frames.len(), caller)? } else { None };
        let Some(at) = run else {
            let what = (Kind::Ram, frames.len(), frames.len() as u64 * PAGE);
            return self.make(what, false, PageSize::Size4K, caller, |range| {
                self.map_frames(range, frames, attrs)
            });
        };
        let range = VirtRange::new(at, frames.len() as u64 * PAGE).ok_or(Error::NotMapped(at))?;
        self.machine().hand_out(None, range);
        match self.map_frames(range, frames, attrs) {
            Ok(()) => Ok(at),
            Err(error) => {
                self.give_run(range);
                Err(error)
            }
        }
    }

    /// Maps frames one after the other; none if not all.
    pub(crate) fn map_frames(
        &self,
        range: VirtRange,
        frames: &[Frame],
        attrs: Attrs,
    ) -> Result<(), Error> {
        let supply = |at: VirtAddr, _| {
            let page = (at.get() - range.start().get()) / PAGE;
            let none = FrameError::OutOfFrames { order: 0 };
            Ok((*frames.get(page as usize).ok_or(none)?, PageSize::Size4K))
        };
        self.tables.map_with(range, attrs, supply).map_err(|failed| {
            // SAFETY: the addresses are not handed out before the end of a TLB grace period that begins from here on.
            unsafe { failed.owed.leave() };
            failed.error.into()
        })
    }

    /// Takes a run of a block; `None` if there is no space for another block.
    fn take_run(
        &self,
        pages: usize,
        caller: &'static Location<'static>,
    ) -> Result<Option<VirtAddr>, Error> {
        let take = || self.local.with(|local| local.blocks.take(&self.flushes, pages)).flatten();
        if let Some(at) = take() {
            return Ok(Some(at));
        }
        // What has come due, and, if too much waits, what has not.
        if self.settle_blocks()
            && let Some(at) = take()
        {
            return Ok(Some(at));
        }
        self.make_room()?;
        let own = match self.orphans.adopt(self.machine()) {
            Some(own) => own,
            None => match self.new_block(caller) {
                Ok(own) => own,
                Err(Error::NoSpace(_)) => return Ok(None),
                Err(error) => return Err(error),
            },
        };
        self.keep_block(own)?;
        Ok(take())
    }

    /// The blocks of this CPU have no run: a period may have ended that nobody has looked for. Returns whether it is worth trying again.
    fn settle_blocks(&self) -> bool {
        let Some((waiting, Some(target))) = self.local.with(|local| local.blocks.waiting()) else {
            return false;
        };
        if self.flushes.advance(target) {
            return true;
        }
        let share = self.zones.first().map_or(0, |zone| zone.range().len());
        if waiting <= self.most_waiting(share, target) {
            return false;
        }
        self.flushes.expedite(self.flushes.target());
        true
    }

    fn new_block(&self, caller: &'static Location<'static>) -> Result<Own, Error> {
        let area = Counted::new(Area::new(
            Kind::Block(maple::try_box(Bits::new())?),
            PAGES,
            block::BYTES,
            caller,
        ))?;
        let start = self.take(block::BYTES, block::BYTES, area.clone())?;
        area.set(State::Live);
        Ok(Own::new(start, area))
    }

    /// Makes room in this CPU's queue for one block more.
    pub(crate) fn make_room(&self) -> Result<(), Error> {
        let Some(Some(room)) = self.local.with(|local| local.blocks.wants_room()) else {
            return Ok(());
        };
        let queue = block::queue(room).map_err(|_| Error::OutOfMemory)?;
        // What is left of the smaller one is dropped with interrupts on.
        drop(self.local.with(|local| local.blocks.grow(queue)));
        Ok(())
    }

    /// This CPU has a block more. If it is not the CPU that made room for it, there may be none: then somebody else gets the block.
    pub(crate) fn keep_block(&self, own: Own) -> Result<(), Error> {
        let mut own = Some(own);
        for _ in 0..2 {
            own = self.local.with(|local| local.blocks.push(own.take())).flatten();
            if own.is_none() {
                return Ok(());
            }
            self.make_room()?;
        }
        // Where there is no memory for that either, its addresses are not used any more.
        own.map(|own| self.orphans.leave(self.machine(), own));
        Err(Error::OutOfMemory)
    }

    /// Unmaps what [`vm_map_ram`](Vmap::vm_map_ram) mapped, on any CPU. The entries are cleared when it returns; nobody is interrupted.
    ///
    /// Cost: a lookup, [`PageTables::unmap`](paging::PageTables::unmap) of one page table, and one locked instruction.
    ///
    /// # Errors
    /// [`Error::NotMapped`], [`Error::Twice`], [`Error::NotTheStart`], [`Error::WrongSize`], [`Error::WrongKind`]: what is mapped
    /// there stays as it is.
    pub fn vm_unmap_ram(&self, at: VirtAddr, pages: usize) -> Result<(), Error> {
        self.mapped_bytes(pages)?;
        let zone = self.zone_of(at).ok_or(Error::NotMapped(at))?;
        {
            let guard = G::pin();
            let Some((range, area)) = zone.tree().lookup(&guard, at.get() as usize) else {
                return Err(Error::NotMapped(at));
            };
            let start = VirtAddr::new(*range.start() as u64);
            if let Some(bits) = area.get().bits() {
                let offset = at.get() - start.get();
                let first = (offset / PAGE) as usize;
                let culprit = area.get().culprit(at, start);
                if !offset.is_multiple_of(PAGE) || !bits.is_run(first, pages) {
                    return Err(match bits.is_busy(first) {
                        true => Error::WrongSize { area: culprit, pages },
                        false => Error::NotMapped(at),
                    });
                }
                let run = VirtRange::new(at, pages as u64 * PAGE).ok_or(Error::NotMapped(at))?;
                if mutant::is(Mutant::GivenBeforeCleared) {
                    bits.give(first, pages);
                    return self.unmap_pages(run).map(drop);
                }
                // With the table's lock: of two who unmap the same, one finds the pages there.
                if self.unmap_pages(run)? == 0 && !mutant::is(Mutant::GivenTwice) {
                    return Err(Error::Twice(culprit));
                }
                self.machine().step(Access::Shared);
                bits.give(first, pages);
                return Ok(());
            }
        }
        let is_ram = |area: &Area| match area.kind {
            Kind::Ram if area.pages == pages => Ok(()),
            Kind::Ram => Err(Some(pages)),
            _ => Err(None),
        };
        let range = self.claim(at, is_ram, State::Unmapping)?;
        self.unmap_claimed(range)
    }

    /// A run in which nothing is mapped waits from now on.
    fn give_run(&self, range: VirtRange) {
        let at = range.start();
        let Some(zone) = self.zone_of(at) else { return };
        let guard = G::pin();
        if let Some((block, area)) = zone.tree().lookup(&guard, at.get() as usize)
            && let Some(bits) = area.get().bits()
        {
            let first = (at.get() - *block.start() as u64) / PAGE;
            bits.give(first as usize, (range.len() / PAGE) as usize);
        }
    }
}
