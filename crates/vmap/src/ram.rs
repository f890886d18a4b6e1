//! `vm_map_ram` and `vm_unmap_ram`: maps that are small and do not live long.

use crate::area::{Area, Made, Ours, Record, State, What};
use crate::block::{self, BYTES, Bits, MOST, PAGES};
use crate::check;
use crate::error::{Culprit, Error};
use crate::vmap::{PAGE, Vmap};
use core::panic::Location;
use grace::Concurrent;
use machine::{Access, Frame, Machine, PageSize, VirtAddr, VirtRange};
use maple::try_box;
use paging::{Attrs, Format, Leaf};

/// As many blocks that nobody has are adopted at most, before one is made.
const ADOPT: usize = 8;

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// Maps frames of the caller, one after the other, for a short time. Up to 64 come from this
    /// CPU's blocks; more, or where there is no space for a block, from an area. There is no guard
    /// page. What is said of the frames at [`vmap`](Vmap::vmap) holds here too.
    ///
    /// Cost from a block: two words of this CPU's own, and for each page a load and a store in a
    /// page table that no other CPU uses unless it unmaps there, with its lock: one locked
    /// instruction. Not for interrupts.
    ///
    /// # Errors
    /// [`Error::ZeroSize`], [`Error::TooLarge`], [`Error::NoSpace`], [`Error::OutOfMemory`],
    /// [`Error::Frames`], [`Error::Tables`]; [`Error::UserAccess`], [`Error::WritableCode`],
    /// [`Error::MemoryType`]. Nothing is mapped then; a block, with its page table, may stay with
    /// this CPU for maps to come.
    #[track_caller]
    pub fn vm_map_ram(&self, frames: &[Frame], attrs: Attrs) -> Result<VirtAddr, Error> {
        // A CPU that is away may hold stale translations of a run that it is given here (I4).
        self.flushes.idle_exit();
        let bytes = self.mapped_bytes(frames.len())?;
        check::frames(self.machine(), frames, attrs)?;
        let caller = Location::caller();
        let run = if frames.len() <= MOST { self.take_run(frames.len(), caller)? } else { None };
        let Some((at, leaf)) = run else {
            let what = What::new(Made::Ram, frames.len(), bytes, caller);
            return self.make(what, false, PageSize::Size4K, |range| {
                self.map_frames(range, frames, attrs)
            });
        };
        let range = VirtRange::new(at, bytes).ok_or(Error::NotMapped(at))?;
        self.machine().check_reuse(None, range);
        // SAFETY: the run lies in the block, of which this is the table; nobody prunes in a block.
        match unsafe { self.tables.map_leaf(leaf, at, frames, attrs) } {
            Ok(()) => Ok(at),
            Err(error) => {
                self.give_run(range);
                Err(error.into())
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
        // SAFETY: the area is being made, so its addresses are ours, and no flush is pending for
        // them (I4). The frames are the caller's to map.
        let mapped = unsafe { self.tables.map_frames(range.start(), frames, attrs) };
        mapped.map_err(|failed| {
            // SAFETY: the addresses are not handed out before the end of a TLB grace period that
            // begins from here on.
            unsafe { failed.owed.leave() };
            failed.error.into()
        })
    }

    /// Takes a run of a block; `None` if there is no space for another block.
    #[inline]
    fn take_run(&self, pages: usize, caller: Caller) -> Result<Option<(VirtAddr, Leaf)>, Error> {
        match self.take_here(pages, caller) {
            Some(run) => Ok(Some(run)),
            None => self.take_another(pages, caller),
        }
    }

    /// Takes a run of this CPU's blocks.
    #[inline]
    fn take_here(&self, pages: usize, caller: Caller) -> Option<(VirtAddr, Leaf)> {
        self.local.with(|local| local.blocks.take(&self.flushes, pages, caller)).flatten()
    }

    /// This CPU's blocks have no run.
    #[cold]
    fn take_another(
        &self,
        pages: usize,
        caller: Caller,
    ) -> Result<Option<(VirtAddr, Leaf)>, Error> {
        self.answer_shortage();
        self.say_what_waits();
        // What has come due, and, if too much waits, what has not.
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

    /// A period may have ended that nobody has looked for. Returns whether it is worth trying
    /// again.
    fn settle_blocks(&self) -> bool {
        let Some((waiting, Some(target))) = self.local.with(|local| local.blocks.waiting()) else {
            return false;
        };
        if self.flushes.advance(target) {
            return true;
        }
        let share = self.zones.first().map_or(0, |zone| zone.range().len());
        if !self.is_too_much(waiting, share) {
            return false;
        }
        self.flushes.expedite(target);
        true
    }

    /// A block, of addresses that nobody has to be interrupted for.
    fn new_block(&self, caller: Caller) -> Result<Ours, Error> {
        let record = Record::aligned(Area::new(Some(try_box(Bits::new())?)))?;
        let area = self.take_new(BYTES, PageSize::Size2M, record, false);
        let area = area.map_err(|(error, _)| error)?;
        area.prepare(What::new(Made::Block, PAGES, BYTES, caller));
        match self.tables.leaf(area.start()) {
            Ok(leaf) => {
                if let Some(bits) = area.bits() {
                    bits.set_leaf(leaf);
                }
                area.set(State::Live);
                Ok(area)
            }
            Err(error) => {
                self.give_tables(area);
                self.put(area);
                Err(error.into())
            }
        }
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

    /// This CPU has a block more. If it is not the CPU that made room for it, and has no memory for
    /// that, whoever wants one gets the block.
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

    /// Unmaps what [`vm_map_ram`](Vmap::vm_map_ram) mapped, on any CPU. The entries are cleared
    /// when it returns; nobody is interrupted.
    ///
    /// Cost: the block is this CPU's first, or is looked up in a tree; for each page a load and a
    /// store in its table, with the lock; two locked instructions. Not for interrupts.
    ///
    /// # Errors
    /// [`Error::NotMapped`], [`Error::Twice`], [`Error::NotTheStart`], [`Error::WrongSize`],
    /// [`Error::WrongKind`]: what is mapped there stays as it is.
    ///
    /// # Safety
    /// As for [`vunmap`](Vmap::vunmap).
    pub unsafe fn vm_unmap_ram(&self, at: VirtAddr, pages: usize) -> Result<(), Error> {
        self.mapped_bytes(pages)?;
        // Most often it was mapped here, a moment ago.
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
            let Some((range, area)) = zone.tree().lookup(&guard, at.get() as usize) else {
                return Err(Error::NotMapped(at));
            };
            let start = VirtAddr::new(*range.start() as u64);
            if let Some(bits) = area.get().bits() {
                let unmapped = self.unmap_run(bits, at, at.get() - start.get(), pages);
                return unmapped.map_err(|wrong| wrong.of(bits, start, at, pages));
            }
        }
        let is_ram = |what: What| match what.is(Made::Ram) {
            Ok(()) if what.pages != pages => Err(Some(pages)),
            is_ram => is_ram,
        };
        self.unmap_claimed(self.claim(at, is_ram, State::Unmapping)?)
    }

    /// Unmaps a run of a block that begins so many bytes after its start.
    #[inline]
    fn unmap_run(&self, bits: &Bits, at: VirtAddr, offset: u64, pages: usize) -> Result<(), Wrong> {
        let first = (offset / PAGE) as usize;
        let Some(leaf) = bits.leaf().filter(|_| offset.is_multiple_of(PAGE)) else {
            return Err(Wrong::Run);
        };
        // With the table's lock: of two who unmap the same, one finds the pages there; and if
        // somebody else has a run there since, it is looked at as it is.
        let is_run = || bits.is_run(first, pages);
        // SAFETY: as in `vm_map_ram`. The addresses are not handed out before the end of a TLB
        // grace period that begins from here on.
        match unsafe { self.tables.unmap_leaf(leaf, at, pages, is_run) } {
            Ok(None) => Err(Wrong::Run),
            Ok(Some(0)) => Err(Wrong::Gone),
            Ok(Some(_)) => {
                self.machine().step(Access::Shared);
                bits.give(first, pages);
                Ok(())
            }
            Err(error) => Err(Wrong::Tables(error)),
        }
    }

    /// A run in which nothing is mapped waits from now on.
    #[cold]
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

/// Who has called.
type Caller = &'static Location<'static>;

/// Why a run of a block is not unmapped.
enum Wrong {
    /// There is no such run.
    Run,
    /// It was unmapped before.
    Gone,
    /// The page tables are not as they should be.
    Tables(paging::Error),
}

impl Wrong {
    /// What the caller is told, who said that so many pages begin at `at`, in the block that begins
    /// at `block`.
    #[cold]
    fn of(self, bits: &Bits, block: VirtAddr, at: VirtAddr, pages: usize) -> Error {
        let offset = at.get() - block.get();
        let page = (offset / PAGE) as usize;
        // Where the run begins that it lies in; of a run whose end is not known, where the block
        // does.
        let first = (0..=page).rev().find(|page| bits.begins(*page)).unwrap_or(0);
        let start = block.checked_add(first as u64 * PAGE).unwrap_or(block);
        let culprit = Culprit { at, start, by: bits.caller(first) };
        match self {
            Wrong::Run if start == at && bits.begins(page) => {
                Error::WrongSize { area: culprit, pages }
            }
            Wrong::Run if bits.is_busy(page) => Error::NotTheStart(culprit),
            Wrong::Run => Error::NotMapped(at),
            Wrong::Gone => Error::Twice(culprit),
            Wrong::Tables(error) => error.into(),
        }
    }
}
