//! Blocks of 2 MiB of addresses, from which a CPU takes small runs without synchronization.
//!
//! A CPU has a queue of blocks and takes runs from the first. When that block has no free run left,
//! the CPU collects the runs that were given back there, which then wait for a TLB grace period,
//! and moves the block to the end of the queue. By the time the block is first again, its pages are
//! normally free. If not, the queue needs another block; only then does the CPU take addresses from
//! a zone. In the steady state, mapping a few pages writes only this CPU's cache lines, regardless
//! of other CPUs (I8).
//!
//! Blocks that are entirely free go back to their zone when space is short, when the CPU calls
//! `poll`, or when it goes idle. An idle CPU leaves its other blocks for adoption.
//!
//! # Why it is correct
//! Only its CPU accesses the queue ([`machine::CpuLocal`]). A block's bits have one owner at a
//! time: the CPU in whose queue it is. A CPU adopts a block under the lock of the orphans, which
//! orders the old owner's writes before its own.

mod bits;

pub(crate) use bits::{Bits, MOST, PAGES};

use crate::TlbGrace;
use crate::area::{List, Ours};
use alloc::collections::{TryReserveError, VecDeque};
use core::mem;
use core::panic::Location;
use core::sync::atomic::{AtomicUsize, Ordering};
use machine::{Machine, VirtAddr, lock};
use paging::Leaf;
use spin::mutex::SpinMutex;

/// The size of a block in bytes, and its alignment.
pub(crate) const BYTES: u64 = (PAGES as u64) << 12;
/// Blocks that are searched for a run before another block is made.
const LOOK: usize = 4;

/// The blocks of one CPU.
#[derive(Default)]
pub(crate) struct Blocks {
    queue: VecDeque<Ours>,
    /// The word of the first block in which the last run was found.
    hint: usize,
    /// Waiting pages of all blocks.
    waiting: usize,
}

impl Blocks {
    /// Takes a run of so many pages and returns its start.
    ///
    /// Cost: two loads to test whether waiting pages are free now, and [`Bits::take`]; now and then
    /// a step to the next block.
    #[inline]
    pub(crate) fn take<M: Machine>(
        &mut self,
        tlb_grace: &TlbGrace<M>,
        pages: usize,
        caller: &'static Location<'static>,
    ) -> Option<(VirtAddr, Leaf)> {
        for _ in 0..LOOK.min(self.queue.len()) {
            let own = self.queue.front()?;
            let bits = own.bits()?;
            self.waiting -= bits.settle(tlb_grace.done());
            if let Some(page) = bits.take(self.hint, pages) {
                self.hint = page / 64;
                bits.note(page, caller);
                return Some((own.start().checked_add((page as u64) << 12)?, bits.leaf()?));
            }
            self.waiting += bits.gather(|| tlb_grace.target());
            self.queue.rotate_left(1);
            self.hint = 0;
        }
        None
    }

    /// The first block, if `at` lies in it, and the offset of `at` in bytes.
    #[inline]
    pub(crate) fn first_with(&self, at: VirtAddr) -> Option<(&Bits, u64)> {
        let own = self.queue.front()?;
        let offset = at.offset_from(own.start()).filter(|offset| *offset < BYTES)?;
        Some((own.bits()?, offset))
    }

    /// Waiting bytes, and the earliest period that some of them wait for.
    pub(crate) fn waiting(&self) -> (u64, Option<u64>) {
        let targets = self.queue.iter().filter_map(bits_of).map(Bits::target);
        ((self.waiting as u64) << 12, targets.filter(|target| *target != 0).min())
    }

    /// Adds a block at the front. Gives it back if the queue has no room.
    pub(crate) fn push(&mut self, own: Option<Ours>) -> Option<Ours> {
        if self.wants_room().is_some() {
            return own;
        }
        let own = own?;
        self.waiting += own.bits().map_or(0, Bits::waiting);
        self.queue.push_front(own);
        self.hint = 0;
        None
    }

