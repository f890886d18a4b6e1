//! A frame source: a buddy allocator for each NUMA node, behind a cache for each CPU.
//!
//! # How it works
//! Single frames of a CPU's own node come from its cache, a stack of [`CACHE_FRAMES`] numbers: the
//! frame that was freed last is warm and is used first. An empty cache takes [`CACHE_BATCH`] frames
//! from the node's buddy allocator at once, and a full one gives as many back (I8). Larger blocks,
//! and frames of other nodes, come from the buddy allocator of their node. A CPU whose node has no
//! memory uses the next node that has.
//!
//! Before an allocation fails, the slow path empties the caches of all CPUs, and keeps them empty
//! until it has searched all nodes again. So no free frame is hidden in a cache, even if frames
//! move between CPUs meanwhile.
//!
//! # Correctness
//! A frame number is in one place: in an allocator, in a cache, or owned by the code that allocated
//! it. It leaves an allocator or a cache under that structure's lock. It comes back only by
//! [`recycle`](Frames::recycle), after one atomic instruction has changed the frame's reference
//! count from one to zero. (A double free finds zero, which is an error.) Locks are taken with
//! interrupts disabled, a cache's before a node's, never two of a kind. No holder waits for a CPU.
//!
//! # Memory
//! [`Frames::try_new`] and [`Frames::add`] allocate 16 bytes and two bits for each frame, and fail
//! if there is no memory. Allocating and freeing frames needs no heap, so the heap may take its own
//! memory from this source.

mod accounts;
mod buddy;
mod cache;
mod error;
#[cfg(loom)]
mod model;
mod node;

pub use accounts::{Account, Accounts, MAX_ACCOUNTS};
pub use error::FramesError;
#[cfg(loom)]
pub use model::ModelFrames;

use crate::source::{FrameError, MAX_NODES, NodeId, Place};
use crate::{CpuId, Cpus, Frame, FrameInfo, FrameRange, Irqs, Owner, PerCpu};
use alloc::boxed::Box;
use alloc::collections::TryReserveError;
use alloc::vec::Vec;
use buddy::Buddy;
use cache::Cache;
use core::fmt;
use core::sync::atomic::Ordering;
use crossbeam_utils::CachePadded;
use node::Node;

/// The largest order: 2^18 frames, a page of 1 GiB.
pub const MAX_ORDER: u8 = 18;
/// The number of frames that a CPU's cache can hold.
pub const CACHE_FRAMES: usize = 64;
/// The number of frames that are moved to or from a cache at once.
pub const CACHE_BATCH: usize = CACHE_FRAMES / 2;

/// The limit of searches with the caches closed: a frame may be freed on another node meanwhile.
const TURNS: usize = 4;

pub(crate) const NO_NODE: NodeId = NodeId(u8::MAX);

/// A frame source, on which a host builds its [`FrameSource`](crate::FrameSource).
///
/// It is part of its machine, so it does not store one. Methods that need the current CPU take the
/// machine as an argument. Any machine is correct, since locks protect everything.
///
/// ```
/// use machine::{CpuId, CpuSet, Cpus, Frame, FrameRange, Frames, Irqs, NodeId, Place};
///
/// /// One CPU without interrupts.
/// struct Host;
/// // SAFETY: there is one CPU.
/// unsafe impl Cpus for Host {
///     fn count(&self) -> usize { 1 }
///     fn current(&self) -> CpuId { CpuId::default() }
///     fn online(&self) -> CpuSet { CpuSet::first(1) }
/// }
/// // SAFETY: nothing interrupts it.
/// unsafe impl Irqs for Host {
///     fn irq_enter(&self) {}
///     unsafe fn irq_leave(&self) {}
///     fn irqs_enabled(&self) -> bool { false }
/// }
///
/// # fn example() -> Option<()> {
/// let span = FrameRange::new(Frame::new(0x100)?, 64)?;
/// let mut frames = Frames::try_new(span, 1).ok()?;
/// // SAFETY: no code uses the memory in this example.
/// unsafe { frames.add(span, NodeId(0)) }.ok()?;
/// let block = frames.alloc(&Host, 2, Place::Local).ok()?;
/// assert_eq!(block.number() % 4, 0);
/// assert_eq!(frames.free_frames(), 60);
/// assert!(frames.alloc(&Host, 6, Place::Local).is_err());
/// // SAFETY: as above.
/// unsafe { frames.free(&Host, block) }.ok()?;
/// # assert_eq!(frames.free_frames(), 64);
/// # Some(())
/// # }
/// # assert!(example().is_some());
/// ```
///
/// Allocating or freeing one frame of this CPU's node costs a section with interrupts disabled, one
/// uncontended lock, and accesses to two or three cache lines of this CPU and to the frame's state.
/// It allocates no memory.
pub struct Frames {
    span: FrameRange,
    infos: Box<[FrameInfo]>,
    nodes: [CachePadded<Node>; MAX_NODES],
    node_count: usize,
    caches: PerCpu<Cache>,
    accounts: Accounts,
}

