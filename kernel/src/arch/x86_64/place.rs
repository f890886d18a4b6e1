//! The addresses of memory and of the image, and the format of page tables.

/// The format of the kernel's tables.
pub(crate) type Format = paging::X86_64L4;

/// The distance from the image's physical addresses to its virtual ones.
pub(crate) const IMAGE: u64 = 0xffff_ffff_8000_0000;

/// The physical address at which memory begins.
pub(crate) const MEMORY: u64 = 0;

/// An address of which the kernel's tables must have no translation: there other CPUs start, at a
/// copy of the trampoline. A SIPI has its page number.
pub(crate) const UNMAPPED: u64 = 0x8000;

/// A function that returns at once, as machine code.
pub(crate) const RETURN: [u8; 1] = [0xc3];
