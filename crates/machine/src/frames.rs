//! A frame source: a buddy allocator for each node, behind a cache for each CPU.
//!
//! # How it works
//! Single frames of a CPU's own node come from its cache, a stack of [`CACHE_FRAMES`] numbers: what
//! was freed last, and is warm, is used first. An empty cache takes [`CACHE_BATCH`] frames from the
//! node's buddy allocator at once, a full one gives as many back; so the node's lock is taken once
//! for at least so many frames (I8). Larger blocks, and frames of other nodes, go to the buddy
//! allocator of their node. When nothing is left there, the caches of all CPUs are emptied, and
//! stay so until it has been looked again, before an allocation fails: no frame is hidden from
//! those who need it, however they wander about meanwhile.
//!
//! A CPU whose node has no memory is near to the next one that has.
//!
//! # Why it is right
//! A frame number is in one place: in an allocator, in a cache, or with whoever allocated it. It
//! leaves the first two under their lock. It comes back only by [`recycle`](Frames::recycle), and
//! that is called by whoever has just changed the frame's references from one to none: that happens
//! once, by one atomic instruction, however many try (a double free finds none, and is an error).
//! Locks are taken with interrupts off, a cache's before a node's, never two of a kind; within them
//! nothing waits for another CPU.
//!
//! # What it needs
//! The heap, for [`Frames::try_new`] and [`Frames::add`], which fail if there is none: 16 bytes and
//! two bits a frame. After that nothing: frames are taken and given back without it, so the heap
//! may take its own memory from here.

mod buddy;
mod cache;
mod node;

use crate::source::{FrameError, MAX_NODES, NodeId, Place};
use crate::{CpuId, Cpus, Frame, FrameInfo, FrameRange, Irqs, Owner, PerCpu};
use alloc::boxed::Box;
use alloc::collections::TryReserveError;
use alloc::vec::Vec;
use buddy::Buddy;
use cache::Cache;
use core::fmt;
use crossbeam_utils::CachePadded;
use node::Node;

/// The largest order: 2^18 frames, a page of 1 GiB.
pub const MAX_ORDER: u8 = 18;
/// As many frames as a CPU's cache holds.
pub const CACHE_FRAMES: usize = 64;
/// As many frames as go to or from a cache at once.
pub const CACHE_BATCH: usize = CACHE_FRAMES / 2;

/// As often as is looked, with the caches empty, while frames that are free elsewhere wander from
/// node to node.
const TURNS: usize = 4;

pub(crate) const NO_NODE: NodeId = NodeId(u8::MAX);

/// Why a range of frames cannot be added. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FramesError {
    /// Part of it lies beyond what the source was made for.
    BeyondSpan(FrameRange),
    /// The frame has been added before.
    Twice(Frame),
    /// There can be no such node: numbers are below [`MAX_NODES`].
    NoSuchNode(NodeId),
    /// There is no such CPU.
    NoSuchCpu(CpuId),
    /// The heap has no memory for it.
    OutOfMemory,
}

impl fmt::Display for FramesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FramesError::BeyondSpan(range) => {
                write!(f, "frames {range:?} lie beyond what was made ready for")
            }
            FramesError::Twice(frame) => write!(f, "frame {frame} has been added before"),
            FramesError::NoSuchNode(NodeId(node)) => write!(f, "there can be no node {node}"),
            FramesError::NoSuchCpu(cpu) => write!(f, "there is no {cpu}"),
            FramesError::OutOfMemory => f.write_str("no memory to keep account of them"),
        }
    }
}

impl core::error::Error for FramesError {}

/// A frame source for a host to build its [`FrameSource`](crate::FrameSource) on.
///
/// It does not know its machine, as it is part of it: methods that need to know the CPU take the
/// machine as an argument, and any machine will do, since all is under locks.
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
/// // SAFETY: nobody looks at the memory in this example.
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
/// Cost of one frame of this CPU's node, taken or given: an IRQ-off section, one lock that nobody
/// else wants, two or three lines of this CPU's own and the frame's state; no allocation.
pub struct Frames {
    span: FrameRange,
    infos: Box<[FrameInfo]>,
    nodes: [CachePadded<Node>; MAX_NODES],
    node_count: usize,
    caches: PerCpu<Cache>,
}

