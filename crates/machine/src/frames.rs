//! A frame source: a buddy allocator for each NUMA node, behind a cache for each CPU. Its memory:
//! `setup`.
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
//! A source needs 16 bytes and two bits for each frame, from the heap ([`Frames::try_new`]) or, at
//! boot, from memory that the host sets aside ([`Frames::in_memory`]). Allocating and freeing
//! frames needs no heap, so the heap may take its own memory from this source.
//!
//! # Zones
//! A node is a set of frames with a number: a NUMA node, or a zone. A kernel whose devices reach
//! only low memory gives that memory a node to which no CPU is near ([`Frames::set_home`]). It
//! allocates there with [`NodePolicy::Only`]. Other allocations take frames of it only when all
//! other nodes have none.

mod buddy;
mod cache;
mod error;
#[cfg(loom)]
mod model;
mod node;
mod on;
mod setup;

pub use error::FramesError;
#[cfg(loom)]
pub use model::ModelFrames;
pub use on::FramesOn;

use crate::storage::{Slice, Storage};
use crate::{
    Accounts, CpuId, Cpus, Frame, FrameError, FrameInfo, FrameRange, Irqs, MAX_NODES, NodeId,
    NodePolicy, PerCpu,
};
use cache::{Cache, Stack};
use core::fmt;
use core::sync::atomic::{AtomicUsize, Ordering};
use crossbeam_utils::CachePadded;
use node::Node;
use spin::mutex::SpinMutex;

/// The largest order: 2^18 frames, a page of 1 GiB.
pub const MAX_ORDER: u8 = 18;
/// The number of frames that a CPU's cache can hold.
pub const CACHE_FRAMES: usize = 64;
/// The number of frames that are moved to or from a cache at once.
pub const CACHE_BATCH: usize = CACHE_FRAMES / 2;

/// The limit of searches with the caches closed: a frame may be freed on another node meanwhile.
const TURNS: usize = 4;

/// A frame source, on which a host builds its [`FrameSource`](crate::FrameSource).
///
/// It is part of its machine, so it does not store one. Methods that need the current CPU take the
/// machine as an argument. Any machine is correct, since locks protect everything.
///
/// ```
/// use machine::{
///     CpuId, CpuSet, Cpus, Frame, FrameRange, FrameSource, Frames, Irqs, NodeId, NodePolicy,
/// };
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
/// let block = frames.alloc(&Host, 2, NodePolicy::Local).ok()?;
/// assert_eq!(block.number() % 4, 0);
/// assert_eq!(frames.free_frames(), 60);
/// assert!(frames.alloc(&Host, 6, NodePolicy::Local).is_err());
/// // SAFETY: as above.
/// unsafe { frames.on(&Host).free(block) }.ok()?;
/// # assert_eq!(frames.free_frames(), 64);
/// # Some(())
/// # }
/// # assert!(example().is_some());
/// ```
///
/// Allocating or freeing one frame of this CPU's node costs a section with interrupts disabled, one
/// uncontended lock, and accesses to two or three cache lines of this CPU and to the frame's state.
/// It allocates no memory.
///
/// # Misuse
/// The number of the CPU only selects a cache, and each cache has a lock. So with another machine
/// than before, or two that are both CPU 0, no frame is allocated twice; at worst it is not the
/// nearest one. A frame that is not given back leaks.
pub struct Frames {
    span: FrameRange,
    infos: Slice<FrameInfo>,
    nodes: [CachePadded<Node>; MAX_NODES],
    /// Grows only.
    node_count: AtomicUsize,
    caches: PerCpu<Cache>,
    accounts: Accounts,
    storage: Storage,
    /// Held while a range is added.
    adding: SpinMutex<()>,
}

impl Frames {
    /// As [`FrameSource::alloc`](crate::FrameSource::alloc).
    ///
    /// # Errors
    /// [`FrameError::OutOfFrames`], [`FrameError::TooLarge`], [`FrameError::NoSuchNode`].
    pub fn alloc(
        &self,
        machine: &(impl Cpus + Irqs),
        order: u8,
        place: NodePolicy,
    ) -> Result<Frame, FrameError> {
        if order > MAX_ORDER {
            return Err(FrameError::TooLarge { order });
        }
        if let NodePolicy::Prefer(node) | NodePolicy::Only(node) = place
            && usize::from(node.0) >= self.nodes()
        {
            return Err(FrameError::NoSuchNode(node));
        }
        let _section = machine.irqs_off();
        let cpu = machine.current();
        let found = self.find(cpu, order, place).or_else(|| self.find_all(cpu, order, place));
        let number = found.ok_or(FrameError::OutOfFrames { order })?;
        let frame = Frame::new(number).ok_or(FrameError::OutOfFrames { order })?;
        // The allocators hold only frames of this source, so this does not fail.
        let info = self.info(frame).ok_or(FrameError::NotOurs(frame))?;
        // SAFETY: it has just left the list of free blocks.
        unsafe { info.allocate(order) };
        Ok(frame)
    }

