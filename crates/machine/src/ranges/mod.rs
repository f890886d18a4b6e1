//! Ranges of virtual addresses, of physical addresses or of frames, for many CPUs and without a
//! heap.
//!
//! A kernel's heap takes its memory from frames and from virtual addresses, and so must not be
//! needed to find these. [`Frames`](crate::Frames) is for frames with states. [`Ranges`] is for all
//! else that has a start and a length. Its records lie in the value itself, which may be a static.
//!
//! # Design
//! Each CPU has a set of ranges of its own, and there is a common one. A CPU takes a *chunk* from
//! the common set, and serves small allocations from it. So CPUs that allocate and free do not meet
//! in a lock. Large allocations come from the common set, and chunks return to it.
//!
//! # Why it is right
//! - Each point that was added is in one set, free or in an allocated range. A free range moves
//!   from one set to another only under the locks of both. An allocated range never moves.
//! - Locks are taken in the order of the CPUs, with the common one last. A call holds one CPU's
//!   lock, and maybe the common one, or all locks.
//! - A call fails for want of space only after it has held all locks and moved all free ranges to
//!   the common set, where neighbours are one range. So the answer is true of one moment.
//! - A free needs no record: that of the allocated range serves.
//!
//! The tests compare the sets with a model, and run the calls on many threads with few addresses.

mod pieces;
#[cfg(test)]
mod tests;

use self::pieces::{NoNode, Pieces};
use crate::{Cpus, Irqs, Point, Span, Step, lock};
use core::fmt;
use core::marker::PhantomData;
use crossbeam_utils::CachePadded;
use spin::mutex::{SpinMutex, SpinMutexGuard};

/// An allocator of ranges for `CPUS` CPUs, with `RECORDS` records for each, of 32 bytes. It calls
/// no heap, and a static can hold it.
///
/// A record holds a free or an allocated range. So `RECORDS` allocated ranges of a CPU fit if free
/// ranges lie between none of them, and half as many in any case.
///
/// ```
/// # use machine::{CpuId, CpuSet, Cpus, Irqs, Step};
/// # struct Host;
/// # unsafe impl Cpus for Host {
/// #     fn count(&self) -> usize { 1 }
/// #     fn current(&self) -> CpuId { CpuId::default() }
/// #     fn online(&self) -> CpuSet { CpuSet::first(1) }
/// # }
/// # unsafe impl Irqs for Host {
/// #     fn irq_enter(&self) {}
/// #     unsafe fn irq_leave(&self) {}
/// #     fn irqs_enabled(&self) -> bool { false }
/// # }
/// # unsafe impl Step for Host {}
/// use machine::{Ranges, RangesError, VirtAddr, VirtRange};
///
/// /// For eight CPUs, which take 16 MiB at a time.
/// static ADDRESSES: Ranges<VirtAddr, 8, 128> = Ranges::new(16 << 20);
///
/// let all = VirtRange::new(VirtAddr::new(0xffff_c900_0000_0000), 1 << 40).unwrap();
/// ADDRESSES.add(&Host, all)?;
/// let stack = ADDRESSES.alloc(&Host, 0x4000, 0x1000)?;
/// let device = VirtRange::new(VirtAddr::new(0xffff_c980_0000_0000), 0x2000).unwrap();
/// ADDRESSES.alloc_at(&Host, device)?;
/// assert_eq!(ADDRESSES.alloc_at(&Host, device), Err(RangesError::InUse));
/// ADDRESSES.free(&Host, stack)?;
/// ADDRESSES.free(&Host, device)?;
/// assert_eq!(ADDRESSES.free(&Host, device), Err(RangesError::NotAllocated));
/// assert_eq!(ADDRESSES.available(&Host), 1 << 40);
/// # Ok::<(), RangesError>(())
/// ```
///
/// # Calling context
/// Each call may be made anywhere but in an NMI, also in an interrupt. It never sleeps, and never
/// allocates. It disables interrupts while it holds a lock. A call that takes all locks needs up to
/// 24 bytes of stack for each CPU.
pub struct Ranges<P, const CPUS: usize, const RECORDS: usize> {
    chunk: u64,
    own: [CachePadded<SpinMutex<Pieces<RECORDS>>>; CPUS],
    common: CachePadded<SpinMutex<Pieces<RECORDS>>>,
    points: PhantomData<fn() -> P>,
}

/// The reason why ranges could not be added, allocated or freed. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RangesError {
    /// No free range has this length and alignment.
    OutOfSpace,
    /// All records are in use.
    OutOfRecords,
    /// A part of the range is allocated, or was never added.
    InUse,
    /// A part of the range was added before.
    Overlaps,
    /// With the range, all 2^64 points would have been added: leave one out.
    TooMany,
    /// No allocated range has this start and this length.
    NotAllocated,
    /// The range is empty.
    Empty,
    /// The alignment is no power of two.
    Alignment,
}

