//! The registers of interrupted code, and why it was interrupted.

/// The causes, as `Registers::kind` has them.
pub(super) const SYNCHRONOUS: u64 = 0;
pub(super) const IRQ: u64 = 1;
pub(super) const FIQ: u64 = 2;

/// The saved registers, as `entry` stores them.
#[repr(C, align(16))]
pub(super) struct Registers {
    pub(super) x: [u64; 31],
    pub(super) sp: u64,
    pub(super) elr: u64,
    pub(super) spsr: u64,
    pub(super) esr: u64,
    pub(super) far: u64,
    pub(super) kind: u64,
}

/// The class of an exception (ESR_EL1.EC).
pub(super) const INSTRUCTION_ABORT: u64 = 0x21;
const DATA_ABORT: u64 = 0x25;

impl Registers {
    pub(super) fn class(&self) -> u64 {
        self.esr >> 26 & 0x3f
    }

    pub(super) fn is_abort(&self) -> bool {
        self.kind == SYNCHRONOUS && matches!(self.class(), INSTRUCTION_ABORT | DATA_ABORT)
    }
}
