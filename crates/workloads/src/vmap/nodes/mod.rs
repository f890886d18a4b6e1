//! A baseline: kernel areas as in Linux since 6.9, with nodes that have their own locks, and pools
//! of addresses.
//!
//! It is written from a description, not from Linux's source. There are as many nodes as CPUs. An
//! address lies in a zone, a range of fixed size, and belongs to the node of its zone. That node
//! has the area in its tree of busy areas, and later in its list of areas that are unmapped but not
//! flushed. So CPUs that make and free areas meet at a lock by chance only.
//!
//! Addresses come from the pool of the CPU's own node, which has lists by size up to a limit. If
//! the pool has none, they come from the tree of all free ranges, which has a lock of its own.
//!
//! Freeing an area clears its entries and flushes nothing. The pages that wait for a flush have a
//! bound, which grows with the logarithm of the number of CPUs. The CPU that exceeds it takes the
//! lists of all nodes, makes *every* CPU flush everything, once, and gives the ranges back to the
//! pools they came from, or to the tree of free ranges (I4). At each such purge, a pool gives a
//! quarter of its ranges to that tree, so that no pool keeps much.
//!
//! Short maps come from per-CPU [`blocks`], as in Linux's `vm_map_ram`.
//!
//! The implementation is as good as the design allows. Locks are on lines of their own, free ranges
//! are found by size in a balanced tree, and one CPU purges while the others go on.

mod blocks;
mod free;
#[cfg(test)]
mod tests;

use super::Areas;
use super::frames::{alloc, map, range_of, release};
use crate::error::Error;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use blocks::Blocks;
use core::sync::atomic::{AtomicU64, Ordering};
use free::Free;
use grace::Concurrent;
use machine::{CpuSet, Flush, Frame, Machine, SharedAccess, VirtAddr, VirtRange, lock};
use paging::{PageTables, X86_64L4};
use spin::mutex::SpinMutex;

const PAGE: u64 = 4096;
/// Guard pages behind each area except a block.
const GUARD: usize = 1;
/// Bytes of a zone. The next zone belongs to the next node.
const ZONE: u64 = 16 * PAGE;
/// The largest number of nodes.
const NODES: usize = 128;
/// The largest area that a pool takes, in pages with its guard.
const POOLED: usize = 256;
/// Pages that may wait for a flush, for each bit of the number of CPUs.
const LAZY: u64 = (32 << 20) / PAGE;
/// The addresses that are used at most: enough for every experiment, and few enough for an array of
/// blocks.
const SPACE: u64 = 64 << 30;

/// On a pair of lines of its own, because processors fetch two lines at once.
#[derive(Default)]
#[repr(align(128))]
struct Padded<T>(SpinMutex<T>);

/// A busy area.
struct Area {
    /// Its pages with the guard.
    pages: usize,
    guard: usize,
    frames: Vec<Frame>,
    /// The node whose pool takes its addresses.
    home: usize,
}

/// An area that waits for a flush.
struct FreedRange {
    start: u64,
    pages: usize,
    home: usize,
}

#[derive(Default)]
struct Node {
    busy: Padded<BTreeMap<u64, Area>>,
    lazy: Padded<Vec<FreedRange>>,
    /// Starts of free ranges, by their number of pages.
    pools: Padded<Vec<Vec<u64>>>,
}

/// Areas in a range of the kernel's half.
pub(crate) struct NodeAreas<M: Machine, G: Concurrent> {
    tables: Arc<PageTables<M, X86_64L4, G>>,
    range: VirtRange,
    nodes: Box<[Node]>,
    free: Padded<Free>,
    /// Pages that may wait for a flush, for each bit of the number of CPUs.
    lazy: u64,
    /// Pages that wait for a flush.
    waiting: AtomicU64,
    /// Held by the CPU that purges.
    purging: Padded<()>,
    blocks: Blocks,
}