    /// Allocates the block of 2^`order` frames that begins at `frame`, if all of them are free: for
    /// memory that the kernel's loader, the firmware or a device uses. Empties the caches of all
    /// CPUs. Context as for [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// [`FrameError::NotOurs`]: not all of it is memory of one range. [`FrameError::NotFree`]: a
    /// frame is in use, or the block does not begin at a multiple of its length.
    /// [`FrameError::TooLarge`].
    pub fn alloc_at(
        &self,
        machine: &(impl Cpus + Irqs),
        frame: Frame,
        order: u8,
    ) -> Result<(), FrameError> {
        if order > MAX_ORDER {
            return Err(FrameError::TooLarge { order });
        }
        let last = frame.checked_add((1 << order) - 1).ok_or(FrameError::NotOurs(frame))?;
        for frame in [frame, last] {
            if !self.info(frame).is_some_and(FrameInfo::is_memory) {
                return Err(FrameError::NotOurs(frame));
            }
        }
        let info = self.info(frame).ok_or(FrameError::NotOurs(frame))?;
        let _section = machine.irqs_off();
        self.close();
        let node = &self.nodes[usize::from(info.node().0)];
        let is_block = frame.number().is_multiple_of(1 << order);
        let taken = is_block && node.lock().take_at(frame.number(), order);
        self.open();
        if !taken {
            return Err(FrameError::NotFree(frame));
        }
        // SAFETY: it has just left the list of free blocks.
        unsafe { info.allocate(order) };
        Ok(())
    }

    fn find(&self, cpu: CpuId, order: u8, place: NodePolicy) -> Option<u64> {
        let near = self.near(cpu);
        let node = match place {
            NodePolicy::Local => near,
            NodePolicy::Prefer(node) | NodePolicy::Only(node) => node,
        };
        if order == 0 && node == near {
            if let Some(number) = self.pop_cached(cpu, near) {
                return Some(number);
            }
        } else if let Some(number) = self.nodes[usize::from(node.0)].lock().take(order) {
            return Some(number);
        }
        if matches!(place, NodePolicy::Only(_)) {
            return None;
        }
        // The other nodes, beginning after this one, so that not all CPUs turn to the same node.
        let first = usize::from(node.0);
        let count = self.nodes();
        (1..=count)
            .map(|i| (first + i) % count)
            .filter(|other| *other != first)
            .find_map(|other| self.nodes[other].lock().take(order))
    }

    /// The slow path of `find`: makes every free frame findable. Takes the locks of each CPU's
    /// cache twice.
    #[cold]
    fn find_all(&self, cpu: CpuId, order: u8, place: NodePolicy) -> Option<u64> {
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
        self.caches.get(cpu).map_or(NodeId(0), Cache::near)
    }

    fn pop_cached(&self, cpu: CpuId, near: NodeId) -> Option<u64> {
        let cache = self.caches.get(cpu)?;
        let mut stack = cache.lock();
        // A range may have been added since the caller looked.
        if cache.near() != near {
            return self.nodes[usize::from(near.0)].lock().take(0);
        }
        if stack.len() == 0 {
            let mut node = self.nodes[usize::from(near.0)].lock();
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
            self.empty(cache, &mut stack);
        }
    }

    fn empty(&self, cache: &Cache, stack: &mut Stack<'_>) {
        let mut node = self.nodes[usize::from(cache.near().0)].lock();
        while let Some(number) = stack.pop() {
            node.give(number, 0);
        }
    }

    /// Undoes `close`.
    fn open(&self) {
        self.caches.iter().for_each(|cache| cache.lock().open());
    }

    /// As [`FrameSource::recycle`](crate::FrameSource::recycle).
    ///
    /// # Safety
    /// As there.
    pub unsafe fn recycle(&self, machine: &(impl Cpus + Irqs), frame: Frame, info: &FrameInfo) {
        let node = info.node();
        let _section = machine.irqs_off();
        self.accounts.note_freed(machine.current(), info);
        // SAFETY: passed on.
        let order = unsafe { info.recycle() };
        if order == 0
            && let Some(cache) = self.caches.get(machine.current())
            && cache.near() == node
        {
            let mut stack = cache.lock();
            // A range may have been added since.
            if !stack.is_closed() && cache.near() == node {
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
        // Relaxed: only a number.
        self.node_count.load(Ordering::Relaxed)
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
            .field("nodes", &self.nodes())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
