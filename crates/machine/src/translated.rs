//! Memory accesses through the CPU's active translations.

use crate::VirtAddr;
use core::fmt;

/// The cause of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// The address is not mapped.
    NotPresent,
    /// The address is mapped without the needed right.
    Protection,
    /// The format cannot translate the address.
    NotCanonical,
    /// An entry has a reserved bit set, or leads to no memory.
    Malformed,
    /// The address of a word is not a multiple of its size.
    Misaligned,
}

/// A failed access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The first address at which the access failed.
    pub address: VirtAddr,
    /// Whether it was a write.
    pub write: bool,
    /// The cause.
    pub kind: FaultKind,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.write { "write to" } else { "read of" };
        let why = match self.kind {
            FaultKind::NotPresent => "nothing is mapped there",
            FaultKind::Protection => "the mapping does not allow it",
            FaultKind::NotCanonical => "the address is not canonical",
            FaultKind::Malformed => "a page-table entry is malformed",
            FaultKind::Misaligned => "the word is not aligned",
        };
        write!(f, "{what} {}: {why}", self.address)
    }
}

impl core::error::Error for Fault {}

/// Reads and writes through the active translations, like the kernel's own loads and stores.
///
/// A fault is an error, not an exception: a host catches page faults in these functions. As on any
/// CPU, a fault may be *spurious* just after an entry has become more permissive. A caller that
/// knows that the entry allows the access tries again.
///
/// The trait is safe to implement: no unsafe code relies on the results of the calls. Their callers
/// promise that the memory may be accessed.
pub trait Translated {
    /// Reads bytes at `at` into `into`. On a fault, the bytes before [`Fault::address`] have been
    /// read.
    ///
    /// # Errors
    /// The fault.
    ///
    /// # Safety
    /// The memory mapped there may be read as bytes: it is ordinary memory, and no code holds a
    /// `&mut` to it.
    unsafe fn read(&self, at: VirtAddr, into: &mut [u8]) -> Result<(), Fault>;

    /// Writes the bytes of `from` to `at`. On a fault, the bytes before [`Fault::address`] have
    /// been written.
    ///
    /// # Errors
    /// The fault.
    ///
    /// # Safety
    /// The memory mapped there may be written as bytes: it is ordinary memory, and no code holds a
    /// reference to it.
    unsafe fn write(&self, at: VirtAddr, from: &[u8]) -> Result<(), Fault>;

    /// Reads the word at `at`, in one atomic load. An address that is not a multiple of 8 is
    /// [`FaultKind::Misaligned`].
    ///
    /// # Errors
    /// The fault.
    ///
    /// # Safety
    /// As for [`read`](Translated::read).
    unsafe fn load(&self, at: VirtAddr) -> Result<u64, Fault>;

    /// Writes the word at `at`, in one atomic store. An address that is not a multiple of 8 is
    /// [`FaultKind::Misaligned`].
    ///
    /// # Errors
    /// The fault.
    ///
    /// # Safety
    /// As for [`write`](Translated::write).
    unsafe fn store(&self, at: VirtAddr, value: u64) -> Result<(), Fault>;
}
