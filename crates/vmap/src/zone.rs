//! A zone: a part of the space, with a tree of its areas and a queue of those that wait.
//!
//! Each CPU has a zone that it takes addresses from first. One more zone is common to all CPUs, for
//! large areas. So two CPUs contend only if one unmaps an area that the other has mapped, or if a
//! zone is full.
//!
//! # How areas come back
//! An unmapped area goes to the end of the zone's queue. It comes back when its period has ended
//! and either a call wants an area or the queue is long.
//!
//! An area that comes back is *kept* if it is small and not too many of its size are kept already:
//! its entry in the tree and its record stay as they are, for the next request of as many pages. So
//! in the steady state, taking and returning an area writes a few words under the lock. Any other
//! area leaves the tree, and so do kept areas when space is short.
//!
//! A CPU that lists areas reads each record, and so takes its cache lines from the CPU that writes
//! them next. The writer does not wait for them: a call that takes an area prefetches the lines of
//! the next one, one operation ahead. This is why areas come back one at a time; of several at
//! once, all but the first would be waited for.
//!
//! # Why it is correct
//! - The tree, the queue and the kept areas change under the zone's lock only. Readers of the tree
//!   do not take it, and neither do interrupt handlers.
//! - An area stays in the tree from the moment its addresses are taken until its TLB grace period
//!   has ended. So its addresses cannot be taken twice, nor reused too early (I4).
//! - A *wall* entry occupies all addresses outside of the zone. So every gap of the tree is free
//!   space of the zone, and the root of the tree has the size of the largest.
//! - The queue is in the order of periods, because each period is numbered under the lock.
//! - Queueing an area does not allocate, so it cannot fail. Removing an area from the tree
//!   allocates nodes, like any write under lock-free readers. If that fails, the area stays
//!   queued, and a later call retries.

mod place;

pub(crate) use place::Span;

use crate::TlbGrace;
use crate::area::{Area, AreaState, List, Ours, Record};
use crate::block::PAGES;
use crate::error::Error;
use core::sync::atomic::{AtomicU64, Ordering};
use grace::Concurrent;
use machine::{Machine, PageSize, VirtAddr, VirtRange, lock};
use maple::{Global, Index, MapleTree, OwnerLock, WriteToken, Writer};
use spin::mutex::{SpinMutex, SpinMutexGuard};

/// Tree nodes always come from the heap, as in a kernel, even if a program has enabled a node pool
/// for other trees.
pub(crate) type Tree<G> = MapleTree<Record, G, Global, OwnerLock>;

/// The maximum number of areas that come back during one take, if none of its size is kept.
const BACK: usize = 8;
/// If more areas than this wait, each put takes two back.
const QUEUE: usize = 4096;
/// The maximum number of areas that come back in one critical section.
const BATCH: usize = 8;
/// The largest area that is kept, in pages, guard page included.
const KEPT_PAGES: usize = 72;
// A block is never kept: its record has bits, which no other area has. (Loom runs no zone.)
const _: () = assert!(PAGES > KEPT_PAGES || cfg!(loom));
/// The maximum number of kept areas of one size.
const KEPT: usize = 256;
/// The maximum number of areas that are examined on each side of an area, to find out whether
/// page-table pages are still needed.
const NEIGHBOURS: usize = 64;
/// At most this fraction (1/8) of the zone is kept.
const KEPT_PART: u64 = 8;

/// The state that the lock protects.
struct Held {
    token: WriteToken,
    /// Waiting areas, in the order of their periods.
    queue: List,
    /// Kept areas, indexed by their pages.
    kept: [List; KEPT_PAGES + 1],
}

/// A part of the space. The fields that readers start from, and those that each call writes, are on
/// separate cache lines: a CPU that lists areas returns to the tree's root about every microsecond.
#[repr(align(128))]
pub(crate) struct Zone<G: Concurrent> {
    range: VirtRange,
    tree: Tree<G>,
    books: Books,
}

/// The fields that each call writes.
#[repr(align(128))]
struct Books {
    held: SpinMutex<Held>,
    /// Bytes of areas in use or waiting; bytes of waiting areas; bytes of kept areas; and the
    /// number of areas in use or waiting. Written under the lock.
    used: AtomicU64,
    waiting: AtomicU64,
    kept: AtomicU64,
    areas: AtomicU64,
}

