//! The end of the machine, by QEMU's device `isa-debug-exit`.

use qemu_exit::{QEMUExit, X86};

/// Ends the machine. QEMU's exit code is twice this, plus one.
pub(crate) fn exit(code: u32) -> ! {
    // SAFETY: `samara boot` gives QEMU this port.
    let port = unsafe { X86::new(0xf4, 0x10 << 1 | 1) };
    port.exit(code)
}
