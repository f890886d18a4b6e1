//! The PL011 that the device tree names.

use super::boot::info::tree;
use crate::layout::direct;
use arm_pl011_uart::{
    DataBits, LineConfig, PL011Registers, Parity, StopBits, Uart, UniqueMmioPointer,
};
use core::ptr::{NonNull, with_exposed_provenance_mut};
use machine::PhysRange;

/// The rate of its clock in Hz, and of the line.
const CLOCK: u32 = 24_000_000;
const BAUD: u32 = 115_200;

pub(crate) struct Port(Uart<'static>);

// SAFETY: the registers may be used from any CPU.
unsafe impl Send for Port {}

/// The physical addresses of its registers, which the direct map has.
pub(crate) fn registers() -> Option<PhysRange> {
    tree()?.registers("/pl011", 0)
}

impl Port {
    /// Initialises the port, if it is there.
    ///
    /// # Safety
    /// No other code uses it. The tables map devices in the direct map, now and later.
    pub(crate) unsafe fn start() -> Option<Port> {
        let at = direct(registers()?.start()).get() as usize;
        let at = NonNull::new(with_exposed_provenance_mut::<PL011Registers>(at))?;
        // SAFETY: by the caller's promise.
        let mut port = Uart::new(unsafe { UniqueMmioPointer::new(at) });
        let line = LineConfig {
            data_bits: DataBits::Bits8,
            parity: Parity::None,
            stop_bits: StopBits::One,
        };
        port.enable(line, BAUD, CLOCK).ok()?;
        Some(Port(port))
    }

    /// Sends all bytes.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        for byte in bytes {
            while self.0.is_tx_fifo_full() {
                core::hint::spin_loop();
            }
            self.0.write_word(*byte);
        }
    }
}
