//! The formats that the machine in software walks.

use paging::*;
use sim::Arch;

/// A format, and the machine's name for it.
pub(crate) trait OnSim: Format {
    const ARCH: Arch;
}

impl OnSim for X86_64L4 {
    const ARCH: Arch = Arch::X86_64;
}

impl OnSim for X86_64L5 {
    const ARCH: Arch = Arch::X86_64;
}

impl OnSim for Aarch64 {
    const ARCH: Arch = Arch::Aarch64;
}

impl OnSim for Aarch64Lpa2 {
    const ARCH: Arch = Arch::Aarch64;
}

impl OnSim for Aarch64G16L3 {
    const ARCH: Arch = Arch::Aarch64G16;
}

impl OnSim for Aarch64G16 {
    const ARCH: Arch = Arch::Aarch64G16;
}

impl OnSim for Aarch64G16Lpa2 {
    const ARCH: Arch = Arch::Aarch64G16Lpa2;
}

impl OnSim for Aarch64G64 {
    const ARCH: Arch = Arch::Aarch64G64;
}

impl OnSim for Aarch64G64Lpa {
    const ARCH: Arch = Arch::Aarch64G64Lpa;
}

impl OnSim for Aarch64Stage2 {
    const ARCH: Arch = Arch::Aarch64Stage2;
}

impl<const LEVELS: u8> OnSim for Riscv<LEVELS> {
    const ARCH: Arch = Arch::RiscV;
}
