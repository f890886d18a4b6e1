//! The kernel's areas as Linux has them today, since 6.9: nodes, each with its own locks, and pools
//! of addresses.
//!
//! Written from its description. There are as many nodes as CPUs. An address belongs to a node by
//! the zone of fixed size that it lies in: that node has the area in its tree of busy ones, and
//! later in its list of those that are unmapped and not flushed yet. So CPUs that make and free
//! areas meet at a lock by chance only. Addresses come from the pool of the CPU's own node, which
//! has lists by size, up to a number of pages; from the tree of all free ranges, behind a lock of
//! its own, where a pool has none. Who frees an area clears its entries and flushes nothing. When
//! all that wait are more than a bound, which grows with the logarithm of the number of CPUs,
//! whoever comes by takes the lists of all nodes, has *every* CPU drop everything, once, and gives
//! what was in them back: to the pool that it came from, or to the tree of free ranges (I4). A pool
//! gives a quarter of what it has to that tree each time, so that none keeps much.
//!
//! Maps for a short time come from blocks of each CPU ([`blocks`]), as Linux's `vm_map_ram` does.
//!
//! It is at its best: locks are on lines of their own, free ranges are found by their size in a
//! balanced tree, and purging is done by one CPU while the others go on.

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
use machine::{Access, CpuSet, Flush, Frame, Machine, VirtAddr, VirtRange, lock};
use paging::{PageTables, X86_64L4};
use spin::mutex::SpinMutex;

const PAGE: u64 = 4096;
/// Behind each area but a block.
const GUARD: usize = 1;
/// Addresses of one zone: the next belongs to the next node.
const ZONE: u64 = 16 * PAGE;
/// Nodes at most.
const NODES: usize = 128;
/// Pages of an area, with its guard, that a pool takes.
const POOLED: usize = 256;
/// Pages that wait for a flush, for each bit of the number of CPUs.
const LAZY: u64 = (32 << 20) / PAGE;
/// The addresses that are used: plenty for any experiment, and the blocks in them are an array.
const SPACE: u64 = 64 << 30;

/// On a pair of lines of its own: processors fetch two at once.
#[derive(Default)]
#[repr(align(128))]
struct Padded<T>(SpinMutex<T>);

/// An area that is there.
struct Area {
    /// With the guard.
    pages: usize,
    guard: usize,
    frames: Vec<Frame>,
    /// The node whose pool it came from, or would have.
    home: usize,
}

/// One that waits for a flush.
struct Gone {
    start: u64,
    pages: usize,
    home: usize,
}

#[derive(Default)]
struct Node {
    busy: Padded<BTreeMap<u64, Area>>,
    lazy: Padded<Vec<Gone>>,
    /// Starts of free ranges, by their pages.
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
    /// Of whoever flushes.
    purging: Padded<()>,
    blocks: Blocks,
}

impl<M: Machine, G: Concurrent> NodeAreas<M, G> {
    /// Areas in this range, which nobody else uses.
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

    /// Pages that may wait: then all are flushed.
    fn bound(&self) -> u64 {
        self.lazy * u64::from(self.machine().count().max(1).ilog2() + 1)
    }

    /// Makes an area of these frames, some of which it may own.
    fn add(&self, frames: &[Frame], own: Vec<Frame>) -> Result<VirtAddr, Error> {
        let at = VirtAddr::new(self.take(frames.len() + GUARD, PAGE, own)?);
        let mapped = self.map_at(at, frames);
        if mapped.is_err() {
            self.remove(at)?;
        }
        mapped.map(|()| at)
    }

    /// Addresses for so many pages, guard included, with an area of these frames: from this CPU's
    /// pool, or from all that are free.
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
        // SAFETY: the range is ours since just now, and was flushed since it was last mapped; the
        // frames are the caller's.
        unsafe { map(&self.tables, at, frames) }
    }

    /// Clears the entries of what is mapped here, and leaves the flush.
    fn clear(&self, at: VirtAddr, pages: usize) -> Result<(), Error> {
        // SAFETY: the caller gives the range up; it comes back when all CPUs have flushed, and its
        // frames are the experiment's, which nobody uses through it any more.
        unsafe { self.tables.unmap_lazily(range_of(at, pages)?, |_, _| ()) }?;
        Ok(())
    }

    /// Takes an area out of its node's tree.
    fn unlink(&self, at: VirtAddr) -> Option<Area> {
        lock(self.machine(), &self.node_of(at.get()).busy.0).remove(&at.get())
    }

    /// Unmaps an area; returns its frames.
    fn remove(&self, at: VirtAddr) -> Result<Vec<Frame>, Error> {
        let area = self.unlink(at).ok_or(Error::NoArea(at))?;
        self.clear(at, area.pages - area.guard)?;
        self.retire(at, &area);
        Ok(area.frames)
    }

    /// What was an area waits for a flush; if too much does, it is made.
    fn retire(&self, at: VirtAddr, area: &Area) {
        let (pages, home) = (area.pages, area.home);
        let gone = Gone { start: at.get(), pages, home };
        lock(self.machine(), &self.node_of(at.get()).lazy.0).push(gone);
        // Relaxed: a count, which is to be about right.
        let before = self.waiting.fetch_add(pages as u64, Ordering::Relaxed);
        if before + pages as u64 > self.bound()
            && let Some(_purging) = self.purging.0.try_lock()
        {
            self.purge_nodes(4);
        }
    }

    /// Gives back all that waits, and all that pools and blocks have.
    fn purge_all(&self) {
        self.purge_blocks();
        let _purging = lock(self.machine(), &self.purging.0);
        self.purge_nodes(1);
    }

    /// Flushes, and gives back what had waited before; and one part of so many of what is in the
    /// pools. With `purging` held.
    fn purge_nodes(&self, part: usize) {
        let machine = self.machine();
        let lists =
            self.nodes.iter().map(|node| core::mem::take(&mut *lock(machine, &node.lazy.0)));
        let lists: Vec<Vec<Gone>> = lists.collect();
        let pages: usize = lists.iter().flatten().map(|gone| gone.pages).sum();
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
        for gone in lists.into_iter().flatten() {
            if gone.pages <= POOLED && part != 1 {
                lock(machine, &self.nodes[gone.home].pools.0)[gone.pages].push(gone.start);
            } else {
                lock(machine, &self.free.0).give(gone.start, gone.pages as u64 * PAGE);
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
        // SAFETY: allocated with the area, whose entries are cleared. A stale translation may lead
        // there until the flush, as in Linux; whoever freed the area uses it no more.
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
                self.machine().step(Access::Shared);
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