impl Frames {
    /// A source without frames, with states for the frames of `span` (16 bytes each) and caches for
    /// this many CPUs, all on node 0. Allocates.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn try_new(span: FrameRange, cpus: usize) -> Result<Self, TryReserveError> {
        let mut infos = Vec::new();
        infos.try_reserve_exact(usize::try_from(span.len()).unwrap_or(usize::MAX))?;
        infos.extend(span.iter().map(|_| {
            let info = FrameInfo::new();
            info.set_node(NO_NODE);
            info
        }));
        Ok(Frames {
            span,
            infos: infos.into_boxed_slice(),
            nodes: Default::default(),
            node_count: 1,
            caches: PerCpu::try_new(cpus, |_| Cache::new(NodeId(0)))?,
            accounts: Accounts::try_new(cpus)?,
        })
    }

    /// Adds free memory to a node. No block extends from one added range into another, so add
    /// contiguous memory in one call. Allocates two bits for each frame.
    ///
    /// # Errors
    /// [`FramesError`].
    ///
    /// # Safety
    /// There is memory behind the frames in the machine's [`Memory`](crate::Memory), and no code
    /// uses it.
    pub unsafe fn add(&mut self, range: FrameRange, node: NodeId) -> Result<(), FramesError> {
        if usize::from(node.0) >= MAX_NODES {
            return Err(FramesError::NoSuchNode(node));
        }
        if !self.span.covers(&range) {
            return Err(FramesError::BeyondSpan(range));
        }
        let first = (range.start().number() - self.span.start().number()) as usize;
        let infos = &self.infos[first..first + range.len() as usize];
        if let Some(at) = infos.iter().position(|info| info.node() != NO_NODE) {
            return Err(FramesError::Twice(Frame::containing(self.infos_start(first + at))));
        }
        let buddy = Buddy::try_new(range.start().number(), range.len());
        let buddy = buddy.map_err(|_| FramesError::OutOfMemory)?;
        self.nodes[usize::from(node.0)].add(buddy).map_err(|_| FramesError::OutOfMemory)?;
        infos.iter().for_each(|info| info.set_node(node));
        self.node_count = self.node_count.max(usize::from(node.0) + 1);
        self.settle();
        Ok(())
    }

    /// Chooses each CPU's near node again, after the set of nodes with memory has changed.
    fn settle(&mut self) {
        // The caches hold frames of the old near nodes.
        self.close();
        self.open();
        let (nodes, count) = (&mut self.nodes, self.node_count);
        for cache in self.caches.iter_mut() {
            let has_memory = |node: &usize| !nodes[*node].is_empty();
            let near = (0..count).map(|i| (usize::from(cache.home.0) + i) % count).find(has_memory);
            cache.near = near.map_or(cache.home, |node| NodeId(node as u8));
        }
    }

    fn infos_start(&self, index: usize) -> crate::PhysAddr {
        crate::PhysAddr::new((self.span.start().number() + index as u64) << 12)
    }

    /// Sets a CPU's node. Without this call it is node 0. If the node has no memory, the CPU uses
    /// the next one that has. Call it before any frame is allocated.
    ///
    /// # Errors
    /// [`FramesError::NoSuchNode`], [`FramesError::NoSuchCpu`].
    pub fn set_home(&mut self, cpu: CpuId, node: NodeId) -> Result<(), FramesError> {
        if usize::from(node.0) >= MAX_NODES {
            return Err(FramesError::NoSuchNode(node));
        }
        let cache = self.caches.iter_mut().nth(cpu.index()).ok_or(FramesError::NoSuchCpu(cpu))?;
        cache.home = node;
        self.settle();
        Ok(())
    }

    /// As [`FrameSource::alloc`](crate::FrameSource::alloc).
    ///
    /// # Errors
    /// [`FrameError::OutOfFrames`], [`FrameError::TooLarge`], [`FrameError::NoSuchNode`].
    pub fn alloc(
        &self,
        machine: &(impl Cpus + Irqs),
        order: u8,
        place: Place,
    ) -> Result<Frame, FrameError> {
        if order > MAX_ORDER {
            return Err(FrameError::TooLarge { order });
        }
        if let Place::Prefer(node) | Place::Only(node) = place
            && usize::from(node.0) >= self.node_count
        {
            return Err(FrameError::NoSuchNode(node));
        }
        let _section = machine.irqs_off();
        let cpu = machine.current();
        let found = self.find(cpu, order, place).or_else(|| self.find_all(cpu, order, place));
        let number = found.ok_or(FrameError::OutOfFrames { order })?;
        let frame = Frame::new(number).ok_or(FrameError::OutOfFrames { order })?;
        // The allocators hold only frames of this source, so this does not fail.
        self.info(frame).ok_or(FrameError::NotOurs(frame))?.allocate(order);
        Ok(frame)
    }

    fn find(&self, cpu: CpuId, order: u8, place: Place) -> Option<u64> {
        let near = self.near(cpu);
        let node = match place {
            Place::Local => near,
            Place::Prefer(node) | Place::Only(node) => node,
        };
        if order == 0 && node == near {
            if let Some(number) = self.pop_cached(cpu) {
                return Some(number);
            }
        } else if let Some(number) = self.nodes[usize::from(node.0)].lock().take(order) {
            return Some(number);
        }
        if matches!(place, Place::Only(_)) {
            return None;
        }
        // The other nodes, beginning after this one, so that not all CPUs turn to the same node.
        let first = usize::from(node.0);
        (1..=self.node_count)
            .map(|i| (first + i) % self.node_count)
            .filter(|other| *other != first)
            .find_map(|other| self.nodes[other].lock().take(order))
    }

    /// The slow path of `find`: makes every free frame findable. Takes the locks of each CPU's
    /// cache twice.
    #[cold]
    fn find_all(&self, cpu: CpuId, order: u8, place: Place) -> Option<u64> {
        self.close();
        let found = (0..TURNS).find_map(|turn| {
            // Nodes are searched one after the other. A frame that is freed on a node that was
            // already searched is found in the next turn.
            let more = turn == 0 || self.nodes.iter().any(|node| node.free() >> order != 0);
            more.then(|| self.find(cpu, order, place)).flatten()
        });
        self.open();
        found
    }

    fn near(&self, cpu: CpuId) -> NodeId {
        self.caches.get(cpu).map_or(NodeId(0), |cache| cache.near)
    }

    fn pop_cached(&self, cpu: CpuId) -> Option<u64> {
        let cache = self.caches.get(cpu)?;
        let mut stack = cache.lock();
        if stack.len() == 0 {
            let mut node = self.nodes[usize::from(cache.near.0)].lock();
            if stack.is_closed() {
                return node.take(0);
            }
            while let Some(order) = (CACHE_BATCH - stack.len()).checked_ilog2()
                && let Some((number, order)) = node.take_run(order as u8)
            {
                (number..number + (1 << order)).for_each(|number| stack.push(number));
            }
        }
        stack.pop()
    }

    /// Empties the caches of all CPUs and keeps them empty until `open`. A CPU that takes a cache's
    /// lock after this finds the cache closed. Slow path only, with interrupts disabled.
    fn close(&self) {
        for cache in self.caches.iter() {
            let mut stack = cache.lock();
            stack.close();
            let mut node = self.nodes[usize::from(cache.near.0)].lock();
            while let Some(number) = stack.pop() {
                node.give(number, 0);
            }
        }
    }

    /// Undoes `close`.
    fn open(&self) {
        self.caches.iter().for_each(|cache| cache.lock().open());
    }

    /// As [`FrameSource::free`](crate::FrameSource::free).
    ///
    /// # Errors
    /// [`FrameError::NotOurs`], [`FrameError::NotAllocated`], [`FrameError::InUse`].
    ///
    /// # Safety
    /// No code uses the block's memory from now on.
    pub unsafe fn free(
        &self,
        machine: &(impl Cpus + Irqs),
        frame: Frame,
    ) -> Result<(), FrameError> {
        let info = self.known(frame)?;
        match info.put_only() {
            Ok(()) => {
                self.recycle(machine, frame, info);
                Ok(())
            }
            Err(0) => Err(FrameError::NotAllocated(frame)),
            Err(refs) => Err(FrameError::InUse { frame, refs, pins: info.pins() }),
        }
    }

    /// As [`FrameSource::release`](crate::FrameSource::release).
    ///
    /// # Errors
    /// [`FrameError::NotOurs`], [`FrameError::NotAllocated`].
    ///
    /// # Safety
    /// The caller holds the reference, and does not use the block's memory through it from now on.
    pub unsafe fn release(
        &self,
        machine: &(impl Cpus + Irqs),
        frame: Frame,
    ) -> Result<bool, FrameError> {
        let info = self.known(frame)?;
        let last = info.put().ok_or(FrameError::NotAllocated(frame))?;
        if last {
            self.recycle(machine, frame, info);
        }
        Ok(last)
    }

    /// As [`FrameSource::unpin`](crate::FrameSource::unpin).
    ///
    /// # Errors
    /// [`FrameError::NotOurs`], [`FrameError::NotAllocated`].
    ///
    /// # Safety
    /// The caller holds the pins, and does not use the block's memory through them from now on.
    pub unsafe fn unpin(
        &self,
        machine: &(impl Cpus + Irqs),
        frame: Frame,
        pins: u32,
    ) -> Result<bool, FrameError> {
        let info = self.known(frame)?;
        let last = info.unpin(pins).ok_or(FrameError::NotAllocated(frame))?;
        if last {
            self.recycle(machine, frame, info);
        }
        Ok(last)
    }

    fn known(&self, frame: Frame) -> Result<&FrameInfo, FrameError> {
        self.info(frame).ok_or(FrameError::NotOurs(frame))
    }

    /// Takes back a block whose last reference has just been dropped.
    fn recycle(&self, machine: &(impl Cpus + Irqs), frame: Frame, info: &FrameInfo) {
        let (order, node) = (info.order(), info.node());
        let _section = machine.irqs_off();
        self.accounts.note_freed(machine.current(), info);
        // SAFETY: its last reference is gone, so this source owns the block.
        unsafe { info.set_owner(Owner::Free) };
        info.set_order(0);
        if order == 0
            && let Some(cache) = self.caches.get(machine.current())
            && cache.near == node
        {
            let mut stack = cache.lock();
            if !stack.is_closed() {
                if stack.len() == CACHE_FRAMES {
                    let mut node = self.nodes[usize::from(node.0)].lock();
                    node.give_all(&mut stack.shift());
                }
                stack.push(frame.number());
                return;
            }
        }
        self.nodes[usize::from(node.0)].lock().give(frame.number(), order);
    }

    /// As [`FrameSource::split`](crate::FrameSource::split).
    ///
    /// # Errors
    /// [`FrameError::NotOurs`], [`FrameError::NotAllocated`], [`FrameError::InUse`],
    /// [`FrameError::Table`].
    ///
    /// # Safety
    /// As there: the caller owns the block, and no other code relies on its being one block.
    pub unsafe fn split(&self, frame: Frame) -> Result<(), FrameError> {
        let info = self.known(frame)?;
        let (order, owner) = (info.order(), info.owner());
        // SAFETY: the caller owns the block. Relaxed: its own value.
        let word = unsafe { info.word() }.load(Ordering::Relaxed);
        if matches!(owner, Owner::Table(_) | Owner::Quick(_)) {
            return Err(FrameError::Table(frame));
        }
        // While the block has no reference, no other CPU can take one.
        match info.put_only() {
            Ok(()) => {}
            Err(0) => return Err(FrameError::NotAllocated(frame)),
            Err(refs) => return Err(FrameError::InUse { frame, refs, pins: info.pins() }),
        }
        let first = (frame.number() - self.span.start().number()) as usize;
        for info in &self.infos[first..first + (1 << order)] {
            info.allocate(0);
            // SAFETY: the caller owned the block, and used all its frames for this. Relaxed: the
            // owner is stored with Release.
            unsafe { info.word() }.store(word, Ordering::Relaxed);
            // SAFETY: as above.
            unsafe { info.set_owner(owner) };
        }
        Ok(())
    }

    /// As [`FrameSource::info`](crate::FrameSource::info).
    #[inline]
    pub fn info(&self, frame: Frame) -> Option<&FrameInfo> {
        // For a frame below the span, the difference wraps to a number far beyond the span's end.
        let index = frame.number().wrapping_sub(self.span.start().number());
        self.infos.get(usize::try_from(index).ok()?)
    }

    /// As [`FrameSource::accounts`](crate::FrameSource::accounts).
    pub fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// The frames that have states, with or without memory behind them.
    pub fn span(&self) -> FrameRange {
        self.span
    }

    /// As [`FrameSource::nodes`](crate::FrameSource::nodes).
    pub fn nodes(&self) -> usize {
        self.node_count
    }

    /// As [`FrameSource::local_node`](crate::FrameSource::local_node).
    pub fn local_node(&self, machine: &(impl Cpus + Irqs)) -> NodeId {
        let _section = machine.irqs_off();
        self.near(machine.current())
    }

    /// As [`FrameSource::free_frames`](crate::FrameSource::free_frames). One load for each CPU and
    /// node, and no lock.
    pub fn free_frames(&self) -> usize {
        let cached: usize = self.caches.iter().map(Cache::len).sum();
        cached + self.nodes.iter().map(|node| node.free()).sum::<usize>()
    }
}

impl fmt::Debug for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frames")
            .field("span", &self.span)
            .field("nodes", &self.node_count)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
