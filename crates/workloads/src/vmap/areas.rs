//! What the old way and ours have in common: what is measured of both.

use crate::error::Error;
use crate::vmap::old::OldAreas;
use grace::Concurrent;
use machine::{Access, Frame, Machine, VirtAddr};

/// Areas of the kernel, as the experiments use them.
pub(crate) trait Areas: Sync {
    /// This CPU begins to use areas, or is back.
    fn enter(&self);

    /// This CPU does something else for a while, in which nobody waits for it.
    fn leave(&self);

    /// Maps frames one behind the other, for a short time.
    fn map(&self, frames: &[Frame]) -> Result<VirtAddr, Error>;

    /// Unmaps what [`map`](Areas::map) has mapped: so many pages.
    fn unmap(&self, at: VirtAddr, pages: usize) -> Result<(), Error>;

    /// Allocates pages that stay for longer.
    fn alloc(&self, pages: usize) -> Result<VirtAddr, Error>;

    /// Frees what [`alloc`](Areas::alloc) has allocated, on whatever CPU.
    fn free(&self, at: VirtAddr) -> Result<(), Error>;

    /// Maps frames one behind the other, for long: an area of its own.
    fn keep(&self, frames: &[Frame]) -> Result<VirtAddr, Error>;

    /// Unmaps what [`keep`](Areas::keep) has mapped.
    fn give_up(&self, at: VirtAddr) -> Result<(), Error>;

    /// Lists all areas; returns how many there are. At each of them an interrupt may come in, as it
    /// may at any instruction.
    fn list(&self) -> usize;

    /// Bytes in use, and of the largest hole.
    fn info(&self) -> (u64, u64);

    /// Makes all addresses come back that wait.
    fn purge(&self);
}

impl<M: Machine, G: Concurrent> Areas for OldAreas<M, G> {
    fn enter(&self) {}

    fn leave(&self) {}

    fn map(&self, frames: &[Frame]) -> Result<VirtAddr, Error> {
        self.vmap(frames)
    }

    fn unmap(&self, at: VirtAddr, _: usize) -> Result<(), Error> {
        self.vunmap(at)
    }

    fn alloc(&self, pages: usize) -> Result<VirtAddr, Error> {
        self.vmalloc(pages)
    }

    fn free(&self, at: VirtAddr) -> Result<(), Error> {
        self.vfree(at)
    }

    fn keep(&self, frames: &[Frame]) -> Result<VirtAddr, Error> {
        self.vmap(frames)
    }

    fn give_up(&self, at: VirtAddr) -> Result<(), Error> {
        self.vunmap(at)
    }

    fn list(&self) -> usize {
        let (machine, mut count) = (self.machine(), 0);
        OldAreas::list(self, |at, pages| {
            core::hint::black_box((at, pages));
            machine.step(Access::Shared);
            count += 1;
        });
        count
    }

    fn info(&self) -> (u64, u64) {
        OldAreas::info(self)
    }

    /// None wait.
    fn purge(&self) {}
}
