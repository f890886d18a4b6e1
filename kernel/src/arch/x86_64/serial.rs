//! The PC's first serial port.

use machine::PhysRange;
use uart_16550::{Config, Uart16550, backend::PioBackend};

const PORT: u16 = 0x3f8;

/// The physical addresses of its registers: none, the kernel reaches it by ports.
pub(crate) fn registers() -> Option<PhysRange> {
    None
}

pub(crate) struct Port(Uart16550<PioBackend>);

impl Port {
    /// Initialises the port, if it is there.
    ///
    /// # Safety
    /// No other code uses it.
    pub(crate) unsafe fn start() -> Option<Port> {
        // SAFETY: by the caller's promise.
        let mut port = unsafe { Uart16550::new_port(PORT) }.ok()?;
        port.init(Config::default()).ok()?;
        Some(Port(port))
    }

    /// Sends all bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.send_bytes_exact(bytes);
    }
}
