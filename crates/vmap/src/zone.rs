//! A zone: a part of the space, with its areas in a tree of its own, and those of them that wait.
//!
//! Each CPU has one that it takes addresses from first, and one is common to all, for what is
//! large. So CPUs meet only where one unmaps what another has mapped, or has run out.
//!
//! # How areas come back
//! An area that was unmapped is put at the end of the zone's queue. When its period is over, and
//! somebody wants one, or the queue is long, it comes back: if it is small and not too many of its
//! size are there it is *kept*, tree and record as they are, for the next who wants as many pages.
//! So in the steady state taking an area and giving it back is some words, with the lock. Else it
//! leaves the tree. What is kept leaves it when space is short.
//!
//! Who lists areas looks into each record, those that wait too, and so takes their lines from the
//! cache of the CPU that will write them next. That CPU does not wait for them: whoever takes an
//! area asks for the lines of the next in turn, which is one operation ahead. So areas come back
//! one by one: of several at once each would be waited for. To ask two operations ahead gains
//! nothing more.
//!
//! # Why it is right
//! The tree, the queue and what is kept are changed with the zone's lock held; the tree is read
//! without it. An area stays in the tree from the moment that its addresses are taken until its TLB
//! grace period is over: so they cannot be taken twice, and are not handed out too early (I4). What
//! lies outside of the zone is taken by a *wall*, so that every hole of the tree is free addresses
//! of the zone, and the largest of them is at the tree's top.
//!
//! The queue is in order of periods, since each period is numbered with the lock held. Putting an
//! area there allocates nothing and cannot fail. Taking one out of the tree needs memory, as each
//! write beside readers does: if there is none, it stays, and is tried again.
//!
//! Interrupt handlers do not take the lock.

use crate::area::{Area, List, Ours, Record, State};
use crate::error::Error;
use crate::tlb_grace::TlbGrace;
use core::sync::atomic::{AtomicU64, Ordering};
use grace::Concurrent;
use machine::{Machine, PageSize, VirtAddr, VirtRange, lock};
use maple::{Global, MapleTree, OwnerLock, WriteToken};
use spin::mutex::{SpinMutex, SpinMutexGuard};

/// Nodes are of the heap, as in a kernel, also where a program has turned on a pool for other
/// trees.
pub(crate) type Tree<G> = MapleTree<Record, G, Global, OwnerLock>;

/// As many areas as come back at most while one is taken, if none of its size is kept.
const BACK: usize = 8;
/// From so many areas on in the queue, two come back while one is put there.
const QUEUE: usize = 4096;
/// As many areas as come back with the lock taken once.
const BATCH: usize = 8;
/// Areas of so many pages at most, guard page included, are kept.
const KEPT_PAGES: usize = 72;
/// As many of one size are kept.
const KEPT: usize = 256;
/// As many areas are looked at on each side of one, to see whether page tables are needed any more.
const NEIGHBOURS: usize = 64;
/// One part in so many of the zone is kept at most.
const KEPT_PART: u64 = 8;

/// What the lock is for.
struct Held {
    token: WriteToken,
    /// Areas that wait, in the order of their periods.
    queue: List,
    /// Areas that are kept, by their pages.
    kept: [List; KEPT_PAGES + 1],
}

/// A part of the space. Where readers begin, and what writers write at each call, are on lines
/// apart: who lists areas comes back to the tree's top every microsecond or so.
#[repr(align(128))]
pub(crate) struct Zone<G: Concurrent> {
    range: VirtRange,
    tree: Tree<G>,
    books: Books,
}

/// What is written at each call.
#[repr(align(128))]
struct Books {
    held: SpinMutex<Held>,
    /// Bytes of areas that are in use or wait; of those that wait; of those that are kept; and how
    /// many are in use or wait. Written with the lock held.
    used: AtomicU64,
    waiting: AtomicU64,
    kept: AtomicU64,
    areas: AtomicU64,
}

/// Relaxed, both: a count that is written with the zone's lock held, and read by whoever wants to
/// know.
fn count(counter: &AtomicU64, change: impl FnOnce(u64) -> u64) {
    counter.store(change(counter.load(Ordering::Relaxed)), Ordering::Relaxed);
}

