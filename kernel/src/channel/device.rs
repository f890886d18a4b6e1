//! A virtio-serial device with several ports, of which port 1 is ours (virtio 1.2, 5.3). It is used
//! by the legacy interface, which QEMU's devices have on all machines: the registers of memory and
//! those of PCI then differ in little more than their places.

use super::mmio::Mmio;
use super::queue::Queue;
use crate::clock;
use alloc::format;
use alloc::string::String;

/// The feature of several ports. Only such a device keeps bytes that the host is too slow to read.
const MULTIPORT: u32 = 1 << 1;
/// Bits of the status.
const ACKNOWLEDGE: u8 = 1;
const DRIVER: u8 = 2;
const DRIVER_OK: u8 = 4;
/// The queues: control messages to the device; of port 1, bytes from the host and to it.
const CONTROL: u16 = 3;
pub(super) const RECEIVE: u16 = 4;
pub(super) const SEND: u16 = 5;
/// Control messages: port, event, value.
const DEVICE_READY: (u32, u16, u16) = (0, 0, 1);
const PORT_READY: (u32, u16, u16) = (1, 3, 1);
const PORT_OPEN: (u32, u16, u16) = (1, 6, 1);
/// The bytes of one.
const MESSAGE: usize = 8;
/// Nanoseconds for a control message.
const PATIENCE: u64 = 10_000_000_000;

/// The registers of a legacy device.
pub(crate) enum Registers {
    Mmio(Mmio),
    #[cfg(target_arch = "x86_64")]
    Pci(crate::arch::virtio::Pci),
}

/// Calls a method of the registers that there are.
macro_rules! registers {
    ($registers:expr, $of:ident => $call:expr) => {
        match $registers {
            Registers::Mmio($of) => $call,
            #[cfg(target_arch = "x86_64")]
            Registers::Pci($of) => $call,
        }
    };
}

/// A device that works.
pub(super) struct Device(Registers);

impl Device {
    /// Starts it with these queues.
    ///
    /// # Errors
    /// It is not as it should be: the cause, and the cure.
    pub(super) fn start(
        registers: Registers,
        sender: &mut Queue,
        receiver: &mut Queue,
    ) -> Result<Device, String> {
        let cure = "start QEMU as `samara boot run` does";
        registers!(&registers, of => {
            of.set_status(0);
            of.set_status(ACKNOWLEDGE | DRIVER);
        });
        if registers!(&registers, of => of.features()) & MULTIPORT == 0 {
            return Err(format!("the virtio-serial device has one port alone: {cure}"));
        }
        registers!(&registers, of => of.accept(MULTIPORT));
        let mut control = Queue::new(1, MESSAGE);
        let queues = [(CONTROL, &mut control), (RECEIVE, &mut *receiver), (SEND, sender)];
        for (number, queue) in queues {
            let size = registers!(&registers, of => of.select(number));
            let Some(page) = queue.prepare(size) else {
                registers!(&registers, of => of.set_status(0));
                return Err(format!("queue {number} of virtio-serial has {size} places: {cure}"));
            };
            registers!(&registers, of => of.set_page(size, page));
        }
        registers!(&registers, of => of.set_status(ACKNOWLEDGE | DRIVER | DRIVER_OK));
        let device = Device(registers);
        receiver.post_all();
        for (port, event, value) in [DEVICE_READY, PORT_READY, PORT_OPEN] {
            let (event, value) = (event.to_le_bytes(), value.to_le_bytes());
            control.fill(0, &[&port.to_le_bytes(), &event, &value]);
            control.post(0, MESSAGE, false);
            device.notify(CONTROL);
            let until = clock::now().saturating_add(PATIENCE);
            while control.take().is_none() {
                if clock::now() > until {
                    registers!(&device.0, of => of.set_status(0));
                    return Err(format!("the virtio-serial device does not answer: {cure}"));
                }
                core::hint::spin_loop();
            }
        }
        // It still reads this queue's pages when it looks for messages.
        core::mem::forget(control);
        Ok(device)
    }

    /// Tells the device that a queue has a new buffer.
    pub(super) fn notify(&self, queue: u16) {
        registers!(&self.0, of => of.notify(queue));
    }
}
