//! AArch64: QEMU's machine `virt`, with the flattened device tree, PSCI, GICv3, the generic timer,
//! PAN and PXN, and broadcast TLB maintenance.

#[macro_use]
mod register;

pub(crate) mod boot;
pub(crate) mod clock;
pub(crate) mod exit;
pub(crate) mod features;
pub(crate) mod irqchip;
pub(crate) mod place;
pub(crate) mod section;
pub(crate) mod serial;
pub(crate) mod tlb;
pub(crate) mod trap;
pub(crate) mod virtio;

/// Pauses. No CPU requests a flush of another one: the hardware broadcasts flushes.
#[inline]
pub(crate) fn relax() {
    core::hint::spin_loop();
}
