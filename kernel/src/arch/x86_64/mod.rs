//! x86-64: PVH, ACPI, local APICs, the PIT, SMAP and SMEP.

pub(crate) mod apic;
pub(crate) mod boot;
pub(crate) mod clock;
pub(crate) mod exit;
pub(crate) mod features;
pub(crate) mod icount;
pub(crate) mod place;
pub(crate) mod section;
pub(crate) mod serial;
pub(crate) mod shootdown;
pub(crate) mod tables;
pub(crate) mod tlb;
pub(crate) mod trap;
pub(crate) mod user;
pub(crate) mod virtio;

pub(crate) use apic as irqchip;

/// Executes the flushes that other CPUs request of this one, and pauses.
#[inline]
pub(crate) fn relax() {
    shootdown::poll();
    if !icount::waiting_counts() {
        core::hint::spin_loop();
    }
}