impl<G: Concurrent> Zone<G> {
    /// The zone of a range, which is not empty.
    pub(crate) fn new(range: VirtRange) -> Result<Self, Error> {
        let (tree, token) = Tree::with_token_in();
        let kept = core::array::from_fn(|_| List::default());
        let held = SpinMutex::new(Held { token, queue: List::default(), kept });
        let count = || AtomicU64::new(0);
        let (used, waiting, kept, areas) = (count(), count(), count(), count());
        let zone = Zone { range, tree, books: Books { held, used, waiting, kept, areas } };
        zone.wall_in()?;
        Ok(zone)
    }

    fn wall_in(&self) -> Result<(), Error> {
        let wall = Record::aligned(Area::new(None))?;
        let mut held = self.books.held.lock();
        let mut writer = self.tree.writer(&mut held.token).map_err(refused)?;
        if let Some(below) = self.range.start().get().checked_sub(1) {
            writer.store_range(0..=below as usize, wall.clone()).map_err(|no| refused(no.error))?;
        }
        if let Some(end) = self.range.end() {
            let beyond = end.get() as usize..=usize::MAX;
            writer.store_range(beyond, wall).map_err(|no| refused(no.error))?;
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
        self.books.used.load(Ordering::Relaxed)
    }

    pub(crate) fn waiting(&self) -> u64 {
        self.books.waiting.load(Ordering::Relaxed)
    }

    pub(crate) fn kept(&self) -> u64 {
        self.books.kept.load(Ordering::Relaxed)
    }

    pub(crate) fn areas(&self) -> u64 {
        self.books.areas.load(Ordering::Relaxed)
    }

    fn lock<M: Machine>(&self, machine: &M) -> SpinMutexGuard<'_, Held> {
        lock(machine, &self.books.held)
    }

    /// An area of so many bytes that was kept; if there is none, those whose period is over come
    /// back, one by one, until one has that size. The lock, and the record's lines.
    pub(crate) fn take_kept<M: Machine>(&self, flushes: &TlbGrace<M>, bytes: u64) -> Option<Ours> {
        let mut held = self.lock(flushes.machine());
        let size = pages(bytes);
        for _ in 0..BACK {
            if held.kept.get(size)?.first().is_some()
                || self.idle_exit(&mut held, flushes.done(), 1) == 0
            {
                break;
            }
        }
        let kept = held.kept.get_mut(size)?;
        let area = kept.pop()?;
        let next = kept.first();
        if let Some(next) = next.or(held.queue.first()) {
            next.bring_near();
        }
        count(&self.books.kept, |kept| kept - bytes);
        self.grown(bytes);
        Some(area)
    }

    /// Takes `bytes` addresses that begin at a multiple of `align`, for the area of this record.
    /// What has come due, and what is kept, leaves the tree for it, if it must.
    ///
    /// Cost: a lock, and a write to the tree.
    pub(crate) fn take<M: Machine>(
        &self,
        flushes: &TlbGrace<M>,
        bytes: u64,
        align: u64,
        record: Record,
    ) -> Result<Ours, (Error, Record)> {
        let mut held = self.lock(flushes.machine());
        // SAFETY: it is made here; it is in the tree from where this is used.
        let area = unsafe { Ours::of(&record) };
        let mut record = record;
        loop {
            record = match self.place(&mut held, bytes, align, record) {
                Ok(start) => {
                    area.place(start, bytes);
                    self.grown(bytes);
                    return Ok(area);
                }
                Err((Error::NoSpace(bytes), record)) => {
                    let back = self.idle_exit(&mut held, flushes.done(), BATCH);
                    if back + self.drop_kept(&mut held, BATCH) == 0 {
                        return Err((Error::NoSpace(bytes), record));
                    }
                    record
                }
                Err(no) => return Err(no),
            }
        }
    }