impl fmt::Display for RangesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RangesError::OutOfSpace => "no free range is long enough: add or free some",
            RangesError::OutOfRecords => "no record is left: free ranges, or make more records",
            RangesError::InUse => "a part of the range is allocated, or was never added",
            RangesError::Overlaps => "a part of the range was added before",
            RangesError::TooMany => "all 2^64 points would have been added: leave one out",
            RangesError::NotAllocated => "no allocated range has this start and this length",
            RangesError::Empty => "the range is empty",
            RangesError::Alignment => "the alignment is no power of two",
        })
    }
}

impl core::error::Error for RangesError {}

impl From<NoNode> for RangesError {
    fn from(NoNode: NoNode) -> Self {
        RangesError::OutOfRecords
    }
}

/// The sets of all CPUs, and the common one.
struct All<'a, const CPUS: usize, const RECORDS: usize> {
    own: [SpinMutexGuard<'a, Pieces<RECORDS>>; CPUS],
    common: SpinMutexGuard<'a, Pieces<RECORDS>>,
}

impl<P: Point, const CPUS: usize, const RECORDS: usize> Ranges<P, CPUS, RECORDS> {
    /// An allocator without ranges. A CPU takes `chunk` points at a time, at least 1, and serves
    /// from them what is at most a quarter as long: 64 times the usual length is a good value.
    pub const fn new(chunk: u64) -> Self {
        const { assert!(CPUS != 0 && RECORDS != 0, "there must be a CPU and a record") };
        Ranges {
            chunk: if chunk == 0 { 1 } else { chunk },
            own: [const { CachePadded::new(SpinMutex::new(Pieces::new())) }; CPUS],
            common: CachePadded::new(SpinMutex::new(Pieces::new())),
            points: PhantomData,
        }
    }

    /// Adds a free range. Takes all locks.
    ///
    /// # Errors
    /// [`RangesError::Empty`], [`RangesError::Overlaps`], [`RangesError::TooMany`],
    /// [`RangesError::OutOfRecords`].
    pub fn add<M>(&self, machine: &M, range: Span<P>) -> Result<(), RangesError>
    where
        M: Cpus + Irqs + Step,
    {
        let (start, last) = ends(range)?;
        let _section = machine.irqs_off();
        let mut all = self.all(machine);
        let overlaps = |set: &SpinMutexGuard<'_, Pieces<RECORDS>>| set.overlaps(start, last);
        if all.own.iter().any(overlaps) || overlaps(&all.common) {
            return Err(RangesError::Overlaps);
        }
        let added = all.common.added.checked_add(range.len()).ok_or(RangesError::TooMany)?;
        all.common.put(start, range.len())?;
        all.common.added = added;
        Ok(())
    }

    /// Allocates `len` points from a multiple of `align` on, the lowest that the CPU finds.
    ///
    /// Costs a section, a lock that other CPUs rarely take, and some paths through a tree of this
    /// CPU's ranges. Once for each chunk, and where `len` or `align` exceeds a quarter of one, it
    /// takes the common lock. It takes all locks if the common set has no chunk any more, or a set
    /// has no record: then it moves the free ranges of all CPUs before it allocates or fails. With
    /// an `align` above 1 it visits all free ranges of `len` points if none is `align - 1` longer.
    ///
    /// # Errors
    /// [`RangesError::Empty`], [`RangesError::Alignment`], [`RangesError::OutOfSpace`],
    /// [`RangesError::OutOfRecords`].
    pub fn alloc<M>(&self, machine: &M, len: u64, align: u64) -> Result<Span<P>, RangesError>
    where
        M: Cpus + Irqs + Step,
    {
        if len == 0 {
            return Err(RangesError::Empty);
        }
        if !align.is_power_of_two() {
            return Err(RangesError::Alignment);
        }
        let _section = machine.irqs_off();
        let start = match self.alloc_fast(machine, len, align) {
            Some(start) => start,
            None => self.all(machine).alloc(len, align)?,
        };
        Span::new(P::at(start), len).ok_or(RangesError::OutOfSpace)
    }

    /// Allocates this range. Takes all locks.
    ///
    /// # Errors
    /// [`RangesError::Empty`], [`RangesError::InUse`], [`RangesError::OutOfRecords`].
    pub fn alloc_at<M>(&self, machine: &M, range: Span<P>) -> Result<(), RangesError>
    where
        M: Cpus + Irqs + Step,
    {
        let (start, _) = ends(range)?;
        let _section = machine.irqs_off();
        let mut all = self.all(machine);
        // Parts of it may be free in the sets of CPUs.
        let common = all.common.is_free(start, range.len());
        let gathered = if common { Ok(()) } else { all.gather() };
        if all.common.is_free(start, range.len()) {
            return Ok(all.common.take(start, range.len())?);
        }
        gathered?;
        Err(RangesError::InUse)
    }