    /// The capacity that one more block needs, if the queue is full.
    pub(crate) fn wants_room(&self) -> Option<usize> {
        (self.queue.len() == self.queue.capacity()).then_some(self.queue.len() * 2 + 8)
    }

    /// Moves the queue into a larger one, and returns the old one.
    pub(crate) fn grow(&mut self, mut larger: VecDeque<Ours>) -> VecDeque<Ours> {
        if larger.capacity() > self.queue.len() {
            larger.extend(self.queue.drain(..));
            mem::swap(&mut self.queue, &mut larger);
        }
        larger
    }

    /// Frees pages whose period has ended, in all blocks, and collects given-back runs.
    pub(crate) fn gather<M: Machine>(&mut self, tlb_grace: &TlbGrace<M>) {
        self.settle(tlb_grace);
        for bits in self.queue.iter().filter_map(bits_of) {
            self.waiting += bits.gather(|| tlb_grace.target());
        }
    }

    /// As [`gather`](Blocks::gather), before a broadcast that ends the period of all waiting pages.
    /// Returns the number of waiting pages.
    pub(crate) fn gather_all<M: Machine>(&mut self, tlb_grace: &TlbGrace<M>) -> usize {
        self.settle(tlb_grace);
        for bits in self.queue.iter().filter_map(bits_of) {
            self.waiting += bits.gather_all(|| tlb_grace.target());
        }
        self.waiting
    }

    /// Frees pages whose period has ended, in all blocks.
    pub(crate) fn settle<M: Machine>(&mut self, tlb_grace: &TlbGrace<M>) {
        for bits in self.queue.iter().filter_map(bits_of) {
            self.waiting -= bits.settle(tlb_grace.done());
        }
    }

    /// Removes a block that is entirely free, if there are more than `keep` of them.
    pub(crate) fn pop_free(&mut self, keep: usize) -> Option<Ours> {
        let is_free = |own: &Ours| own.bits().is_some_and(Bits::is_free);
        let free = self.queue.iter().filter(|own| is_free(own)).count();
        if free <= keep {
            return None;
        }
        self.hint = 0;
        self.queue.iter().rposition(is_free).and_then(|at| self.queue.remove(at))
    }

    /// Removes the last block.
    pub(crate) fn pop(&mut self) -> Option<Ours> {
        let own = self.queue.pop_back()?;
        self.waiting -= own.bits().map_or(0, Bits::waiting);
        self.hint = 0;
        Some(own)
    }
}

/// The bits of a block; always `Some`.
fn bits_of(own: &Ours) -> Option<&Bits> {
    own.bits()
}

/// An empty queue with this capacity.
pub(crate) fn queue(room: usize) -> Result<VecDeque<Ours>, TryReserveError> {
    let mut queue = VecDeque::new();
    queue.try_reserve(room)?;
    Ok(queue)
}

/// Blocks without an owner, whose CPU has gone idle. They are linked through their areas, so
/// leaving a block allocates nothing.
#[derive(Default)]
pub(crate) struct Orphans {
    /// The length of the list; written with the lock held.
    len: AtomicUsize,
    list: SpinMutex<List>,
}

impl Orphans {
    /// Takes a block from the list, if it is not empty. Cost: one load if it is empty.
    pub(crate) fn adopt<M: Machine>(&self, machine: &M) -> Option<Ours> {
        // Relaxed: a hint.
        if self.len.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut list = lock(machine, &self.list);
        let area = list.pop()?;
        self.len.store(list.len(), Ordering::Relaxed);
        Some(area)
    }

    /// Leaves a block for adoption.
    pub(crate) fn leave<M: Machine>(&self, machine: &M, own: Ours) {
        let mut list = lock(machine, &self.list);
        list.push(own);
        // Relaxed: a hint for `adopt`.
        self.len.store(list.len(), Ordering::Relaxed);
    }
}