    /// Calls `f` with the addresses of an area of the caller's, and those around it up to the
    /// borders of page tables where nothing is mapped: they are free, or wait. None of them is
    /// taken meanwhile, by anybody: the lock is held.
    pub(crate) fn with_idle_around<M: Machine>(
        &self,
        machine: &M,
        area: Ours,
        f: impl FnOnce(VirtRange),
    ) {
        let _held = self.lock(machine);
        let start = area.start();
        let Some(end) = start.checked_add(area.len()) else { return };
        let idle = |from, to| VirtRange::between(from, to).is_some_and(|range| self.is_idle(range));
        let sizes = [PageSize::Size1G, PageSize::Size2M];
        let mut below = sizes.iter().map(|size| start.align_down(*size));
        let mut above = sizes.iter().filter_map(|size| end.align_up(*size));
        let first = below.find(|first| idle(*first, start));
        let last = above.find(|last| idle(end, *last));
        if let Some(range) = VirtRange::between(first.unwrap_or(start), last.unwrap_or(end)) {
            f(range);
        }
    }

    /// Whether nothing is mapped in a range, nor will be while the lock is held. A record that is
    /// Ready may have been taken just now.
    fn is_idle(&self, range: VirtRange) -> bool {
        let Some(last) = range.last().filter(|_| self.range.covers(&range)) else {
            return range.is_empty();
        };
        let guard = G::pin();
        let addresses = range.start().get() as usize..=last.get() as usize;
        let areas = self.tree.iter(&guard, addresses).take(NEIGHBOURS + 1);
        let mut count = 0;
        let idle =
            areas.inspect(|_| count += 1).all(|(_, area)| area.get().state() == State::Waiting);
        idle && count <= NEIGHBOURS
    }

    /// There is an area of so many bytes more.
    fn grown(&self, bytes: u64) {
        count(&self.books.used, |used| used + bytes);
        count(&self.books.areas, |areas| areas + 1);
    }

    /// There is one less.
    fn shrunk(&self, bytes: u64) {
        count(&self.books.used, |used| used - bytes);
        count(&self.books.areas, |areas| areas - 1);
    }

    fn place(
        &self,
        held: &mut Held,
        bytes: u64,
        align: u64,
        record: Record,
    ) -> Result<VirtAddr, (Error, Record)> {
        let bounds = match self.range.last() {
            Some(last) => self.range.start().get() as usize..=last.get() as usize,
            None => return Err((Error::NoSpace(bytes), record)),
        };
        let mut writer = match self.tree.writer(&mut held.token) {
            Ok(writer) => writer,
            Err(error) => return Err((refused(error), record)),
        };
        match writer.alloc_range(bounds, bytes as usize, align as usize, record) {
            Ok(start) => Ok(VirtAddr::new(start as u64)),
            Err(no) if no.error == maple::Error::NoSpace => Err((Error::NoSpace(bytes), no.entry)),
            Err(no) => Err((refused(no.error), no.entry)),
        }
    }

    /// An area whose pages are gone; its addresses wait from now on. Returns how many bytes wait in
    /// the zone.
    pub(crate) fn put<M: Machine>(&self, flushes: &TlbGrace<M>, area: Ours) -> u64 {
        let mut held = self.lock(flushes.machine());
        // With the lock held: so the queue is in order.
        area.wait(flushes.target());
        held.queue.push(area);
        count(&self.books.waiting, |waiting| waiting + area.len());
        if held.queue.len() > QUEUE {
            self.idle_exit(&mut held, flushes.done(), 2);
        }
        self.waiting()
    }

    /// Areas whose period is over come back, the oldest first: they are kept, or leave the tree.
    /// Returns how many.
    fn idle_exit(&self, held: &mut Held, done: u64, most: usize) -> usize {
        let mut back = 0;
        while back < most
            && let Some(area) = held.queue.first().filter(|area| area.target() <= done)
        {
            let bytes = area.len();
            let room = self.kept() + bytes <= self.range.len() / KEPT_PART;
            let kept = held.kept.get_mut(pages(bytes)).filter(|kept| room && kept.len() < KEPT);
            held.queue.pop();
            if let Some(kept) = kept.filter(|_| area.bits().is_none()) {
                area.set(State::Ready);
                kept.push(area);
                count(&self.books.kept, |kept| kept + bytes);
            } else if !self.drop_area(held, area) {
                held.queue.push_first(area);
                break;
            }
            count(&self.books.waiting, |waiting| waiting - bytes);
            self.shrunk(bytes);
            back += 1;
        }
        back
    }

