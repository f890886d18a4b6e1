//! Maps for a short time, out of blocks that each CPU has for itself: Linux has them since 2008,
//! and today still.
//!
//! A block is an area of 4 MiB. Its CPU cuts runs of a power of two of pages from its beginning to
//! its end, and none comes back singly: when all have been unmapped the block goes, as any area.
//! The block of an address is found without a lock, as here all blocks that there can be are one
//! array. (Linux looks into a tree that readers need no lock for: that takes longer.)

use super::{Areas, NodeAreas, PAGE, Padded};
use crate::error::Error;
use alloc::boxed::Box;
use alloc::vec::Vec;
use grace::Concurrent;
use machine::{Frame, Machine, VirtAddr, VirtRange, lock};
use spin::mutex::SpinMutex;

/// Pages of a block.
const PAGES: usize = 1024;
const BYTES: u64 = PAGES as u64 * PAGE;
/// Pages of a run at most: for more an area is made.
const MOST: usize = 64;

/// Pages of a block that have not been cut yet, and those that have been and are unmapped again.
#[derive(Default)]
struct Block {
    free: usize,
    dirty: usize,
}

/// All blocks that there can be in a range, and those of each CPU that have pages left.
pub(super) struct Blocks {
    first: u64,
    all: Box<[SpinMutex<Block>]>,
    of_cpus: Box<[Padded<Vec<usize>>]>,
}

impl Blocks {
    pub(super) fn new(range: VirtRange, cpus: usize) -> Blocks {
        let first = range.start().get() / BYTES;
        let count = (range.len() / BYTES + 1) as usize;
        let all = (0..count).map(|_| SpinMutex::default()).collect();
        Blocks { first, all, of_cpus: (0..cpus).map(|_| Padded::default()).collect() }
    }

    fn number(&self, at: VirtAddr) -> usize {
        (at.get() / BYTES - self.first) as usize
    }

    fn start(&self, number: usize) -> u64 {
        (self.first + number as u64) * BYTES
    }
}

impl<M: Machine, G: Concurrent> NodeAreas<M, G> {
    /// Maps frames one behind the other, for a short time.
    pub(crate) fn vm_map_ram(&self, frames: &[Frame]) -> Result<VirtAddr, Error> {
        if frames.len() > MOST {
            return self.keep(frames);
        }
        let at = VirtAddr::new(self.cut(frames.len().next_power_of_two())?);
        self.map_at(at, frames).inspect_err(|_| self.dirty(at, frames.len()))?;
        Ok(at)
    }

    /// Unmaps so many pages that [`vm_map_ram`](Self::vm_map_ram) has mapped.
    pub(crate) fn vm_unmap_ram(&self, at: VirtAddr, pages: usize) -> Result<(), Error> {
        if pages > MOST {
            return self.give_up(at);
        }
        self.clear(at, pages)?;
        self.dirty(at, pages);
        Ok(())
    }

    /// A run of a block of this CPU's, or of a new one.
    fn cut(&self, run: usize) -> Result<u64, Error> {
        let machine = self.machine();
        let here = machine.current().index() % self.blocks.of_cpus.len();
        let mut own = lock(machine, &self.blocks.of_cpus[here].0);
        for place in 0..own.len() {
            let number = own[place];
            let mut block = lock(machine, &self.blocks.all[number]);
            if block.free >= run {
                let at = self.blocks.start(number) + (PAGES - block.free) as u64 * PAGE;
                block.free -= run;
                if block.free == 0 {
                    own.swap_remove(place);
                }
                return Ok(at);
            }
        }
        drop(own);
        let start = self.take(PAGES, BYTES, Vec::new())?;
        let number = self.blocks.number(VirtAddr::new(start));
        *lock(machine, &self.blocks.all[number]) = Block { free: PAGES - run, dirty: 0 };
        lock(machine, &self.blocks.of_cpus[here].0).push(number);
        Ok(start)
    }

    /// A run is unmapped; the last of a block takes it along.
    fn dirty(&self, at: VirtAddr, pages: usize) {
        let number = self.blocks.number(at);
        let last = {
            let mut block = lock(self.machine(), &self.blocks.all[number]);
            block.dirty += pages.next_power_of_two();
            block.dirty == PAGES
        };
        if last {
            self.block_goes(number);
        }
    }

    /// Nobody has a page of it, and no CPU will cut any.
    fn block_goes(&self, number: usize) {
        let at = VirtAddr::new(self.blocks.start(number));
        // It is there: it was made as an area, and goes once.
        if let Some(area) = self.unlink(at) {
            self.retire(at, &area);
        }
    }

    /// Gives up the blocks of which nothing is mapped, though they were not cut to their ends.
    pub(super) fn purge_blocks(&self) {
        let machine = self.machine();
        for own in &self.blocks.of_cpus {
            let mut gone = Vec::new();
            lock(machine, &own.0).retain(|number| {
                let block = lock(machine, &self.blocks.all[*number]);
                let empty = block.free + block.dirty == PAGES;
                if empty {
                    gone.push(*number);
                }
                !empty
            });
            gone.into_iter().for_each(|number| self.block_goes(number));
        }
    }
}
