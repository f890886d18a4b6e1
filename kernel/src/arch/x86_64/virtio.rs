//! The virtio-serial device: on PCI, or where QEMU's microvm has devices of memory.
//!
//! The PCI device is found and used by ports alone: its legacy registers are behind its first base
//! address, to which firmware has given ports.

use crate::channel::device::Registers;
use crate::channel::mmio;
use machine::{PhysAddr, PhysRange};
use x86_64::instructions::port::Port;

/// The devices of microvm: `VIRTIO_MMIO_BASE` of QEMU, 24 devices of 512 bytes.
const MICROVM: (u64, u64) = (0xfeb0_0000, 24 * 512);
/// Vendor and device: virtio-serial that has the legacy interface.
const SERIAL: u32 = 0x1003_1af4;
/// Places in the configuration of a device.
const COMMAND: u32 = 0x04;
const BASE: u32 = 0x10;
/// Bits of the command: ports, and access to memory by the device.
const PORTS_AND_MEMORY: u32 = 1 | 4;

/// Looks for the device.
pub(crate) fn find() -> Option<Registers> {
    if configuration(0, 0) == u32::MAX {
        let places = PhysRange::new(PhysAddr::new(MICROVM.0), MICROVM.1)?;
        return mmio::find(places);
    }
    let slot = (0..32).find(|slot| configuration(*slot, 0) == SERIAL)?;
    let base = configuration(slot, BASE);
    // Bit 0: it is a range of ports.
    let port = u16::try_from(base & !3).ok().filter(|port| base & 1 == 1 && *port != 0)?;
    let command = configuration(slot, COMMAND) & 0xffff;
    address(slot, COMMAND);
    // SAFETY: the register whose address was set before. The device then does what we ask it for.
    unsafe { Port::<u32>::new(0xcfc).write(command | PORTS_AND_MEMORY) };
    Some(Registers::Pci(Pci { port }))
}

/// Names a register of a device on bus 0.
fn address(slot: u32, register: u32) {
    // SAFETY: the address register of PCI's configuration, which only this function uses, on the
    // boot CPU.
    unsafe { Port::<u32>::new(0xcf8).write(1 << 31 | slot << 11 | register) };
}

/// A register of a device on bus 0; all ones without one, or without PCI.
fn configuration(slot: u32, register: u32) -> u32 {
    address(slot, register);
    // SAFETY: reads the register that was named.
    unsafe { Port::<u32>::new(0xcfc).read() }
}

/// The ports of a device (virtio 1.2, 4.1.4.8).
pub(crate) struct Pci {
    port: u16,
}

impl Pci {
    /// # Safety
    /// `T` is as wide as the register.
    unsafe fn write<T: x86_64::instructions::port::PortWrite>(&self, register: u16, value: T) {
        // SAFETY: the ports are the device's; addresses that it gets are those of queues that are
        // never freed while it runs.
        unsafe { Port::new(self.port + register).write(value) };
    }

    pub(crate) fn set_status(&self, status: u8) {
        // SAFETY: eight bits.
        unsafe { self.write(18, status) };
    }

    /// The features 0 to 31.
    pub(crate) fn features(&self) -> u32 {
        // SAFETY: reads a register of 32 bits.
        unsafe { Port::new(self.port).read() }
    }

    pub(crate) fn accept(&self, features: u32) {
        // SAFETY: 32 bits.
        unsafe { self.write(4, features) };
    }

    /// Selects a queue for [`set_page`](Self::set_page), and returns its places.
    pub(crate) fn select(&self, queue: u16) -> u16 {
        // SAFETY: 16 bits.
        unsafe { self.write(14, queue) };
        // SAFETY: reads a register of 16 bits.
        unsafe { Port::new(self.port + 12).read() }
    }

    /// The number of places is fixed.
    pub(crate) fn set_page(&self, _: u16, page: u32) {
        // SAFETY: 32 bits.
        unsafe { self.write(8, page) };
    }

    pub(crate) fn notify(&self, queue: u16) {
        // SAFETY: 16 bits.
        unsafe { self.write(16, queue) };
    }
}
