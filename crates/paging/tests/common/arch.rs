//! The formats that the machine in software walks.

use paging::*;
use sim::Arch;

/// A format, and the machine's name for it.
pub(crate) trait OnSim: Format {
    const ARCH: Arch;
}

macro_rules! on_sim {
    ($($format:ident: $arch:ident,)*) => {
        $(impl OnSim for $format {
            const ARCH: Arch = Arch::$arch;
        })*
    };
}

on_sim! {
    X86_64L4: X86_64,
    X86_64L5: X86_64,
    Aarch64: Aarch64,
    Aarch64Lpa2: Aarch64,
    Aarch64G16L3: Aarch64G16,
    Aarch64G16: Aarch64G16,
    Aarch64G16Lpa2: Aarch64G16Lpa2,
    Aarch64G64: Aarch64G64,
    Aarch64G64Lpa: Aarch64G64Lpa,
    Aarch64Stage2: Aarch64Stage2,
}

/// In a guest of SEV.
pub(crate) type Sev = Encrypted<X86_64L4, 51, true>;

impl OnSim for Sev {
    const ARCH: Arch = Arch::X86_64Sev;
}

impl<const LEVELS: u8> OnSim for Ept<LEVELS> {
    const ARCH: Arch = Arch::Ept;
}

impl<const LEVELS: u8> OnSim for Npt<LEVELS> {
    const ARCH: Arch = Arch::Npt;
}

impl<const LEVELS: u8, const SVNAPOT: bool> OnSim for Riscv<LEVELS, SVNAPOT> {
    const ARCH: Arch = if SVNAPOT { Arch::RiscVNapot } else { Arch::RiscV };
}
