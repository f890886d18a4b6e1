//! Blocks: 2 MiB of addresses each, of which a CPU takes small runs without asking anybody.
//!
//! A CPU has a queue of blocks. It takes runs from the first; when that has no more, it notes what
//! was given back there, which then waits for a TLB grace period, and puts it last. By the time
//! that it comes up again its pages are free. If it is not so, the queue needs one more block; that
//! is the only time when addresses are taken from a zone. So in the steady state a map of some
//! pages writes this CPU's own lines and nothing else, whatever else goes on (I8).
//!
//! Blocks that are all free go back to their zone when space is short, when the CPU has time for
//! it, or when it goes idle; then it leaves the others to whoever wants a block next.
//!
//! # Why it is right
//! The queue is its CPU's: [`machine::CpuLocal`]. A block's bits have one owner at a time, the CPU
//! in whose queue it is; who adopts one gets it through the lock of the orphans, which passes on
//! what the owner before has written.

mod bits;

pub(crate) use bits::{Bits, MOST, PAGES};

use crate::area::{List, Ours};
use crate::tlb_grace::TlbGrace;
use alloc::collections::{TryReserveError, VecDeque};
use core::mem;
use core::panic::Location;
use core::sync::atomic::{AtomicUsize, Ordering};
use machine::{Machine, VirtAddr, lock};
use paging::Leaf;
use spin::mutex::SpinMutex;

/// The bytes of a block, and what it begins at a multiple of.
pub(crate) const BYTES: u64 = (PAGES as u64) << 12;
/// As many blocks as are looked at for a run before another is made.
const LOOK: usize = 4;

/// The blocks of one CPU.
#[derive(Default)]
pub(crate) struct Blocks {
    queue: VecDeque<Ours>,
    /// The word of the first block where the last run was found.
    hint: usize,
    /// Pages that wait, in all of them.
    waiting: usize,
}

impl Blocks {
    /// Takes a run of so many pages; where it begins.
    ///
    /// Cost: two loads to see whether something has come due, and [`Bits::take`]; now and then the
    /// next block.
    #[inline]
    pub(crate) fn take<M: Machine>(
        &mut self,
        flushes: &TlbGrace<M>,
        pages: usize,
        caller: &'static Location<'static>,
    ) -> Option<(VirtAddr, Leaf)> {
        for _ in 0..LOOK.min(self.queue.len()) {
            let own = self.queue.front()?;
            let bits = own.bits()?;
            self.waiting -= bits.settle(flushes.done());
            if let Some(page) = bits.take(self.hint, pages) {
                self.hint = page / 64;
                bits.note(page, caller);
                return Some((own.start().checked_add((page as u64) << 12)?, bits.leaf()?));
            }
            self.waiting += bits.gather(|| flushes.target());
            self.queue.rotate_left(1);
            self.hint = 0;
        }
        None
    }

    /// The first block, if the pages at `at` lie in it: with the number of the first of them.
    #[inline]
    pub(crate) fn first_with(&self, at: VirtAddr) -> Option<(&Bits, u64)> {
        let own = self.queue.front()?;
        let offset = at.offset_from(own.start()).filter(|offset| *offset < BYTES)?;
        Some((own.bits()?, offset))
    }

    /// Bytes that wait, and the first period that some of them wait for.
    pub(crate) fn waiting(&self) -> (u64, Option<u64>) {
        let targets = self.queue.iter().filter_map(bits_of).map(Bits::target);
        ((self.waiting as u64) << 12, targets.filter(|target| *target != 0).min())
    }

    /// Another block, to be used first; or it back, if the queue must grow.
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

    /// How large a queue it takes for one block more, if this one has no room.
    pub(crate) fn wants_room(&self) -> Option<usize> {
        (self.queue.len() == self.queue.capacity()).then_some(self.queue.len() * 2 + 8)
    }

    /// Takes over what is in this queue, and leaves the larger one.
    pub(crate) fn grow(&mut self, mut larger: VecDeque<Ours>) -> VecDeque<Ours> {
        if larger.capacity() > self.queue.len() {
            larger.extend(self.queue.drain(..));
            mem::swap(&mut self.queue, &mut larger);
        }
        larger
    }

    /// Frees what has come due, in all blocks, and notes what was given back.
    pub(crate) fn gather<M: Machine>(&mut self, flushes: &TlbGrace<M>) {
        self.settle(flushes);
        for bits in self.queue.iter().filter_map(bits_of) {
            self.waiting += bits.gather(|| flushes.target());
        }
    }

    /// As [`gather`](Blocks::gather), for who is about to end the period of all that waits. Returns
    /// how many pages do.
    pub(crate) fn gather_all<M: Machine>(&mut self, flushes: &TlbGrace<M>) -> usize {
        self.settle(flushes);
        for bits in self.queue.iter().filter_map(bits_of) {
            self.waiting += bits.gather_all(|| flushes.target());
        }
        self.waiting
    }

    /// Frees what has come due, in all blocks.
    pub(crate) fn settle<M: Machine>(&mut self, flushes: &TlbGrace<M>) {
        for bits in self.queue.iter().filter_map(bits_of) {
            self.waiting -= bits.settle(flushes.done());
        }
    }

    /// A block that is all free, if there are more of them than `keep`.
    pub(crate) fn pop_free(&mut self, keep: usize) -> Option<Ours> {
        let is_free = |own: &Ours| own.bits().is_some_and(Bits::is_free);
        let free = self.queue.iter().filter(|own| is_free(own)).count();
        if free <= keep {
            return None;
        }
        self.hint = 0;
        self.queue.iter().rposition(is_free).and_then(|at| self.queue.remove(at))
    }

    /// Any block.
    pub(crate) fn pop(&mut self) -> Option<Ours> {
        let own = self.queue.pop_back()?;
        self.waiting -= own.bits().map_or(0, Bits::waiting);
        self.hint = 0;
        Some(own)
    }
}

/// The bits of a block, which has some.
fn bits_of(own: &Ours) -> Option<&Bits> {
    own.bits()
}

/// An empty queue with room for so many.
pub(crate) fn queue(room: usize) -> Result<VecDeque<Ours>, TryReserveError> {
    let mut queue = VecDeque::new();
    queue.try_reserve(room)?;
    Ok(queue)
}

/// Blocks whose CPU has gone idle, linked through their areas: to leave one takes no memory.
#[derive(Default)]
pub(crate) struct Orphans {
    /// How many there are; written with the lock held.
    len: AtomicUsize,
    list: SpinMutex<List>,
}

impl Orphans {
    /// A block to adopt, if there is one. A load if there is none.
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

    /// Leaves a block to others.
    pub(crate) fn leave<M: Machine>(&self, machine: &M, own: Ours) {
        let mut list = lock(machine, &self.list);
        list.push(own);
        // Relaxed: as `adopt`.
        self.len.store(list.len(), Ordering::Relaxed);
    }
}