/// Relaxed, both: a statistic that is written under the zone's lock and read without it.
fn count(counter: &AtomicU64, change: impl FnOnce(u64) -> u64) {
    counter.store(change(counter.load(Ordering::Relaxed)), Ordering::Relaxed);
}

impl<G: Concurrent> Zone<G> {
    /// Creates the zone of a nonempty range.
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
            writer.store_range(0..=below as Index, wall.clone()).map_err(|no| refused(no.error))?;
        }
        if let Some(end) = self.range.end() {
            let beyond = end.get() as Index..=Index::MAX;
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
        // Relaxed, here and below: as in `count`.
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

    /// Takes a kept area of so many bytes. If there is none, lets areas whose period has ended come
    /// back, one at a time, until one has that size. Cost: the lock, and the record's lines.
    pub(crate) fn take_kept<M: Machine>(
        &self,
        tlb_grace: &TlbGrace<M>,
        bytes: u64,
    ) -> Option<Ours> {
        let mut held = self.lock(tlb_grace.machine());
        let size = pages(bytes);
        for _ in 0..BACK {
            if held.kept.get(size)?.first().is_some()
                || self.take_back(&mut held, tlb_grace.done(), 1) == 0
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

    /// Calls `f` with the caller's area, extended to the boundaries of page-table pages if nothing
    /// is mapped in between. These further addresses are free or wait. No CPU can take them
    /// meanwhile, because the lock is held.
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

    /// Whether nothing is mapped in a range, nor will be while the lock is held. A Ready area does
    /// not qualify: another CPU may have just taken it.
    fn is_idle(&self, range: VirtRange) -> bool {
        let Some(last) = range.last().filter(|_| self.range.covers(&range)) else {
            return range.is_empty();
        };
        let guard = G::pin();
        let addresses = range.start().get() as Index..=last.get() as Index;
        let areas = self.tree.iter(&guard, addresses).take(NEIGHBOURS + 1);
        let mut count = 0;
        let idle =
            areas.inspect(|_| count += 1).all(|(_, area)| area.get().state() == AreaState::Waiting);
        idle && count <= NEIGHBOURS
    }

    /// Counts one more area, of so many bytes.
    fn grown(&self, bytes: u64) {
        count(&self.books.used, |used| used + bytes);
        count(&self.books.areas, |areas| areas + 1);
    }

    /// Counts one area less.
    fn shrunk(&self, bytes: u64) {
        count(&self.books.used, |used| used - bytes);
        count(&self.books.areas, |areas| areas - 1);
    }

    /// Lets an unmapped area wait. Returns the number of waiting bytes of the zone.
    pub(crate) fn put<M: Machine>(&self, tlb_grace: &TlbGrace<M>, area: Ours) -> u64 {
        let mut held = self.lock(tlb_grace.machine());
        // Under the lock, so that the queue stays in order.
        area.wait(tlb_grace.target());
        let last = held.queue.last();
        debug_assert!(last.is_none_or(|last| last.target() <= area.target()), "out of order");
        held.queue.push(area);
        count(&self.books.waiting, |waiting| waiting + area.len());
        if held.queue.len() > QUEUE {
            self.take_back(&mut held, tlb_grace.done(), 2);
        }
        self.waiting()
    }

    /// Takes back areas whose period has ended, oldest first: keeps them, or removes them from the
    /// tree. Returns how many.
    fn take_back(&self, held: &mut Held, done: u64, most: usize) -> usize {
        let Held { token, queue, kept } = held;
        let mut removal = Removal::new(&self.tree, token);
        let mut back = 0;
        while back < most
            && let Some(area) = queue.first().filter(|area| area.target() <= done)
        {
            let bytes = area.len();
            let room = self.kept() + bytes <= self.range.len() / KEPT_PART;
            let kept = kept.get_mut(pages(bytes)).filter(|kept| room && kept.len() < KEPT);
            queue.pop();
            if let Some(kept) = kept {
                area.set(AreaState::Ready);
                kept.push(area);
                count(&self.books.kept, |kept| kept + bytes);
            } else if !removal.remove(area) {
                queue.push_first(area);
                break;
            }
            count(&self.books.waiting, |waiting| waiting - bytes);
            self.shrunk(bytes);
            back += 1;
        }
        back
    }

    /// Removes kept areas from the tree. Returns how many.
    fn drop_kept(&self, held: &mut Held, most: usize) -> usize {
        let Held { token, kept, .. } = held;
        let mut removal = Removal::new(&self.tree, token);
        let mut dropped = 0;
        for kept in kept {
            while dropped < most
                && let Some(area) = kept.pop()
            {
                let bytes = area.len();
                if !removal.remove(area) {
                    kept.push_first(area);
                    return dropped;
                }
                count(&self.books.kept, |kept| kept - bytes);
                dropped += 1;
            }
        }
        dropped
    }

    /// Removes an area from the tree of which no CPU holds a translation. Fails, and returns
    /// `false`, if the heap has no memory.
    pub(crate) fn drop_now<M: Machine>(&self, machine: &M, area: Ours) -> bool {
        let mut held = self.lock(machine);
        let bytes = area.len();
        let gone = Removal::new(&self.tree, &mut held.token).remove(area);
        if gone {
            self.shrunk(bytes);
        }
        gone
    }

    /// Takes back all areas whose period has ended, in several critical sections. Without `keep`,
    /// also removes all kept areas from the tree.
    pub(crate) fn purge<M: Machine>(&self, tlb_grace: &TlbGrace<M>, keep: bool) {
        loop {
            let mut held = self.lock(tlb_grace.machine());
            let mut back = self.take_back(&mut held, tlb_grace.done(), BATCH);
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

    /// Splits an area that the caller owns: `front` becomes the part below `border`, `rest` the
    /// part from there on. On an error nothing has changed.
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
        let middle = border.get() as Index;
        let end = (start.get() + (len - 1)) as Index;
        writer.preallocate_writes(2).map_err(refused)?;
        // SAFETY: the records are new, and in the tree when this returns.
        let ours = unsafe { (Ours::of(&front), Ours::of(&rest)) };
        writer.store_range(middle..=end, rest).map_err(|no| refused(no.error))?;
        writer
            .store_range(start.get() as Index..=middle - 1, front)
            .map_err(|no| refused(no.error))?;
        let first = border.get() - start.get();
        ours.0.place(start, first);
        ours.1.place(border, len - first);
        count(&self.books.areas, |areas| areas + 1);
        Ok(ours)
    }

    /// The largest free range in bytes; only a hint while a writer runs.
    pub(crate) fn largest_gap(&self) -> u64 {
        self.tree.largest_gap(&G::pin()) as u64
    }
}

/// Removes areas from the tree with one writer, which is opened for the first of them. So nodes
/// and areas that leave the tree are retired together.
struct Removal<'z, G: Concurrent> {
    tree: &'z Tree<G>,
    token: Option<&'z mut WriteToken>,
    writer: Option<Writer<'z, Record, G, Global>>,
}

impl<'z, G: Concurrent> Removal<'z, G> {
    fn new(tree: &'z Tree<G>, token: &'z mut WriteToken) -> Self {
        Removal { tree, token: Some(token), writer: None }
    }

    /// The caller must not use the area afterwards. Fails, and returns `false`, if the heap has no
    /// memory.
    fn remove(&mut self, area: Ours) -> bool {
        if let Some(token) = self.token.take() {
            self.writer = self.tree.writer(token).ok();
        }
        let Some(writer) = &mut self.writer else { return false };
        matches!(writer.erase(area.start().get() as Index), Ok(Some(_)))
    }
}

/// The number of pages of so many bytes.
fn pages(bytes: u64) -> usize {
    (bytes / PageSize::Size4K.bytes()) as usize
}

/// Maps an error of a tree write. Other errors than a lack of memory cannot occur.
fn refused(error: maple::Error) -> Error {
    debug_assert_eq!(error, maple::Error::OutOfMemory);
    Error::OutOfMemory
}

impl<G: Concurrent> core::fmt::Debug for Zone<G> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Zone").field("range", &self.range).field("used", &self.used()).finish()
    }
}
