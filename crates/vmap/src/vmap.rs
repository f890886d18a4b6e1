//! A space for areas, and how an area is made and taken apart.

use crate::area::{Area, List, Ours, State, What};
use crate::block::{self, Blocks, Orphans};
use crate::error::Error;
use crate::flushes::Flushes;
use crate::mutant::{self, Mutant};
use crate::zone::Zone;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use grace::Concurrent;
use machine::{Access, CpuLocal, Machine, PageSize, VirtAddr, VirtRange};
use maple::Counted;
use paging::{Attrs, Format, PageTables};

pub(crate) const PAGE: u64 = PageSize::Size4K.bytes();

/// As many unmappings as go by at least until a CPU looks whether a period has ended; and as many as there are CPUs, as that takes a
/// load for each.
const LOOK_AFTER: u64 = 32;

/// How a space is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// What pages of [`vmalloc`](Vmap::vmalloc) are like.
    pub attrs: Attrs,
    /// Whether areas have a page behind them that is never mapped, unless the call says otherwise.
    pub guard: bool,
    /// As many bytes of addresses wait, before CPUs are interrupted, for each CPU that would be. The least that a space of this size
    /// allows is half a CPU's share.
    pub bytes_per_interrupt: u64,
}

impl Default for Options {
    /// The kernel's data; guard pages; one interrupt for 10,000 unmappings of 4 pages.
    fn default() -> Self {
        Options { attrs: Attrs::KERNEL_RW, guard: true, bytes_per_interrupt: 10_000 * 4 * PAGE }
    }
}

/// What a CPU has for itself.
#[derive(Default)]
pub(crate) struct Local {
    pub(crate) blocks: Blocks,
    /// Areas that were freed in interrupts.
    pub(crate) doomed: List,
    /// Unmappings since somebody has looked for the end of a period.
    unmapped: u64,
}

/// A space for areas of the kernel: an instance of everything that this crate does.
///
/// A kernel has one for itself, one for its modules, and so on, in ranges of their own; all share the [`Flushes`] of
/// their machine. See the [crate] for an example, and for what each call costs.
///
/// # Context
/// Calls that map or unmap take spin locks that interrupt handlers do not take, and may allocate from the heap: not in an
/// interrupt; but for [`vfree_atomic`](Vmap::vfree_atomic). Nothing sleeps. Where space runs out or too much waits they may
/// broadcast a flush: no lock is held that an interrupt handler takes. Deferred frees of others may run, as the text at
/// [`PageTables`](PageTables#context) says.
///
/// Calls that only read may be made anywhere.
pub struct Vmap<M: Machine, F: Format, G: Concurrent> {
    pub(crate) tables: Arc<PageTables<M, F, G>>,
    pub(crate) flushes: Arc<Flushes<M>>,
    pub(crate) space: VirtRange,
    /// The bytes of each CPU's zone.
    share: u64,
    /// Each CPU's, then the common one; or that alone.
    pub(crate) zones: Box<[Zone<G>]>,
    pub(crate) local: CpuLocal<Local, M>,
    pub(crate) orphans: Orphans,
    pub(crate) options: Options,
}

impl<M: Machine, F: Format, G: Concurrent> Vmap<M, F, G> {
    /// A space of these addresses in the kernel's half. Allocates from the heap, and the kernel's tables below the top: so it is made
    /// before the first space of a program.
    ///
    /// Half of it is shared out among the CPUs, in pieces of 2 MiB; the rest is common.
    ///
    /// # Errors
    /// [`Error::BadSpace`], [`Error::OutOfMemory`], [`Error::Frames`], [`Error::Tables`].
    pub fn try_new(
        tables: Arc<PageTables<M, F, G>>,
        flushes: Arc<Flushes<M>>,
        space: VirtRange,
        options: Options,
    ) -> Result<Self, Error> {
        let machine = tables.machine();
        let bad = Err(Error::BadSpace(space));
        if tables.space().is_some() || space.is_empty() || !F::is_upper(space.start()) {
            return bad;
        }
        if !space.start().is_aligned(PageSize::Size4K) || !space.len().is_multiple_of(PAGE) {
            return bad;
        }
        tables.reserve(space)?;
        let cpus = machine.count() as u64;
        let share = space.len() / 2 / cpus / block::BYTES * block::BYTES;
        // Shares begin at a border of 2 MiB, so that none has a page table in common with another.
        let first = space.start().align_up(PageSize::Size2M).unwrap_or(space.start());
        let offset = first.get() - space.start().get();
        let share = if offset == 0 { share } else { 0 };
        let mut zones = Vec::new();
        let count = if share == 0 { 1 } else { cpus + 1 };
        zones.try_reserve_exact(count as usize).map_err(|_| Error::OutOfMemory)?;
        for number in 0..count {
            let start = space.start().checked_add(number * share).ok_or(Error::BadSpace(space))?;
            let len = if number + 1 == count { space.len() - number * share } else { share };
            let range = VirtRange::new(start, len).ok_or(Error::BadSpace(space))?;
            zones.push(Zone::new(range)?);
        }
        let local = CpuLocal::try_new(machine.clone(), |_| Local::default())
            .map_err(|_| Error::OutOfMemory)?;
        Ok(Vmap {
            tables,
            flushes,
            space,
            share,
            zones: zones.into_boxed_slice(),
            local,
            orphans: Orphans::default(),
            options,
        })
    }

