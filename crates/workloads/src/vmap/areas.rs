//! The operations that are measured of all implementations.

use crate::error::Error;
use machine::{Frame, VirtAddr};

/// Kernel areas.
pub(crate) trait Areas: Sync {
    /// This CPU begins to use areas, for the first time or again.
    fn enter(&self) {}

    /// This CPU stops using areas for a while. TLB grace periods do not wait for it.
    fn leave(&self) {}

    /// Maps frames one behind the other, for a short time.
    fn map(&self, frames: &[Frame]) -> Result<VirtAddr, Error>;

    /// Unmaps the pages that [`map`](Areas::map) has mapped.
    fn unmap(&self, at: VirtAddr, pages: usize) -> Result<(), Error>;

    /// Allocates pages that stay for longer.
    fn alloc(&self, pages: usize) -> Result<VirtAddr, Error>;

    /// Frees an area of [`alloc`](Areas::alloc), on any CPU.
    fn free(&self, at: VirtAddr) -> Result<(), Error>;

    /// Maps frames one behind the other for long, in an area of their own.
    fn keep(&self, frames: &[Frame]) -> Result<VirtAddr, Error>;

    /// Unmaps an area of [`keep`](Areas::keep).
    fn give_up(&self, at: VirtAddr) -> Result<(), Error>;

    /// Lists all areas, and returns their number. At each of them is a step, at which an interrupt
    /// may occur.
    fn list(&self) -> usize;

    /// Bytes in use, and bytes of the largest hole.
    fn info(&self) -> (u64, u64);

    /// Makes all lazily unmapped addresses available again.
    fn purge(&self) {}
}
