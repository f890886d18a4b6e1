//! The layout of the kernel's half of the address space.
//!
//! | from | what | pages |
//! |---|---|---|
//! | `ffff_8880_0000_0000` | the direct map: all memory, at its physical address from here | 4 KiB, writable, not executable |
//! | `ffff_c900_0000_0000` | areas of the kernel's own `vmap` | |
//! | `ffff_d000_0000_0000` | areas of experiments and trials | |
//! | `ffff_fe00_0000_0000` | stacks, each above an unmapped guard page | 4 KiB |
//! | `ffff_ffff_8020_0000` | the kernel's image | 4 KiB; only text is executable, only data is writable |
//!
//! The direct map leaves out the image, so no address can write code that is executed. The loader's
//! archive is in it read-only. All pages have 4 KiB: an emulator that does not track large pages
//! would turn the flush of one into a flush of all.

use machine::{PhysAddr, VirtAddr, VirtRange};

pub(crate) use crate::arch::place::IMAGE;

/// The start of the direct map.
pub(crate) const DIRECT: u64 = 0xffff_8880_0000_0000;
/// The start of the CPUs' stacks.
pub(crate) const STACKS: u64 = 0xffff_fe00_0000_0000;
/// The kernel's areas: start and bytes.
const AREAS: (u64, u64) = (0xffff_c900_0000_0000, 1 << 40);
/// The areas of experiments and trials: start and bytes.
const TRIALS: (u64, u64) = (0xffff_d000_0000_0000, 1 << 45);

/// The address of physical memory in the direct map.
pub(crate) const fn direct(at: PhysAddr) -> VirtAddr {
    VirtAddr::new(DIRECT + at.get())
}

pub(crate) fn areas() -> VirtRange {
    range(AREAS)
}

pub(crate) fn trials() -> VirtRange {
    range(TRIALS)
}

fn range((start, len): (u64, u64)) -> VirtRange {
    VirtRange::new(VirtAddr::new(start), len).expect("it lies in the upper half")
}
