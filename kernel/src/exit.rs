//! The exit code of the emulator.

/// The outcome. QEMU's exit code is twice this, plus one. A reset of the machine exits with 0, so
/// no outcome here uses 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Exit {
    /// The command succeeded: 33.
    Done = 0x10,
    /// A trial failed: 35.
    Failed = 0x11,
    /// The command line was not understood: 37.
    Usage = 0x12,
    /// A panic or a fault: 39.
    Panic = 0x13,
}

/// Ends the machine.
pub(crate) fn exit(how: Exit) -> ! {
    crate::arch::exit::exit(how as u32)
}
