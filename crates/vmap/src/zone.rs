//! A zone: a part of the space, with its areas in a tree of its own, and those of them that wait.
//!
//! Each CPU has one that it takes addresses from first, and one is common to all, for what is large. So CPUs meet only where one
//! unmaps what another has mapped, or has run out.
//!
//! # Why it is right
//! The tree and the queue are changed with the zone's lock held; the tree is read without it. An area stays in the tree from
//! the moment that its addresses are taken until its TLB grace period is over: so they cannot be taken twice, and
//! are not handed out too early (I4). What lies outside of the zone is taken by a *wall*, so that every hole of the tree is
//! free addresses of the zone, and the largest of them is at the tree's top.
//!
//! The queue is in order of periods, since each period is numbered with the lock held. It is linked by the areas' addresses, through the
//! areas themselves, so putting one there allocates nothing and cannot fail. Taking one out of the tree needs memory, as each
//! write beside readers does: if there is none, it stays, and is tried again.
//!
//! Interrupt handlers do not take the lock.

use crate::area::Area;
use crate::error::Error;
use crate::flushes::Flushes;
use core::sync::atomic::{AtomicU64, Ordering};
use grace::Concurrent;
use machine::{Machine, VirtAddr, VirtRange, lock};
use maple::{Counted, MapleTree, Nodes, OwnerLock, WriteToken};
use spin::mutex::{SpinMutex, SpinMutexGuard};

pub(crate) type Tree<G> = MapleTree<Counted<Area>, G, Nodes, OwnerLock>;

/// As many areas as come back while an address is taken or given: more than one, so that the queue gets shorter.
const BACK: usize = 2;
/// As many areas as come back with the lock taken once.
const BATCH: usize = 32;

/// What the lock is for.
pub(crate) struct Held {
    token: WriteToken,
    /// Where the first area that waits begins, and the last; 0 if none does.
    first: u64,
    last: u64,
}

/// A part of the space.
#[repr(align(128))]
pub(crate) struct Zone<G: Concurrent> {
    range: VirtRange,
    tree: Tree<G>,
    held: SpinMutex<Held>,
    /// Bytes that are taken, those that wait, and areas. Written with the lock held.
    used: AtomicU64,
    waiting: AtomicU64,
    areas: AtomicU64,
}

/// Relaxed, both: a count that is written with the zone's lock held, and read by whoever wants to know.
fn count(counter: &AtomicU64, change: impl FnOnce(u64) -> u64) {
    counter.store(change(counter.load(Ordering::Relaxed)), Ordering::Relaxed);
}

impl<G: Concurrent> Zone<G> {
    /// The zone of a range, which is not empty.
    pub(crate) fn new(range: VirtRange) -> Result<Self, Error> {
        let (tree, token) = Tree::with_token_in();
        let held = SpinMutex::new(Held { token, first: 0, last: 0 });
        let count = || AtomicU64::new(0);
        let zone = Zone { range, tree, held, used: count(), waiting: count(), areas: count() };
        zone.wall_in()?;
        Ok(zone)
    }

    fn wall_in(&self) -> Result<(), Error> {
        use crate::area::Kind::Wall;
        let wall = Counted::new(Area::new(Wall, 0, 0, core::panic::Location::caller()))?;
        let mut held = self.held.lock();
        let mut writer = self.tree.writer(&mut held.token).map_err(refused)?;
        if let Some(below) = self.range.start().get().checked_sub(1) {
            writer.store_range(0..=below as usize, wall.clone()).map_err(|no| refused(no.error))?;
        }
        if let Some(end) = self.range.end() {
            writer
                .store_range(end.get() as usize..=usize::MAX, wall)
                .map_err(|no| refused(no.error))?;
        }
        Ok(())
    }

    pub(crate) fn range(&self) -> VirtRange {
        self.range
    }

    pub(crate) fn tree(&self) -> &Tree<G> {
        &self.tree
    }

    pub(crate) fn used(&self) -> u64 {
        // Relaxed, here and below: as `count`.
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(crate) fn areas(&self) -> u64 {
        self.areas.load(Ordering::Relaxed)
    }

    fn lock<M: Machine>(&self, machine: &M) -> SpinMutexGuard<'_, Held> {
        lock(machine, &self.held)
    }

    /// Takes `bytes` addresses that begin at a multiple of `align`, for an area. Areas whose period is over come back
    /// first.
    ///
    /// Cost: a lock, two writes to the tree (one more for each area that comes back).
    pub(crate) fn take<M: Machine>(
        &self,
        flushes: &Flushes<M>,
        bytes: u64,
        align: u64,
        area: Counted<Area>,
    ) -> Result<VirtAddr, (Error, Counted<Area>)> {
        let mut held = self.lock(flushes.machine());
        self.come_back(&mut held, flushes.done(), BACK);
        let bounds = match self.range.last() {
            Some(last) => self.range.start().get() as usize..=last.get() as usize,
            None => return Err((Error::NoSpace(bytes), area)),
        };
        let mut writer = match self.tree.writer(&mut held.token) {
            Ok(writer) => writer,
            Err(error) => return Err((refused(error), area)),
        };
        match writer.alloc_range(bounds, bytes as usize, align as usize, area) {
            Ok(start) => {
                count(&self.used, |used| used + bytes);
                count(&self.areas, |areas| areas + 1);
                Ok(VirtAddr::new(start as u64))
            }
            Err(no) if no.error == maple::Error::NoSpace => Err((Error::NoSpace(bytes), no.entry)),
            Err(no) => Err((refused(no.error), no.entry)),
        }
    }

