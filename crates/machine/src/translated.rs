//! Memory as a program sees it: through the translations of the CPU.

use crate::VirtAddr;
use core::fmt;

/// Why an access could not be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// Nothing is mapped there.
    NotPresent,
    /// Something is mapped there that does not allow the access.
    Protection,
    /// The address is not one that the format can translate.
    NotCanonical,
    /// An entry has a bit set that must be clear, or leads to no memory.
    Malformed,
    /// The word does not begin at a multiple of its size.
    Misaligned,
}

/// An access that could not be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// The first address of the access that failed.
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

/// Reads and writes through the active translations, as the kernel's own loads and stores.
///
/// A fault is an error, not an exception: a host catches its page faults in these functions. As on
/// any CPU a fault may be *spurious* just after an entry has become more permissive; whoever knows
/// that the entry allows the access tries again.
///
/// The trait is safe to implement: no unsafe code relies on what the calls return. What they may
/// touch is their callers' promise.
pub trait Translated {
    /// Reads bytes from `at` on into `into`. On a fault, the bytes before [`Fault::address`] have
    /// been read.
    ///
    /// # Errors
    /// The fault that ended it.
    ///
    /// # Safety
    /// Whatever is mapped there may be read as bytes: it is ordinary memory that nobody holds a
    /// `&mut` to.
    unsafe fn read(&self, at: VirtAddr, into: &mut [u8]) -> Result<(), Fault>;

    /// Writes the bytes of `from` from `at` on. On a fault, the bytes before [`Fault::address`]
    /// have been written.
    ///
    /// # Errors
    /// The fault that ended it.
    ///
    /// # Safety
    /// Whatever is mapped there may be written as bytes: it is ordinary memory that nobody holds a
    /// reference to.
    unsafe fn write(&self, at: VirtAddr, from: &[u8]) -> Result<(), Fault>;

    /// Reads the word at `at`, in one atomic load. An address that is no multiple of 8 is
    /// [`FaultKind::Misaligned`].
    ///
    /// # Errors
    /// The fault.
    ///
    /// # Safety
    /// As for [`read`](Translated::read).
    unsafe fn load(&self, at: VirtAddr) -> Result<u64, Fault>;

    /// Writes the word at `at`, in one atomic store. An address that is no multiple of 8 is
    /// [`FaultKind::Misaligned`].
    ///
    /// # Errors
    /// The fault.
    ///
    /// # Safety
    /// As for [`write`](Translated::write).
    unsafe fn store(&self, at: VirtAddr, value: u64) -> Result<(), Fault>;
}
