//! A virtio device by registers in memory (virtio 1.2, 4.2.4: the legacy interface).

use super::device::Registers;
use crate::space::vmap;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use machine::PhysRange;
use paging::Cache;

/// The bytes between two devices.
const STRIDE: usize = 512;
const MAGIC: u32 = u32::from_le_bytes(*b"virt");
const LEGACY: u32 = 1;
/// The number of virtio-serial devices.
const SERIAL: u32 = 3;
const PAGE: u32 = 4096;

/// The registers, by their offsets in bytes.
#[derive(Clone, Copy)]
#[repr(usize)]
enum Register {
    Magic = 0x00,
    Version = 0x04,
    Device = 0x08,
    Features = 0x10,
    FeaturesHalf = 0x14,
    Accepted = 0x20,
    AcceptedHalf = 0x24,
    PageSize = 0x28,
    Queue = 0x30,
    QueueMost = 0x34,
    QueueSize = 0x38,
    QueueAlign = 0x3c,
    QueuePage = 0x40,
    Notify = 0x50,
    Status = 0x70,
}

/// The registers of a device.
pub(crate) struct Mmio(NonNull<u32>);

// SAFETY: the registers may be used from any CPU, and stay mapped.
unsafe impl Send for Mmio {}
// SAFETY: after the start there is one write-only register that is used, by single writes.
unsafe impl Sync for Mmio {}

/// Looks for a virtio-serial device among these registers, where devices are [`STRIDE`] bytes from
/// each other. A place without a device reads as zeros, or has the device number zero.
pub(crate) fn find(places: PhysRange) -> Option<Registers> {
    let at = vmap().ioremap(places, Cache::Uncached).ok()?;
    (0..places.len() as usize / STRIDE).find_map(|number| {
        let at = with_exposed_provenance_mut(at.get() as usize + number * STRIDE);
        let device = Mmio(NonNull::new(at)?);
        let is = |register, value| device.read(register) == value;
        let found = is(Register::Magic, MAGIC)
            && is(Register::Version, LEGACY)
            && is(Register::Device, SERIAL);
        found.then_some(Registers::Mmio(device))
    })
}

impl Mmio {
    fn read(&self, register: Register) -> u32 {
        // SAFETY: the registers are mapped, and this one has no side effect when it is read.
        unsafe { self.0.byte_add(register as usize).read_volatile() }
    }

    fn write(&self, register: Register, value: u32) {
        // SAFETY: the registers are mapped; addresses that the device gets are those of queues that
        // are never freed while it runs.
        unsafe { self.0.byte_add(register as usize).write_volatile(value) };
    }

    pub(super) fn set_status(&self, status: u8) {
        self.write(Register::Status, status.into());
    }

    /// The features 0 to 31.
    pub(super) fn features(&self) -> u32 {
        self.write(Register::FeaturesHalf, 0);
        self.read(Register::Features)
    }

    pub(super) fn accept(&self, features: u32) {
        self.write(Register::AcceptedHalf, 0);
        self.write(Register::Accepted, features);
        self.write(Register::PageSize, PAGE);
    }

    /// Selects a queue for [`set_page`](Self::set_page), and returns its places.
    pub(super) fn select(&self, queue: u16) -> u16 {
        self.write(Register::Queue, queue.into());
        let most = self.read(Register::QueueMost);
        most.min(super::queue::MOST.into()) as u16
    }

    pub(super) fn set_page(&self, size: u16, page: u32) {
        self.write(Register::QueueSize, size.into());
        self.write(Register::QueueAlign, PAGE);
        self.write(Register::QueuePage, page);
    }

    pub(super) fn notify(&self, queue: u16) {
        self.write(Register::Notify, queue.into());
    }
}