    /// An area whose pages are gone, and whose addresses wait from now on; the caller has it to himself. Areas whose period is
    /// over come back. Returns how many bytes wait in the zone.
    pub(crate) fn put<M: Machine>(&self, flushes: &Flushes<M>, start: VirtAddr) -> u64 {
        let mut held = self.lock(flushes.machine());
        let guard = G::pin();
        let Some((range, area)) = self.tree.lookup(&guard, start.get() as usize) else { return 0 };
        // With the lock held: so the queue is in order.
        area.get().wait(flushes.target());
        area.get().set_next(0);
        match self.tree.load(&guard, held.last as usize).filter(|_| held.last != 0) {
            Some(last) => last.get().set_next(start.get()),
            None => held.first = start.get(),
        }
        held.last = start.get();
        count(&self.waiting, |waiting| waiting + length(&range));
        self.come_back(&mut held, flushes.done(), BACK);
        self.waiting()
    }

    /// The addresses of areas whose period is over are free; at most `most` of them, the oldest first. Returns how many.
    fn come_back(&self, held: &mut Held, done: u64, most: usize) -> usize {
        let mut back = 0;
        while back < most && held.first != 0 {
            let start = held.first as usize;
            let next = {
                let guard = G::pin();
                match self.tree.load(&guard, start) {
                    Some(area) if area.get().target() > done => break,
                    Some(area) => area.get().next(),
                    None => break,
                }
            };
            let Ok(mut writer) = self.tree.writer(&mut held.token) else { break };
            // Without memory for it, it stays.
            let Ok(Some((range, _area))) = writer.erase(start) else { break };
            drop(writer);
            held.first = next;
            if next == 0 {
                held.last = 0;
            }
            let bytes = length(&range);
            count(&self.used, |used| used - bytes);
            count(&self.waiting, |waiting| waiting - bytes);
            count(&self.areas, |areas| areas - 1);
            back += 1;
        }
        back
    }

    /// As many areas as there are whose period is over come back, with the lock taken for some of them at a time. Returns how many.
    pub(crate) fn purge<M: Machine>(&self, flushes: &Flushes<M>) -> usize {
        let mut all = 0;
        loop {
            let mut held = self.lock(flushes.machine());
            let back = self.come_back(&mut held, flushes.done(), BATCH);
            all += back;
            if back < BATCH {
                return all;
            }
        }
    }

    /// The period of the area that has waited longest, if any waits.
    pub(crate) fn first_target<M: Machine>(&self, machine: &M) -> Option<u64> {
        let held = self.lock(machine);
        if held.first == 0 {
            return None;
        }
        let guard = G::pin();
        Some(self.tree.load(&guard, held.first as usize)?.get().target())
    }

    /// Cuts an area in two, which the caller has to himself: `front` is what it is up to `border`, `rest` from there on. Both, or
    /// neither.
    pub(crate) fn cut<M: Machine>(
        &self,
        machine: &M,
        start: VirtAddr,
        border: VirtAddr,
        front: Counted<Area>,
        rest: Counted<Area>,
    ) -> Result<(), Error> {
        let mut held = self.lock(machine);
        let mut writer = self.tree.writer(&mut held.token).map_err(refused)?;
        let Some((range, _)) = writer.lookup(start.get() as usize) else {
            return Err(Error::NotMapped(start));
        };
        let border = border.get() as usize;
        writer.preallocate_writes(2).map_err(refused)?;
        writer.store_range(border..=*range.end(), rest).map_err(|no| refused(no.error))?;
        writer.store_range(*range.start()..=border - 1, front).map_err(|no| refused(no.error))?;
        count(&self.areas, |areas| areas + 1);
        Ok(())
    }

    /// The largest free run, in bytes; beside a writer a hint.
    pub(crate) fn largest_gap(&self) -> u64 {
        self.tree.largest_gap(&G::pin()) as u64
    }
}

/// The bytes of a range.
pub(crate) fn length(range: &core::ops::RangeInclusive<usize>) -> u64 {
    (range.end() - range.start()) as u64 + 1
}

/// The tree refuses a write: there is no memory, or, never, it is asked for nonsense.
pub(crate) fn refused(error: maple::Error) -> Error {
    debug_assert_eq!(error, maple::Error::OutOfMemory);
    Error::OutOfMemory
}

impl<G: Concurrent> core::fmt::Debug for Zone<G> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Zone").field("range", &self.range).field("used", &self.used()).finish()
    }
}