impl<M: Machine, G: Concurrent> NodeAreas<M, G> {
    /// Areas in this range, which nothing else uses.
    pub(crate) fn new(tables: Arc<PageTables<M, X86_64L4, G>>, range: VirtRange) -> Self {
        let cpus = tables.machine().count();
        let range = VirtRange::new(range.start(), range.len().min(SPACE)).unwrap_or(range);
        let node = || Node {
            pools: Padded(SpinMutex::new((0..=POOLED).map(|_| Vec::new()).collect())),
            ..Node::default()
        };
        NodeAreas {
            range,
            nodes: (0..cpus.clamp(1, NODES)).map(|_| node()).collect(),
            free: Padded(SpinMutex::new(Free::new(range))),
            lazy: LAZY,
            waiting: AtomicU64::new(0),
            purging: Padded::default(),
            blocks: Blocks::new(range, cpus),
            tables,
        }
    }

    fn machine(&self) -> &M {
        self.tables.machine()
    }

    fn node_of(&self, at: u64) -> &Node {
        &self.nodes[(at / ZONE) as usize % self.nodes.len()]
    }

    /// Pages that may wait for a flush.
    fn bound(&self) -> u64 {
        self.lazy * u64::from(self.machine().count().max(1).ilog2() + 1)
    }

    /// Makes an area of these frames. `own` are those that the area frees.
    fn add(&self, frames: &[Frame], own: Vec<Frame>) -> Result<VirtAddr, Error> {
        let at = VirtAddr::new(self.take(frames.len() + GUARD, PAGE, own)?);
        let mapped = self.map_at(at, frames);
        if mapped.is_err() {
            self.remove(at)?;
        }
        mapped.map(|()| at)
    }

    /// Takes addresses for so many pages with the guard, from this CPU's pool or from all free
    /// ranges, and inserts an area that owns these frames.
    fn take(&self, pages: usize, align: u64, frames: Vec<Frame>) -> Result<u64, Error> {
        let machine = self.machine();
        let home = machine.current().index() % self.nodes.len();
        let pooled = (pages <= POOLED && align == PAGE)
            .then(|| lock(machine, &self.nodes[home].pools.0)[pages].pop())
            .flatten();
        let take = || lock(machine, &self.free.0).take(pages as u64 * PAGE, align);
        let found = pooled.or_else(take).or_else(|| {
            self.purge_all();
            take()
        });
        let at = found.ok_or(Error::Full { pages })?;
        let guard = if align == PAGE { GUARD } else { 0 };
        let area = Area { pages, guard, frames, home };
        lock(machine, &self.node_of(at).busy.0).insert(at, area);
        Ok(at)
    }

    fn map_at(&self, at: VirtAddr, frames: &[Frame]) -> Result<(), Error> {
        // SAFETY: the range was just taken and is ours, and was flushed since it was last mapped;
        // the frames are the caller's.
        unsafe { map(&self.tables, at, frames) }
    }

    /// Clears the entries of mapped pages, and defers the flush.
    fn clear(&self, at: VirtAddr, pages: usize) -> Result<(), Error> {
        // SAFETY: the caller gives the range up, and it is reused only after all CPUs have flushed.
        // The frames are the experiment's, and nothing accesses them through the range any more.
        unsafe { self.tables.unmap_lazily(range_of(at, pages)?, |_, _| ()) }?;
        Ok(())
    }

    /// Removes an area from its node's tree.
    fn unlink(&self, at: VirtAddr) -> Option<Area> {
        lock(self.machine(), &self.node_of(at.get()).busy.0).remove(&at.get())
    }

    /// Unmaps an area and returns its frames.
    fn remove(&self, at: VirtAddr) -> Result<Vec<Frame>, Error> {
        let area = self.unlink(at).ok_or(Error::NoArea(at))?;
        self.clear(at, area.pages - area.guard)?;
        self.retire(at, &area);
        Ok(area.frames)
    }

