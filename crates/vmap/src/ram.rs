//! `vm_map_ram` and `vm_unmap_ram`: small, short-lived mappings.

use crate::PAGE;
use crate::area::{Area, AreaRecord, AreaState, Guard, Made, Ours, Record};
use crate::block::{self, BYTES, Bits, MOST, PAGES};
use crate::check;
use crate::create::SMALL;
use crate::error::{Culprit, Error};
use crate::request::Request;
use crate::space::Vmap;
use crate::zone::Span;
use core::panic::Location;
use grace::Concurrent;
use machine::{Checker, Frame, Machine, PageSize, SharedAccess, VirtAddr, VirtRange};
use maple::{Index, try_box};
use paging::{Attrs, Format, Leaf};

/// The maximum number of orphaned blocks that one call adopts before it creates a block.
const ADOPT: usize = 8;

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// Maps the caller's frames at contiguous addresses for a short time, without a guard page. Up
    /// to 64 frames are mapped in this CPU's blocks. More frames, or any number if there is no
    /// space for a block, get an area. The rules for frames at [`vmap`](Vmap::vmap) apply.
    ///
    /// Cost in a block: two words of this CPU's own; one locked instruction for the lock of a
    /// page-table page that no other CPU uses, unless it unmaps there; and for each page a load and
    /// a store in it. Not in interrupt handlers.
    ///
    /// # Errors
    /// [`Error::ZeroSize`], [`Error::TooLarge`], [`Error::NoSpace`], [`Error::OutOfMemory`],
    /// [`Error::Frames`], [`Error::Tables`]; [`Error::UserAccess`], [`Error::WritableCode`],
    /// [`Error::MemoryType`]. Nothing is mapped then. A block and its page-table page may stay with
    /// this CPU for later mappings.
    #[track_caller]
    pub fn vm_map_ram(&self, frames: &[Frame], attrs: Attrs) -> Result<VirtAddr, Error> {
        // An idle CPU may hold stale translations of the run that it is about to get (I4).
        self.tlb_grace.idle_exit();
        let bytes = self.mapped_bytes(frames.len())?;
        check::frames(self.machine(), frames, attrs)?;
        let caller = Location::caller();
        let run = if frames.len() <= MOST { self.take_run(frames.len(), caller)? } else { None };
        let Some((at, leaf)) = run else {
            let what = AreaRecord::new(Made::Ram, frames.len(), bytes, caller);
            let request = Request { guard: Some(Guard::None), ..Request::frames(frames, attrs) };
            return self.make(what, &request, SMALL, |range| self.map_frames(range, frames, attrs));
        };
        let range = VirtRange::new(at, bytes).ok_or(Error::NotMapped(at))?;
        self.machine().checker().check_reuse(None, range);
        // SAFETY: the run lies in the block, whose page-table page this is. Page-table pages of
        // blocks are not pruned.
        match unsafe { self.tables.map_leaf(leaf, at, frames, attrs) } {
            Ok(()) => Ok(at),
            Err(error) => {
                self.give_run(range);
                Err(error.into())
            }
        }
    }

    /// Maps frames at contiguous addresses: all of them, or none.
    pub(crate) fn map_frames(
        &self,
        range: VirtRange,
        frames: &[Frame],
        attrs: Attrs,
    ) -> Result<(), Error> {
        // SAFETY: the area is being made, so its addresses are ours, and no flush is pending for
        // them (I4). The caller may map the frames.
        let mapped = unsafe { self.tables.map_frames(range.start(), frames, attrs) };
        mapped.map_err(|failed| {
            // SAFETY: the addresses are not reused before the end of a TLB grace period that begins
            // from now on.
            unsafe { failed.pending.leave() };
            failed.error.into()
        })
    }

    /// Takes a run from a block; `None` if there is no space for another block.
    #[inline]
    fn take_run(&self, pages: usize, caller: Caller) -> Result<Option<(VirtAddr, Leaf)>, Error> {
        match self.take_here(pages, caller) {
            Some(run) => Ok(Some(run)),
            None => self.take_another(pages, caller),
        }
    }

    /// Takes a run from this CPU's blocks.
    #[inline]
    fn take_here(&self, pages: usize, caller: Caller) -> Option<(VirtAddr, Leaf)> {
        self.local.with(|local| local.blocks.take(&self.tlb_grace, pages, caller)).flatten()
    }

    /// Slow path: this CPU's blocks have no free run.
    #[cold]
    fn take_another(
        &self,
        pages: usize,
        caller: Caller,
    ) -> Result<Option<(VirtAddr, Leaf)>, Error> {
        self.return_blocks_on_shortage();
        self.report_waiting();
        // First, pages whose period has ended; if too much waits, a broadcast ends the period.
        if self.settle_blocks()
            && let Some(run) = self.take_here(pages, caller)
        {
            return Ok(Some(run));
        }
        for _ in 0..ADOPT {
            self.make_room()?;
            let Some(own) = self.shared.orphans.adopt(self.machine()) else { break };
            self.keep_block(own);
            if let Some(run) = self.take_here(pages, caller) {
                return Ok(Some(run));
            }
        }
        self.make_room()?;
        match self.new_block(caller) {
            Ok(own) => self.keep_block(own),
            Err(Error::NoSpace(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(self.take_here(pages, caller))
    }

    /// Tries to end the period of waiting pages. Returns whether another attempt to take a run may
    /// succeed.
    fn settle_blocks(&self) -> bool {
        let Some((waiting, Some(target))) = self.local.with(|local| local.blocks.waiting()) else {
            return false;
        };
        if self.tlb_grace.advance(target) {
            return true;
        }
        let share = self.zones.first().map_or(0, |zone| zone.range().len());
        if !self.is_too_much(waiting, share) {
            return false;
        }
        self.tlb_grace.expedite(target);
        true
    }

    /// Creates a block. Does not interrupt CPUs to get its addresses.
    fn new_block(&self, caller: Caller) -> Result<Ours, Error> {
        let record = Record::aligned(Area::new(Some(try_box(Bits::new())?)))?;
        let span = Span { align: PageSize::Size2M.bytes(), ..Span::new(BYTES, Guard::None) };
        let area = self.take_new(span, record, false);
        let area = area.map_err(|(error, _)| error)?;
        area.prepare(AreaRecord::new(Made::Block, PAGES, BYTES, caller));
        match self.tables.leaf(area.start()) {
            Ok(leaf) => {
                if let Some(bits) = area.bits() {
                    bits.set_leaf(leaf);
                }
                area.set(AreaState::Live);
                Ok(area)
            }
            Err(error) => {
                self.give_tables(area);
                self.put(area);
                Err(error.into())
            }
        }
    }

    /// Makes room for one more block in this CPU's queue.
    pub(crate) fn make_room(&self) -> Result<(), Error> {
        let Some(Some(room)) = self.local.with(|local| local.blocks.wants_room()) else {
            return Ok(());
        };
        let queue = block::queue(room).map_err(|_| Error::OutOfMemory)?;
        // The smaller queue is dropped with interrupts on.
        drop(self.local.with(|local| local.blocks.grow(queue)));
        Ok(())
    }

    /// Adds a block to this CPU's queue. If the call has moved to a CPU without room, and the heap
    /// has no memory for it, leaves the block for adoption.
    pub(crate) fn keep_block(&self, own: Ours) {
        let mut own = Some(own);
        while own.is_some() {
            own = self.local.with(|local| local.blocks.push(own.take())).flatten();
            if own.is_some() && self.make_room().is_err() {
                break;
            }
        }
        if let Some(own) = own {
            self.shared.orphans.leave(self.machine(), own);
        }
    }

    /// Unmaps a run or area that [`vm_map_ram`](Vmap::vm_map_ram) mapped, on any CPU. The PTEs are
    /// cleared when it returns. Sends no IPI.
    ///
    /// Cost: a tree lookup, unless the block is this CPU's first; two locked instructions, one of
    /// them for the lock of the block's page-table page; and for each page a load and a store in
    /// it. Not in interrupt handlers.
    ///
    /// # Errors
    /// [`Error::NotMapped`], [`Error::Twice`], [`Error::NotTheStart`], [`Error::WrongSize`],
    /// [`Error::WrongKind`]: the mappings at that address stay as they are.
    ///
    /// # Safety
    /// As for [`vunmap`](Vmap::vunmap).
    pub unsafe fn vm_unmap_ram(&self, at: VirtAddr, pages: usize) -> Result<(), Error> {
        self.mapped_bytes(pages)?;
        // Usually this CPU has just mapped it.
        let here = self.local.with(|local| {
            let (bits, offset) = local.blocks.first_with(at)?;
            self.unmap_run(bits, at, offset, pages).ok()
        });
        if here.flatten().is_some() {
            return Ok(());
        }
        let zone = self.zone_of(at).ok_or(Error::NotMapped(at))?;
        {
            let guard = G::pin();
            let Some((range, area)) = zone.tree().lookup(&guard, at.get() as Index) else {
                return Err(Error::NotMapped(at));
            };
            let start = VirtAddr::new(*range.start() as u64);
            if let Some(bits) = area.get().bits() {
                let unmapped = self.unmap_run(bits, at, at.get() - start.get(), pages);
                return unmapped.map_err(|wrong| wrong.of(bits, start, at, pages));
            }
        }
        let is_ram = |what: AreaRecord| match what.is(Made::Ram) {
            Ok(()) if what.pages != pages => Err(Some(pages)),
            is_ram => is_ram,
        };
        self.unmap_claimed(self.claim(at, is_ram, AreaState::Unmapping)?)
    }

    /// Unmaps a run of a block; `offset` is the distance from the start of the block in bytes.
    #[inline]
    fn unmap_run(&self, bits: &Bits, at: VirtAddr, offset: u64, pages: usize) -> Result<(), Wrong> {
        let first = (offset / PAGE) as usize;
        let Some(leaf) = bits.leaf().filter(|_| offset.is_multiple_of(PAGE)) else {
            return Err(Wrong::Run);
        };
        // Tested under the page-table lock. If two CPUs unmap the same run, only one finds PTEs to
        // clear. If the run has been reused since, the test applies to the new run.
        let is_run = || bits.is_run(first, pages);
        // SAFETY: as in `vm_map_ram`. The addresses are not reused before the end of a TLB grace
        // period that begins from now on.
        match unsafe { self.tables.unmap_leaf(leaf, at, pages, is_run) } {
            Ok(None) => Err(Wrong::Run),
            Ok(Some(0)) => Err(Wrong::Unmapped),
            Ok(Some(_)) => {
                self.machine().step(SharedAccess::Other);
                bits.give(first, pages);
                Ok(())
            }
            Err(error) => Err(Wrong::Tables(error)),
        }
    }

    /// Gives back a run in which nothing is mapped; it waits.
    #[cold]
    fn give_run(&self, range: VirtRange) {
        let at = range.start();
        let Some(zone) = self.zone_of(at) else { return };
        let guard = G::pin();
        if let Some((block, area)) = zone.tree().lookup(&guard, at.get() as Index)
            && let Some(bits) = area.get().bits()
        {
            let first = (at.get() - *block.start() as u64) / PAGE;
            bits.give(first as usize, (range.len() / PAGE) as usize);
        }
    }
}

/// The call site of a mapping call.
type Caller = &'static Location<'static>;

/// The reason why a run of a block could not be unmapped.
enum Wrong {
    /// There is no such run.
    Run,
    /// It was already unmapped.
    Unmapped,
    /// The page tables are malformed.
    Tables(paging::Error),
}

impl Wrong {
    /// The error for a call that named `pages` pages at `at`, in the block that begins at `block`.
    #[cold]
    fn of(self, bits: &Bits, block: VirtAddr, at: VirtAddr, pages: usize) -> Error {
        let offset = at.get() - block.get();
        let page = (offset / PAGE) as usize;
        // The start of the run that contains the page. If no run contains it, the start of the
        // block.
        let first = (0..=page).rev().find(|page| bits.begins(*page)).unwrap_or(0);
        let start = block.checked_add(first as u64 * PAGE).unwrap_or(block);
        let culprit = Culprit { at, start, by: bits.caller(first) };
        match self {
            Wrong::Run if start == at && bits.begins(page) => {
                Error::WrongSize { area: culprit, pages }
            }
            Wrong::Run if bits.is_busy(page) => Error::NotTheStart(culprit),
            Wrong::Run => Error::NotMapped(at),
            Wrong::Unmapped => Error::Twice(culprit),
            Wrong::Tables(error) => error.into(),
        }
    }
}