impl Frames {
    /// A source without any frame, with states for the frames of `span` (16 bytes each), for this
    /// many CPUs, all on node 0. Allocates.
    ///
    /// # Errors
    /// There is no memory for it.
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
        })
    }

    /// Adds free memory of a node. Blocks do not reach from one range that was added into another,
    /// so what belongs together is added together. Allocates two bits a frame.
    ///
    /// # Errors
    /// [`FramesError`].
    ///
    /// # Safety
    /// There is memory behind the frames in the machine's [`Memory`](crate::Memory), and nobody
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

    /// Says anew to which node each CPU is near, once it is known which nodes have memory.
    fn settle(&mut self) {
        // What they have is of the nodes that they were near to.
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

    /// Says which node a CPU is near to; it is node 0 otherwise. If that node has no memory, the
    /// CPU uses the next one that has. Before any frame is allocated.
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
        // A number that is not ours cannot come out of our own allocators.
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
        // The others, the next one first, so that not all CPUs fall upon the same.
        let first = usize::from(node.0);
        (1..=self.node_count)
            .map(|i| (first + i) % self.node_count)
            .filter(|other| *other != first)
            .find_map(|other| self.nodes[other].lock().take(order))
    }

    /// As `find`, with every frame that is free where it can be found: off any fast path, two locks
    /// of each CPU.
    #[cold]
    fn find_all(&self, cpu: CpuId, order: u8, place: Place) -> Option<u64> {
        self.close();
        let found = (0..TURNS).find_map(|turn| {
            // The nodes are looked at one after the other: what was freed in one after it was
            // looked at is found in another turn.
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
            while stack.len() < CACHE_BATCH
                && let Some(number) = node.take(0)
            {
                stack.push(number);
            }
        }
        stack.pop()
    }

    /// Empties the caches of all CPUs, and keeps them empty: whoever takes a cache's lock after
    /// this has closed it finds it closed, until `open`. Off any fast path; interrupts off.
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

    /// Takes `close` back.
    fn open(&self) {
        self.caches.iter().for_each(|cache| cache.lock().open());
    }

    /// As [`FrameSource::free`](crate::FrameSource::free).
    ///
    /// # Errors
    /// [`FrameError::NotOurs`], [`FrameError::NotAllocated`], [`FrameError::InUse`].
    ///
    /// # Safety
    /// Nobody will use the block's memory.
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
    /// The caller holds the reference, and will not use the block's memory by it.
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
    /// The caller holds the pins, and will not use the block's memory by them.
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

    /// Takes back a block whose references have just become none.
    fn recycle(&self, machine: &(impl Cpus + Irqs), frame: Frame, info: &FrameInfo) {
        let (order, node) = (info.order(), info.node());
        // SAFETY: its last reference is gone, so it is ours.
        unsafe { info.set_owner(Owner::Free) };
        info.set_order(0);
        let _section = machine.irqs_off();
        if order == 0
            && let Some(cache) = self.caches.get(machine.current())
            && cache.near == node
        {
            let mut stack = cache.lock();
            if !stack.is_closed() {
                if stack.len() == CACHE_FRAMES {
                    let mut node = self.nodes[usize::from(node.0)].lock();
                    stack.shift().iter().for_each(|number| node.give(*number, 0));
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
    /// As there: the block is the caller's, and nobody else relies on its being one.
    pub unsafe fn split(&self, frame: Frame) -> Result<(), FrameError> {
        let info = self.known(frame)?;
        let (order, owner) = (info.order(), info.owner());
        if matches!(owner, Owner::Table(_) | Owner::Quick(_)) {
            return Err(FrameError::Table(frame));
        }
        // While it has none, nobody can take another.
        match info.put_only() {
            Ok(()) => {}
            Err(0) => return Err(FrameError::NotAllocated(frame)),
            Err(refs) => return Err(FrameError::InUse { frame, refs, pins: info.pins() }),
        }
        let first = (frame.number() - self.span.start().number()) as usize;
        for info in &self.infos[first..first + (1 << order)] {
            info.allocate(0);
            // SAFETY: the block was the caller's, as all of it was used for this.
            unsafe { info.set_owner(owner) };
        }
        Ok(())
    }

    /// As [`FrameSource::info`](crate::FrameSource::info).
    #[inline]
    pub fn info(&self, frame: Frame) -> Option<&FrameInfo> {
        // What lies below the span is far beyond its end.
        let index = frame.number().wrapping_sub(self.span.start().number());
        self.infos.get(usize::try_from(index).ok()?)
    }

    /// The frames that there are states for, whether there is memory behind them or not.
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

    /// As [`FrameSource::free_frames`](crate::FrameSource::free_frames): a load from a line of each
    /// CPU and node, no lock.
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