    /// The machine.
    pub fn machine(&self) -> &M {
        self.tables.machine()
    }

    /// The addresses.
    pub fn space(&self) -> VirtRange {
        self.space
    }

    /// The kernel's tables.
    pub fn tables(&self) -> &Arc<PageTables<M, F, G>> {
        &self.tables
    }

    /// The TLB grace periods of the machine.
    pub fn flushes(&self) -> &Arc<Flushes<M>> {
        &self.flushes
    }

    /// The zone that an address is of. A division.
    pub(crate) fn zone_of(&self, at: VirtAddr) -> Option<&Zone<G>> {
        if !self.space.contains(at) {
            return None;
        }
        let offset = at.get() - self.space.start().get();
        let number = offset.checked_div(self.share).unwrap_or(0) as usize;
        self.zones.get(number.min(self.zones.len() - 1))
    }

    /// The zone that this CPU takes so many bytes from first, by its number.
    fn first_zone(&self, bytes: u64) -> usize {
        let common = self.zones.len() - 1;
        if bytes > self.share / 4 {
            return common;
        }
        let _section = self.machine().irqs_off();
        self.machine().current().index().min(common)
    }

    /// Takes addresses for an area: what was kept by this CPU's zone, or new ones.
    fn take(&self, bytes: u64, align: PageSize) -> Result<Ours, Error> {
        if align == PageSize::Size4K
            && let Some(zone) = self.zones.get(self.first_zone(bytes))
            && let Some(area) = zone.take_kept(&self.flushes, bytes)
        {
            return Ok(area);
        }
        self.take_new(bytes, align, Counted::new(Area::new(None))?)
    }

    /// Takes addresses for a record: from this CPU's zone, or, if that has none, from others; before that is given up, all that
    /// waits comes back.
    pub(crate) fn take_new(
        &self,
        bytes: u64,
        align: PageSize,
        mut record: Counted<Area>,
    ) -> Result<Ours, Error> {
        let first = self.first_zone(bytes);
        let zones = || {
            let others = (0..self.zones.len()).rev().filter(move |zone| *zone != first);
            core::iter::once(first).chain(others).filter_map(|zone| self.zones.get(zone))
        };
        let take = |zone: &Zone<G>, record| zone.take(self.machine(), bytes, align.bytes(), record);
        for attempt in 0..2 {
            for zone in zones() {
                record = match take(zone, record) {
                    Ok(area) => return Ok(area),
                    Err((Error::NoSpace(_), record)) => record,
                    Err((error, _)) => return Err(error),
                };
                // Its own first: what waits there comes back at the price of a flush.
                if attempt == 0 && zone.waiting() >= bytes {
                    self.hurry_zone(zone);
                    record = match take(zone, record) {
                        Ok(area) => return Ok(area),
                        Err((Error::NoSpace(_), record)) => record,
                        Err((error, _)) => return Err(error),
                    };
                }
            }
            if attempt == 0 {
                self.purge();
            }
        }
        Err(Error::NoSpace(bytes))
    }

    /// What waits in a zone comes back now.
    fn hurry_zone(&self, zone: &Zone<G>) {
        if let Some(target) = zone.first_target(self.machine()) {
            self.flushes.expedite(target);
        }
        zone.purge(&self.flushes, true);
    }

