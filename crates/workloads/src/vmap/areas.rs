//! What the old way and ours have in common: what is measured of both.

use crate::error::Error;
use machine::{Frame, VirtAddr};

/// Areas of the kernel, as the experiments use them.
pub(crate) trait Areas: Sync {
    /// This CPU begins to use areas, or is back.
    fn enter(&self) {}

    /// This CPU does something else for a while, in which nobody waits for it.
    fn leave(&self) {}

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
    fn purge(&self) {}
}
