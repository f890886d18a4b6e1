//! Where what lies in the kernel's half.
//!
//! | from | what | pages |
//! |---|---|---|
//! | `ffff_8880_0000_0000` | the direct map: all memory, at its physical address from here | 4 KiB, written, never executed |
//! | `ffff_c900_0000_0000` | areas of the kernel's own `vmap` | |
//! | `ffff_d000_0000_0000` | areas of experiments and trials | |
//! | `ffff_fe00_0000_0000` | stacks, each above a page that nothing is mapped to | 4 KiB |
//! | `ffff_ffff_8020_0000` | the kernel's image | 4 KiB; text executed, the rest not; only data is written |
//!
//! The direct map leaves out the image: what is executed cannot be written by any address. All
//! pages are of 4 KiB, so that a flush of one is not a flush of all in an emulator that keeps no
//! account of large ones.

use machine::{PhysAddr, VirtAddr, VirtRange};

/// All memory, from here on.
pub(crate) const DIRECT: u64 = 0xffff_8880_0000_0000;
/// Where the image's addresses are above its physical ones.
pub(crate) const IMAGE: u64 = 0xffff_ffff_8000_0000;
/// Stacks of CPUs.
pub(crate) const STACKS: u64 = 0xffff_fe00_0000_0000;
/// Areas of the kernel.
const AREAS: (u64, u64) = (0xffff_c900_0000_0000, 1 << 40);
/// Areas of experiments and trials.
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