    /// Makes an area: takes addresses, has `fill` map them, and shows it to readers as live. If `fill` fails, the addresses
    /// wait: something may have been mapped there for a moment.
    pub(crate) fn make(
        &self,
        what: What,
        guard: bool,
        align: PageSize,
        fill: impl FnOnce(VirtRange) -> Result<(), Error>,
    ) -> Result<VirtAddr, Error> {
        let mapped = self.mapped_bytes(what.pages)?;
        let area = self.take(mapped + if guard { PAGE } else { 0 }, align)?;
        area.prepare(what);
        let at = area.start();
        let range = VirtRange::new(at, mapped).ok_or(Error::TooLarge(mapped))?;
        self.machine().hand_out(None, range);
        if mutant::is(Mutant::LiveBeforeMapped) {
            area.set(State::Live);
        }
        match fill(range) {
            Ok(()) => {
                self.machine().step(Access::Shared);
                area.set(State::Live);
                Ok(at)
            }
            Err(error) => {
                self.put(area);
                Err(error)
            }
        }
    }

    /// The bytes of so many pages, if they are some, and the space is no smaller.
    pub(crate) fn mapped_bytes(&self, pages: usize) -> Result<u64, Error> {
        if pages == 0 {
            return Err(Error::ZeroSize);
        }
        let bytes = (pages as u64).checked_mul(PAGE).ok_or(Error::TooLarge(u64::MAX))?;
        if bytes > self.space.len() { Err(Error::TooLarge(bytes)) } else { Ok(bytes) }
    }

    /// Takes the area that begins at `at`, if it is right for the caller, who has it to himself then. `is_right` fails with the
    /// pages that are wrong, or for its kind.
    pub(crate) fn claim(
        &self,
        at: VirtAddr,
        is_right: impl FnOnce(What) -> Result<(), Option<usize>>,
        to: State,
    ) -> Result<Ours, Error> {
        let zone = self.zone_of(at).ok_or(Error::NotMapped(at))?;
        let guard = G::pin();
        let Some((range, area)) = zone.tree().lookup(&guard, at.get() as usize) else {
            return Err(Error::NotMapped(at));
        };
        let (start, area) = (VirtAddr::new(*range.start() as u64), area.get());
        let culprit = || area.culprit(at, start);
        let not_live = |state| match state {
            // Nobody has been told of it, or it is long gone.
            State::Ready | State::Mapping => Error::NotMapped(at),
            _ => Error::Twice(culprit()),
        };
        match area.state() {
            state @ (State::Ready | State::Mapping | State::Waiting) => {
                return Err(not_live(state));
            }
            _ if start != at => return Err(Error::NotTheStart(culprit())),
            _ => {}
        }
        let is_right = |what| {
            is_right(what).map_err(|pages| match pages {
                Some(pages) => Error::WrongSize { area: culprit(), pages },
                None => Error::WrongKind(culprit()),
            })
        };
        self.machine().step(Access::Shared);
        if mutant::is(Mutant::ClaimInTwo) && area.state() == State::Live {
            // Whatever it has become meanwhile.
            self.machine().step(Access::Shared);
            // SAFETY: none. It is what must be caught.
            unsafe { Ours::of(area) }.set(State::Live);
        }
        area.claim(to, is_right, not_live)?;
        // SAFETY: it was claimed just now.
        Ok(unsafe { Ours::of(area) })
    }

    /// Unmaps the pages of an area that the caller has claimed; its addresses wait.
    pub(crate) fn unmap_claimed(&self, area: Ours) -> Result<(), Error> {
        if mutant::is(Mutant::NumberedBeforeCleared) {
            let range = area.mapped();
            self.put(area);
            return range.map_or(Ok(()), |range| self.unmap_pages(range).map(drop));
        }
        if let Some(range) = area.mapped()
            && let Err(error) = self.unmap_pages(range)
        {
            // Somebody has scribbled on the tables.
            area.set(State::Live);
            return Err(error);
        }
        self.put(area);
        Ok(())
    }

    /// Takes pages out, and leaves their flush to the grace period. Returns how many there were.
    pub(crate) fn unmap_pages(&self, range: VirtRange) -> Result<usize, Error> {
        // SAFETY: the addresses are not handed out before the end of a TLB grace period that begins from here on.
        Ok(unsafe { self.tables.unmap_lazily(range, |_, _| ()) }?)
    }

