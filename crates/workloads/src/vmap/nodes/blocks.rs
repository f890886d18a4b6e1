//! Per-CPU blocks for short maps, which Linux has had since 2008.
//!
//! A block is an area of 4 MiB. Its CPU cuts runs of a power of two of pages from the beginning to
//! the end. No run comes back singly: when the whole block has been cut and unmapped, it is retired
//! like any area. The block of an address is found without a lock, because all blocks that a range
//! can have are one array. Linux looks it up in a tree whose readers take no lock, which takes
//! longer.

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
/// Pages of a run at most. Longer maps are areas of their own.
const MOST: usize = 64;

/// The pages of a block that have not been cut yet, and those that have been unmapped again.
#[derive(Default)]
struct Block {
    free: usize,
    dirty: usize,
}

/// All blocks that a range can have, and for each CPU those with pages left.
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

    /// Unmaps the pages that [`vm_map_ram`](Self::vm_map_ram) has mapped.
    pub(crate) fn vm_unmap_ram(&self, at: VirtAddr, pages: usize) -> Result<(), Error> {
        if pages > MOST {
            return self.give_up(at);
        }
        self.clear(at, pages)?;
        self.dirty(at, pages);
        Ok(())
    }

    /// Cuts a run from a block of this CPU, or from a new one.
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

    /// Marks a run as unmapped. The last run retires the block.
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

    /// Retires a block. It has no mapped page, and no CPU will cut one.
    fn block_goes(&self, number: usize) {
        let at = VirtAddr::new(self.blocks.start(number));
        // It is there: it was made as an area, and is retired once.
        if let Some(area) = self.unlink(at) {
            self.retire(at, &area);
        }
    }

    /// Retires blocks that have no mapped pages and were not cut to the end.
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