    /// Areas that are kept leave the tree. Returns how many.
    fn drop_kept(&self, held: &mut Held, most: usize) -> usize {
        let mut dropped = 0;
        for size in 0..held.kept.len() {
            while dropped < most
                && let Some(area) = held.kept[size].pop()
            {
                let bytes = area.len();
                if !self.drop_area(held, area) {
                    held.kept[size].push_first(area);
                    return dropped;
                }
                count(&self.books.kept, |kept| kept - bytes);
                dropped += 1;
            }
        }
        dropped
    }

    /// An area leaves the tree, and is not to be used any more. Returns whether it did: there may
    /// be no memory for it.
    fn drop_area(&self, held: &mut Held, area: Ours) -> bool {
        let Ok(mut writer) = self.tree.writer(&mut held.token) else { return false };
        matches!(writer.erase(area.start().get() as usize), Ok(Some(_)))
    }

    /// An area of which nobody holds a translation leaves the tree. Returns whether it did: there
    /// may be no memory for it.
    pub(crate) fn drop_now<M: Machine>(&self, machine: &M, area: Ours) -> bool {
        let mut held = self.lock(machine);
        let bytes = area.len();
        let gone = self.drop_area(&mut held, area);
        if gone {
            self.shrunk(bytes);
        }
        gone
    }

    /// As many areas as there are whose period is over come back, with the lock taken for some of
    /// them at a time; what is kept leaves the tree, if it is not to be kept.
    pub(crate) fn purge<M: Machine>(&self, flushes: &TlbGrace<M>, keep: bool) {
        loop {
            let mut held = self.lock(flushes.machine());
            let mut back = self.idle_exit(&mut held, flushes.done(), BATCH);
            if !keep {
                back += self.drop_kept(&mut held, BATCH);
            }
            if back < BATCH {
                return;
            }
        }
    }

    /// The period of the area that has waited longest, if any waits.
    pub(crate) fn first_target<M: Machine>(&self, machine: &M) -> Option<u64> {
        self.lock(machine).queue.first().map(Ours::target)
    }

    /// Cuts an area in two, which the caller has to himself: `front` is what it is up to `border`,
    /// `rest` from there on. Both, or neither.
    pub(crate) fn cut<M: Machine>(
        &self,
        machine: &M,
        area: Ours,
        border: VirtAddr,
        front: Record,
        rest: Record,
    ) -> Result<(Ours, Ours), Error> {
        let mut held = self.lock(machine);
        let mut writer = self.tree.writer(&mut held.token).map_err(refused)?;
        let (start, len) = (area.start(), area.len());
        let middle = border.get() as usize;
        let end = (start.get() + (len - 1)) as usize;
        writer.preallocate_writes(2).map_err(refused)?;
        // SAFETY: they are made here, and in the tree when this returns.
        let ours = unsafe { (Ours::of(&front), Ours::of(&rest)) };
        writer.store_range(middle..=end, rest).map_err(|no| refused(no.error))?;
        writer
            .store_range(start.get() as usize..=middle - 1, front)
            .map_err(|no| refused(no.error))?;
        let first = border.get() - start.get();
        ours.0.place(start, first);
        ours.1.place(border, len - first);
        count(&self.books.areas, |areas| areas + 1);
        Ok(ours)
    }

    /// The largest free run, in bytes; beside a writer a hint.
    pub(crate) fn largest_gap(&self) -> u64 {
        self.tree.largest_gap(&G::pin()) as u64
    }
}

/// The pages of so many bytes.
fn pages(bytes: u64) -> usize {
    (bytes / PageSize::Size4K.bytes()) as usize
}

/// The tree refuses a write: there is no memory, or, never, it is asked for nonsense.
fn refused(error: maple::Error) -> Error {
    debug_assert_eq!(error, maple::Error::OutOfMemory);
    Error::OutOfMemory
}

impl<G: Concurrent> core::fmt::Debug for Zone<G> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Zone").field("range", &self.range).field("used", &self.used()).finish()
    }
}