    /// The addresses of an area wait from now on. If too many do, they come back at the price of a flush.
    pub(crate) fn put(&self, area: Ours) {
        let Some(zone) = self.zone_of(area.start()) else { return };
        let waiting = zone.put(&self.flushes, area);
        let look = self.local.with(|local| {
            local.unmapped += 1;
            local.unmapped.is_multiple_of(LOOK_AFTER.max(self.machine().count() as u64))
        });
        if look == Some(true)
            && let Some(target) = zone.first_target(self.machine())
            && !self.flushes.advance(target)
            && waiting > self.most_waiting(zone.range().len(), target)
        {
            self.hurry_zone(zone);
        }
    }

    /// As many bytes as may wait in so many, until CPUs are interrupted for it.
    pub(crate) fn most_waiting(&self, bytes: u64, target: u64) -> u64 {
        let cpus = self.flushes.behind(target).len() as u64;
        let worth = self.options.bytes_per_interrupt.saturating_mul(cpus.max(1));
        worth.min(bytes / 2)
    }

    /// All that waits anywhere in the space comes back, and so do the blocks of this CPU that are all free then; what is kept is free for
    /// any size. At most two broadcasts, for CPUs that have not flushed of themselves since; none if nothing waits.
    ///
    /// For who needs addresses, or address space, at once. Blocks that nobody has come to this CPU; those in other CPUs' queues
    /// stay there.
    pub fn purge(&self) {
        // Without memory for that, they stay.
        while self.make_room().is_ok()
            && let Some(own) = self.orphans.adopt(self.machine())
            && self.keep_block(own).is_ok()
        {}
        // First what waits, then the blocks that are free since.
        for _ in 0..2 {
            let pages = self.local.with(|local| local.blocks.gather_all(&self.flushes));
            self.give_back_free(0);
            let waits =
                pages.unwrap_or(0) != 0 || self.zones.iter().any(|zone| zone.waiting() != 0);
            if waits {
                self.flushes.expedite(self.flushes.target());
            }
            for zone in &self.zones {
                zone.purge(&self.flushes, false);
            }
            if !waits {
                break;
            }
        }
    }

    /// When it returns, no CPU holds a translation of anything that was unmapped before the call: for who cannot bear
    /// aliases, as when the attributes of a page's other mappings change. One broadcast, to the CPUs that have not flushed of
    /// themselves.
    pub fn vm_unmap_aliases(&self) {
        self.flushes.expedite(self.flushes.target());
    }

    /// Does what was put off: unmaps what was freed in interrupts, takes back what has come due, and gives blocks back that this
    /// CPU has not used since. For a kernel's idle loop, or a thread of each CPU. Never broadcasts, but for a space that is
    /// nearly full.
    pub fn poll(&self) {
        self.free_doomed();
        self.local.with(|local| local.blocks.gather(&self.flushes));
        self.give_back_free(1);
        for zone in &self.zones {
            if let Some(target) = zone.first_target(self.machine()) {
                self.flushes.advance(target);
            }
            zone.purge(&self.flushes, true);
        }
    }

    /// This CPU is about to be idle, or to stop: does what was put off, gives back its blocks that are free, and leaves the others to
    /// whoever wants one. Before [`Flushes::away`].
    pub fn idle(&self) {
        self.poll();
        self.give_back_free(0);
        while let Some(Some(own)) = self.local.with(|local| local.blocks.pop()) {
            if let Err(own) = self.orphans.leave(self.machine(), own) {
                // Without memory for it, it stays.
                let _ = self.keep_block(own);
                break;
            }
        }
    }

    /// Blocks of this CPU that are all free go back to their zones, but for so many.
    fn give_back_free(&self, keep: usize) {
        while let Some(Some(own)) = self.local.with(|local| local.blocks.pop_free(keep)) {
            own.area.set(State::Unmapping);
            self.put(own.area);
        }
    }
}

/// Areas that are live stay mapped, and their addresses must not be used for another space: unmap them before. All that was unmapped is
/// flushed.
impl<M: Machine, F: Format, G: Concurrent> Drop for Vmap<M, F, G> {
    fn drop(&mut self) {
        self.flushes.expedite(self.flushes.target());
    }
}

impl<M: Machine, F: Format, G: Concurrent> fmt::Debug for Vmap<M, F, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vmap").field("space", &self.space).finish_non_exhaustive()
    }
}
