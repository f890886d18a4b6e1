//! The vectors of interrupts.

/// The timer interrupt.
pub(crate) const TIMER: u8 = 0xf0;
/// Another CPU requests a flush.
pub(crate) const FLUSH: u8 = 0xf1;
/// Another CPU has a job for this one, or waits for its tick.
pub(crate) const WAKE: u8 = 0xf2;
pub(crate) const APIC_ERROR: u8 = 0xfe;
pub(crate) const SPURIOUS: u8 = 0xff;
