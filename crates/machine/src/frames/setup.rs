//! The set-up of a source: memory for its tables, and the frames themselves, range by range.

use super::buddy::Buddy;
use super::cache::Cache;
use super::node::Node;
use super::{Frames, FramesError};
use crate::accounts::Freed;
use crate::numa::NO_NODE;
use crate::storage::{NoMemory, Storage};
use crate::{Accounts, CpuId, Cpus, Frame, FrameInfo, FrameRange, Irqs, MAX_NODES, NodeId, PerCpu};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering};
use crossbeam_utils::CachePadded;
use spin::mutex::SpinMutex;

impl Frames {
    /// A source without frames, with states for the frames of `span` (16 bytes each) and caches for
    /// this many CPUs, all on node 0. Allocates.
    ///
    /// # Errors
    /// [`FramesError::OutOfMemory`].
    pub fn try_new(span: FrameRange, cpus: usize) -> Result<Self, FramesError> {
        Ok(Self::with(span, cpus, Storage::Heap)?)
    }

    /// As [`try_new`](Self::try_new), with memory that the host has set aside: also for what
    /// [`add`](Self::add) and [`add_later`](Self::add_later) need. So a kernel makes its source
    /// before it has a heap: it cuts [`bytes`](Self::bytes) off the memory that it is about to add.
    ///
    /// ```
    /// # use machine::*;
    /// # use core::ptr::NonNull;
    /// let span = FrameRange::new(Frame::new(0x100).unwrap(), 4096).unwrap();
    /// // In a kernel these are the first pages of the range.
    /// let memory = vec![0u8; Frames::bytes(span.len(), 1, 1)].leak();
    /// // SAFETY: nothing else uses it.
    /// let mut frames = unsafe { Frames::in_memory(span, 1, NonNull::from(memory)) }?;
    /// // SAFETY: no code uses the frames in this example.
    /// unsafe { frames.add(span, NodeId(0)) }?;
    /// assert_eq!(frames.free_frames(), 4096);
    /// # Ok::<(), FramesError>(())
    /// ```
    ///
    /// # Errors
    /// [`FramesError::OutOfMemory`]: it is too short.
    ///
    /// # Safety
    /// The memory may be written, and no other code uses it as long as the source exists.
    pub unsafe fn in_memory(
        span: FrameRange,
        cpus: usize,
        memory: NonNull<[u8]>,
    ) -> Result<Self, FramesError> {
        // SAFETY: passed on.
        Ok(Self::with(span, cpus, unsafe { Storage::given(memory) })?)
    }

    /// The bytes of memory that [`in_memory`](Self::in_memory) needs for a span of so many frames,
    /// so many CPUs, and so many calls of [`add`](Self::add). There are at most
    /// [`Frame::LIMIT`](crate::Frame::LIMIT) frames. More bytes than `usize` can tell are
    /// `usize::MAX`.
    pub const fn bytes(frames: u64, cpus: usize, ranges: usize) -> usize {
        let frames = if frames < Frame::LIMIT { frames } else { Frame::LIMIT };
        // A line more for each table, for its alignment.
        let states = frames as usize * size_of::<FrameInfo>() + 128;
        let cpu = size_of::<CachePadded<Cache>>() + size_of::<CachePadded<Freed>>();
        let range = Buddy::bytes(0) + Node::bytes();
        let fixed = states + 256 + Buddy::bytes(frames);
        fixed.saturating_add(cpus.saturating_mul(cpu)).saturating_add(ranges.saturating_mul(range))
    }

    fn with(span: FrameRange, cpus: usize, storage: Storage) -> Result<Self, NoMemory> {
        let len = usize::try_from(span.len()).map_err(|_| NoMemory)?;
        let absent = |_| {
            let info = FrameInfo::new();
            info.set_node(NO_NODE);
            info
        };
        Ok(Frames {
            span,
            infos: storage.slice(len, absent)?,
            nodes: Default::default(),
            node_count: AtomicUsize::new(1),
            caches: PerCpu::in_storage(&storage, cpus, |_| Cache::new(NodeId(0)))?,
            accounts: Accounts::in_storage(&storage, cpus)?,
            storage,
            adding: SpinMutex::new(()),
        })
    }

    /// Adds free memory to a node. No block extends from one added range into another, so add
    /// contiguous memory in one call. Needs two bits for each frame, and about 4 KiB.
    ///
    /// # Errors
    /// [`FramesError`].
    ///
    /// # Safety
    /// There is memory behind the frames in the machine's [`Memory`](crate::Memory), and no code
    /// uses it.
    pub unsafe fn add(&mut self, range: FrameRange, node: NodeId) -> Result<(), FramesError> {
        self.add_range(range, node)
    }

    /// As [`add`](Self::add), while CPUs use the source: for memory that appears later, or that the
    /// kernel's loader used at first. Not in an interrupt. Empties the caches of all CPUs.
    ///
    /// # Errors
    /// [`FramesError`].
    ///
    /// # Safety
    /// As for [`add`](Self::add).
    pub unsafe fn add_later(
        &self,
        machine: &(impl Cpus + Irqs),
        range: FrameRange,
        node: NodeId,
    ) -> Result<(), FramesError> {
        let _section = machine.irqs_off();
        let _adding = self.adding.lock();
        self.add_range(range, node)
    }

    fn add_range(&self, range: FrameRange, node: NodeId) -> Result<(), FramesError> {
        let memory = self.nodes.get(usize::from(node.0)).ok_or(FramesError::NoSuchNode(node))?;
        if !self.span.covers(&range) {
            return Err(FramesError::BeyondSpan(range));
        }
        let infos = || range.iter().filter_map(|frame| self.info(frame));
        let is_known = |frame: &Frame| self.info(*frame).is_some_and(FrameInfo::is_memory);
        if let Some(frame) = range.iter().find(is_known) {
            return Err(FramesError::Twice(frame));
        }
        let buddy = Buddy::try_new(&self.storage, range.start().number(), range.len())?;
        // Before a CPU can find one of them.
        infos().for_each(|info| info.set_node(node));
        if let Err(NoMemory) = memory.add(&self.storage, buddy) {
            infos().for_each(|info| info.set_node(NO_NODE));
            return Err(FramesError::OutOfMemory);
        }
        // Relaxed: only a number. The node's lock orders its memory.
        self.node_count.fetch_max(usize::from(node.0) + 1, Ordering::Relaxed);
        self.settle();
        Ok(())
    }

    /// Chooses each CPU's near node again, after the set of nodes with memory has changed.
    fn settle(&self) {
        let count = self.nodes();
        for cache in self.caches.iter() {
            let has_memory = |node: &usize| !self.nodes[*node].is_empty();
            let home = usize::from(cache.home().0);
            let near = (0..count).map(|i| (home + i) % count).find(has_memory);
            let mut stack = cache.lock();
            // The cache holds frames of the old near node.
            self.empty(cache, &mut stack);
            cache.set_near(near.map_or(cache.home(), |node| NodeId(node as u8)));
        }
    }

    /// Makes this the node of a CPU.
    ///
    /// # Errors
    /// [`FramesError::NoSuchNode`], [`FramesError::NoSuchCpu`].
    pub fn set_home(&mut self, cpu: CpuId, node: NodeId) -> Result<(), FramesError> {
        if usize::from(node.0) >= MAX_NODES {
            return Err(FramesError::NoSuchNode(node));
        }
        self.caches.get(cpu).ok_or(FramesError::NoSuchCpu(cpu))?.set_home(node);
        self.settle();
        Ok(())
    }
}