    /// Puts a removed area on the list of those that wait for a flush. Purges if too many pages
    /// wait.
    fn retire(&self, at: VirtAddr, area: &Area) {
        let (pages, home) = (area.pages, area.home);
        let freed = FreedRange { start: at.get(), pages, home };
        lock(self.machine(), &self.node_of(at.get()).lazy.0).push(freed);
        // Relaxed: a count that need not be exact.
        let before = self.waiting.fetch_add(pages as u64, Ordering::Relaxed);
        if before + pages as u64 > self.bound()
            && let Some(_purging) = self.purging.0.try_lock()
        {
            self.purge_nodes(4);
        }
    }

    /// Flushes, and frees all ranges that wait, or that pools and blocks have.
    fn purge_all(&self) {
        self.purge_blocks();
        let _purging = lock(self.machine(), &self.purging.0);
        self.purge_nodes(1);
    }

    /// Flushes, and gives back the ranges that waited before. Gives the fraction 1 / `part` of each
    /// pool to the tree of free ranges. The caller holds `purging`.
    fn purge_nodes(&self, part: usize) {
        let machine = self.machine();
        let lists =
            self.nodes.iter().map(|node| core::mem::take(&mut *lock(machine, &node.lazy.0)));
        let lists: Vec<Vec<FreedRange>> = lists.collect();
        let pages: usize = lists.iter().flatten().map(|freed| freed.pages).sum();
        // Relaxed: as above.
        self.waiting.fetch_sub(pages as u64, Ordering::Relaxed);
        for node in &self.nodes {
            let mut pools = lock(machine, &node.pools.0);
            for (pages, pool) in pools.iter_mut().enumerate().filter(|(_, pool)| !pool.is_empty()) {
                let mut free = lock(machine, &self.free.0);
                let keep = pool.len() - pool.len().div_ceil(part);
                pool.drain(keep..).for_each(|at| free.give(at, pages as u64 * PAGE));
            }
        }
        if pages == 0 {
            return;
        }
        machine.flush_on(&CpuSet::first(machine.count()), Flush::All);
        for freed in lists.into_iter().flatten() {
            if freed.pages <= POOLED && part != 1 {
                lock(machine, &self.nodes[freed.home].pools.0)[freed.pages].push(freed.start);
            } else {
                lock(machine, &self.free.0).give(freed.start, freed.pages as u64 * PAGE);
            }
        }
    }
}

impl<M: Machine, G: Concurrent> Areas for NodeAreas<M, G> {
    fn map(&self, frames: &[Frame]) -> Result<VirtAddr, Error> {
        self.vm_map_ram(frames)
    }

    fn unmap(&self, at: VirtAddr, pages: usize) -> Result<(), Error> {
        self.vm_unmap_ram(at, pages)
    }

    fn alloc(&self, pages: usize) -> Result<VirtAddr, Error> {
        alloc(self.machine(), pages, |frames| self.add(frames, frames.to_vec()))
    }

    fn free(&self, at: VirtAddr) -> Result<(), Error> {
        let frames = self.remove(at)?;
        // SAFETY: they were allocated with the area, whose entries are cleared. A stale translation
        // may lead there until the flush, as in Linux, but the caller, which frees the area, uses
        // it no more.
        unsafe { release(self.machine(), &frames) }
    }

    fn keep(&self, frames: &[Frame]) -> Result<VirtAddr, Error> {
        self.add(frames, Vec::new())
    }

    fn give_up(&self, at: VirtAddr) -> Result<(), Error> {
        self.remove(at).map(drop)
    }

    fn list(&self) -> usize {
        let mut count = 0;
        for node in &self.nodes {
            for (at, area) in lock(self.machine(), &node.busy.0).iter() {
                core::hint::black_box((at, area));
                self.machine().step(SharedAccess::Other);
                count += 1;
            }
        }
        count
    }

    fn info(&self) -> (u64, u64) {
        let (free, largest) = lock(self.machine(), &self.free.0).total();
        (self.range.len() - free, largest)
    }

    fn purge(&self) {
        self.purge_all();
    }
}
