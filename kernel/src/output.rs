//! The output of programs: two ports of QEMU's `isa-debugcon` devices. `samara boot run` connects
//! them to its own standard output and standard error. The bytes arrive unchanged, in order.
//!
//! Two CPUs that write to one stream at once must not mix their bytes, so each stream has a lock.
//! An `outsb` with a repeat count writes a piece. Interrupts are off for one piece at most, which
//! is short enough for a timer interrupt.

use crate::machine::Kernel;
use core::arch::asm;
use machine::{Irqs, lock};
use spin::mutex::SpinMutex;

/// The most bytes that are written with interrupts off.
const PIECE: usize = 256;

/// A stream of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// The ports, each with its lock.
static PORTS: [SpinMutex<u16>; 2] = [SpinMutex::new(0x502), SpinMutex::new(0x503)];

/// Writes all bytes, without a buffer. Any context. Each [`PIECE`] is written in one piece, and
/// other CPUs may write between two of them. Without such a device the bytes are lost.
pub(crate) fn write(stream: Stream, bytes: &[u8]) {
    for piece in bytes.chunks(PIECE) {
        let _section = Kernel.irqs_off();
        let port = lock(&Kernel, &PORTS[stream as usize]);
        // SAFETY: the port belongs to a device that only takes bytes. The instruction reads the
        // piece and changes no memory; the direction flag is clear in Rust code.
        unsafe {
            asm!(
                "rep outsb",
                in("dx") *port,
                inout("rsi") piece.as_ptr() => _,
                inout("rcx") piece.len() => _,
                options(nostack, preserves_flags, readonly),
            );
        }
    }
}