    /// Frees a range that was allocated as it is, on any CPU. Never fails for want of records.
    ///
    /// Costs as much as [`alloc`](Self::alloc) if this CPU has allocated the range from a chunk. If
    /// another one has, the call takes one CPU's lock after the other until it finds the range. It
    /// takes all, one by one, for a range of at most a quarter of a chunk that came from the common
    /// set: by [`alloc_at`](Self::alloc_at), with a large alignment, or for want of a chunk.
    ///
    /// # Errors
    /// [`RangesError::NotAllocated`]; [`RangesError::Empty`].
    pub fn free<M>(&self, machine: &M, range: Span<P>) -> Result<(), RangesError>
    where
        M: Cpus + Irqs + Step,
    {
        let (start, _) = ends(range)?;
        let _section = machine.irqs_off();
        let len = range.len();
        let common = || lock(machine, &self.common).give(start, len).is_some();
        // An allocated range stays where it is, so one set after the other may be asked.
        let large = len > self.chunk / 4;
        if large && common() || self.free_own(machine, start, len) || !large && common() {
            return Ok(());
        }
        Err(RangesError::NotAllocated)
    }

    /// The number of points that are free: exact while no CPU allocates or frees. Takes each lock.
    pub fn available<M>(&self, machine: &M) -> u64
    where
        M: Cpus + Irqs + Step,
    {
        let _section = machine.irqs_off();
        let sets = self.own.iter().chain([&self.common]);
        // A range that moves between sets meanwhile may be counted twice.
        sets.fold(0, |sum: u64, set| sum.saturating_add(lock(machine, set).free()))
    }

    /// Frees a range of any CPU's set, this one's first.
    fn free_own<M: Cpus + Step>(&self, machine: &M, start: u64, len: u64) -> bool {
        let here = machine.current().index() % CPUS;
        for cpu in (here..CPUS).chain(0..here) {
            let mut own = lock(machine, &self.own[cpu]);
            let Some((start, len)) = own.give(start, len) else { continue };
            if len / 2 >= self.chunk {
                // Without a record for it in the common set it stays, and serves as well.
                let _stays = shift(&mut own, &mut lock(machine, &self.common), start, len);
            }
            return true;
        }
        false
    }

    /// Allocates from this CPU's set; a large range from the common one.
    fn alloc_fast<M>(&self, machine: &M, len: u64, align: u64) -> Option<u64>
    where
        M: Cpus + Step,
    {
        if len.max(align) > self.chunk / 4 {
            let mut common = lock(machine, &self.common);
            let start = common.lowest(len, align)?;
            return common.take(start, len).is_ok().then_some(start);
        }
        let mut own = lock(machine, &self.own[machine.current().index() % CPUS]);
        let start = match own.lowest(len, align) {
            Some(start) => start,
            None => {
                let mut common = lock(machine, &self.common);
                let start = common.lowest(self.chunk, align)?;
                shift(&mut common, &mut own, start, self.chunk).ok()?;
                own.lowest(len, align)?
            }
        };
        own.take(start, len).is_ok().then_some(start)
    }

    /// All sets. The caller has disabled interrupts.
    fn all<M: Step>(&self, machine: &M) -> All<'_, CPUS, RECORDS> {
        All {
            own: self.own.each_ref().map(|set| lock(machine, set)),
            common: lock(machine, &self.common),
        }
    }
}

impl<const CPUS: usize, const RECORDS: usize> All<'_, CPUS, RECORDS> {
    /// Moves all free ranges to the common set.
    fn gather(&mut self) -> Result<(), NoNode> {
        for own in &mut self.own {
            while let Some((start, len)) = own.lowest_free() {
                shift(own, &mut self.common, start, len)?;
            }
        }
        Ok(())
    }

    /// Allocates wherever there is room.
    fn alloc(&mut self, len: u64, align: u64) -> Result<u64, RangesError> {
        let mut recorded = self.gather();
        // If all were gathered, the others have none.
        let common: &mut Pieces<RECORDS> = &mut self.common;
        for set in [common].into_iter().chain(self.own.iter_mut().map(|own| &mut **own)) {
            let Some(start) = set.lowest(len, align) else { continue };
            match set.take(start, len) {
                Ok(()) => return Ok(start),
                Err(none) => recorded = Err(none),
            }
        }
        recorded?;
        Err(RangesError::OutOfSpace)
    }
}

/// Moves points that are free in one range from one set to another. Without a record for them in
/// either, nothing has changed.
fn shift<const RECORDS: usize>(
    from: &mut Pieces<RECORDS>,
    to: &mut Pieces<RECORDS>,
    start: u64,
    len: u64,
) -> Result<(), NoNode> {
    from.remove(start, len)?;
    to.put(start, len).inspect_err(|_| {
        // They join what they were cut from, or have the record that they had.
        let _fits = from.put(start, len);
    })
}

impl<P, const CPUS: usize, const RECORDS: usize> fmt::Debug for Ranges<P, CPUS, RECORDS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ranges").field("chunk", &self.chunk).finish_non_exhaustive()
    }
}

/// The first and the last point of a range.
fn ends<P: Point>(range: Span<P>) -> Result<(u64, u64), RangesError> {
    let last = range.last().ok_or(RangesError::Empty)?;
    Ok((range.start().index(), last.index()))
}
