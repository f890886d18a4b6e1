//! The addresses of memory and of the image, and the format of page tables.

/// The format of the kernel's tables.
pub(crate) type Format = paging::Aarch64;

/// The physical address at which memory begins. QEMU's `virt` guarantees it.
pub(crate) const MEMORY: u64 = 1 << 30;

/// The bytes from there on that the loader uses, below the image.
pub(crate) const LOADER: u64 = 2 << 20;

/// The distance from the image's physical addresses to its virtual ones.
pub(crate) const IMAGE: u64 = 0xffff_ffff_8000_0000 - MEMORY;

/// An address of which the kernel's tables must have no translation: there other CPUs start.
pub(crate) const UNMAPPED: u64 = MEMORY + LOADER;

/// A function that returns at once, as machine code: `ret`.
pub(crate) const RETURN: [u8; 4] = 0xd65f_03c0_u32.to_le_bytes();
