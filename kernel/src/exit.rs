//! The end: the exit code of the emulator.

use qemu_exit::{QEMUExit, X86};

/// How it ended. QEMU's own exit code is twice this and one more; 0 is what it says when the
/// machine resets itself, so nothing good is ever 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Exit {
    /// All that was asked for was done: 33.
    Done = 0x10,
    /// A trial failed: 35.
    Failed = 0x11,
    /// The command line is not understood: 37.
    Usage = 0x12,
    /// A panic, or a fault: 39.
    Panic = 0x13,
}

/// Ends the machine.
pub(crate) fn exit(how: Exit) -> ! {
    // SAFETY: the port that `samara boot` tells QEMU.
    let port = unsafe { X86::new(0xf4, 0x10 << 1 | 1) };
    port.exit(how as u32)
}
