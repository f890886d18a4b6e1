//! The address space of a loop: one of ours, or a baseline.

use crate::error::Error;
use alloc::sync::Arc;
#[cfg(test)]
use {machine::VirtAddr, paging::Mapping};

pub(super) const PAGE: usize = 4096;
/// The end of the addresses that a call chooses from, highest first, as on Linux.
pub(super) const TOP: usize = 0x7000_0000_0000;
/// The start of the heap.
pub(super) const HEAP: usize = 0x5555_5600_0000;
/// The end of a program's stack that it uses.
pub(super) const STACK: usize = 0x7fff_ff00_0000;

/// The memory that a VMA maps. All VMAs are readable and writable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum VmaType {
    /// Anonymous memory.
    Anonymous,
    /// Private copies of the file's pages.
    PrivateFile,
    /// The file's pages.
    SharedFile,
}

/// An address space that several CPUs use at once.
pub(super) trait Memory: Send + Sync {
    /// Makes this CPU a target of the space's flushes.
    fn enter(&self);

    /// Ends that. The CPU does not use the space any more.
    fn leave(&self);

    /// The space's work in this CPU's timer interrupt.
    fn tick(&self) {}

    /// The page at `at`, as the processor finds it.
    #[cfg(test)]
    fn walk(&self, at: VirtAddr) -> Option<Mapping>;

    /// Maps `len` bytes at `at`, in the place of what is there, or at the highest addresses that
    /// are free. Returns the address.
    fn map(&self, at: Option<usize>, len: usize, of: VmaType) -> Result<usize, Error>;

    fn unmap(&self, at: usize, len: usize) -> Result<(), Error>;

    /// Moves the end of the heap.
    fn brk(&self, to: usize) -> Result<(), Error>;

    /// Handles the fault of a write.
    fn fault(&self, at: usize) -> Result<(), Error>;

    /// A child, for the CPU's own use.
    fn fork(&self) -> Result<SharedMemory, Error>;
}

/// A space and its owners.
pub(super) type SharedMemory = Arc<dyn Memory>;

/// Maps what most programs have: the program, its libraries, and its stack.
pub(super) fn populate(memory: &dyn Memory) -> Result<(), Error> {
    let (program, libraries) = (0x5555_5555_4000, TOP + PAGE);
    // A page between two of them, so that none merge.
    for (base, parts, pages) in [(program, 5, 16), (libraries, 16, 64), (STACK, 1, 33)] {
        for part in 0..parts {
            memory.map(Some(base + part * (pages + 1) * PAGE), pages * PAGE, VmaType::Anonymous)?;
        }
    }
    Ok(())
}
