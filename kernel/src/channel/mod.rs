//! The channel to the command that started the machine: a port of a virtio-serial device.
//!
//! It carries frames: four bytes (the kind, then the length in 24 bits, little-endian), then so
//! many bytes. To the host go the output of programs, the lines of the console while a program
//! runs, and an archive of files, in the order in which they are written. From the
//! host comes standard input (`input`).
//!
//! A send returns when the device has taken the bytes: the host then has all of them, even if the
//! machine ends with the next instruction. One lock orders the frames of all CPUs. It is held while
//! a frame is copied and announced, and not while the device is slow, as it is when the host does
//! not read: then a CPU looks again and again, with interrupts on if its caller has them on.
//!
//! Cost of a frame: a copy and one exit of the machine. Without a device the console takes all.

pub(crate) mod device;
pub(crate) mod mmio;
mod queue;

use crate::arch::virtio;
use crate::machine::Kernel;
use crate::{clock, console};
use alloc::string::String;
use core::fmt::{self, Write};
use device::Device;
use machine::{Irqs, Step, lock};
use queue::Queue;
use spin::Once;
use spin::mutex::SpinMutex;

/// The kind of a frame to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum MessageKind {
    /// Text of the kernel's console.
    Console = 0,
    /// Standard output of programs.
    Output = 1,
    /// Standard error of programs.
    #[cfg(target_arch = "x86_64")]
    Errors = 2,
    /// A piece of the archive of files for the host.
    #[cfg(target_arch = "x86_64")]
    Archive = 3,
    /// Empty: the host may begin to send standard input.
    #[cfg(target_arch = "x86_64")]
    Wanted = 4,
}

/// The bytes of a frame's head.
const HEAD: usize = 4;
/// The most bytes of a frame, with its head.
const FRAME: usize = 64 << 10;
/// The buffers for bytes from the host, and the bytes of each. QEMU fills one with 4 KiB at most.
const PLACES: u16 = 32;
const PLACE: usize = 4 << 10;
/// The bytes of the console in a frame.
const TEXT: usize = 512;
/// Nanoseconds for which a panic waits for the last frame.
const PATIENCE: u64 = 1_000_000_000;

struct Channel {
    device: Device,
    sender: SpinMutex<Queue>,
    /// The device writes to its buffers.
    #[cfg_attr(not(target_arch = "x86_64"), expect(dead_code, reason = "there are no programs"))]
    receiver: SpinMutex<Queue>,
}

static CHANNEL: Once<Channel> = Once::new();

/// Opens the channel, if the machine has the device. Call it once, when the kernel's areas exist.
///
/// # Errors
/// There is such a device, and it cannot be used: the cause, for people.
pub(crate) fn start() -> Result<(), String> {
    let Some(registers) = virtio::find() else { return Ok(()) };
    let mut sender = Queue::new(1, FRAME);
    let mut receiver = Queue::new(PLACES, PLACE);
    let device = Device::start(registers, &mut sender, &mut receiver)?;
    let (sender, receiver) = (SpinMutex::new(sender), SpinMutex::new(receiver));
    CHANNEL.call_once(|| Channel { device, sender, receiver });
    Ok(())
}

/// Sends bytes, as frames of this kind. Any context but a panic. Returns false without a channel.
pub(crate) fn send(kind: MessageKind, bytes: &[u8]) -> bool {
    let Some(channel) = CHANNEL.get() else { return false };
    if bytes.is_empty() {
        channel.frame(kind, bytes);
    }
    bytes.chunks(FRAME - HEAD).for_each(|piece| channel.frame(kind, piece));
    true
}

/// Whether there is a channel.
pub(crate) fn is_open() -> bool {
    CHANNEL.get().is_some()
}

/// Text on its way to the host: one frame for each [`TEXT`] bytes, so short lines stay whole.
pub(crate) struct Lines {
    text: [u8; TEXT],
    len: usize,
}

impl Lines {
    /// Sends text of the console.
    pub(crate) fn send(text: fmt::Arguments<'_>) {
        let mut lines = Lines { text: [0; TEXT], len: 0 };
        // It does not fail, unless a value that is printed does.
        let _ = lines.write_fmt(text);
        lines.flush();
    }

    fn flush(&mut self) {
        send(MessageKind::Console, &self.text[..self.len]);
        self.len = 0;
    }
}

impl fmt::Write for Lines {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            if self.len == TEXT {
                self.flush();
            }
            self.text[self.len] = byte;
            self.len += 1;
        }
        Ok(())
    }
}

/// Writes output to the host; without a channel, to the console.
pub(crate) fn write(kind: MessageKind, bytes: &[u8]) {
    if !send(kind, bytes) {
        console::print_bytes(bytes);
    }
}

impl Channel {
    /// Sends one frame, and waits until the device has taken it.
    fn frame(&self, kind: MessageKind, bytes: &[u8]) {
        let head = (kind as u32 | (bytes.len() as u32) << 8).to_le_bytes();
        let ticket = loop {
            {
                let _section = Kernel.irqs_off();
                let mut sender = lock(&Kernel, &self.sender);
                sender.take();
                if sender.is_idle() {
                    sender.fill(0, &[&head, bytes]);
                    let ticket = sender.post(0, HEAD + bytes.len(), false);
                    self.device.notify(device::SEND);
                    break ticket;
                }
            }
            Kernel.relax();
        };
        loop {
            {
                let _section = Kernel.irqs_off();
                let mut sender = lock(&Kernel, &self.sender);
                sender.take();
                if sender.is_over(ticket) {
                    return;
                }
            }
            Kernel.relax();
        }
    }
}

/// Waits until the device has taken the frame that a stopped CPU has sent, for a second at most.
/// Call it when all other CPUs have stopped: one of them may have the lock, and then has announced
/// nothing.
pub(crate) fn drain_in_panic() {
    let Some(mut sender) = CHANNEL.get().and_then(|channel| channel.sender.try_lock()) else {
        return;
    };
    let until = clock::now().saturating_add(PATIENCE);
    while !sender.is_idle() && clock::now() < until {
        sender.take();
        core::hint::spin_loop();
    }
}

/// Calls `with` with the bytes that have come next from the host, until it returns how many of
/// them it has used and these are not all. `from` is where it ended last. Returns where it ended,
/// if bytes are left: a buffer and a place in it. No interrupt handler calls it.
#[cfg(target_arch = "x86_64")]
pub(crate) fn receive(
    mut left: Option<Received>,
    mut with: impl FnMut(&[u8]) -> usize,
) -> Option<Received> {
    let channel = CHANNEL.get()?;
    let mut receiver = lock(&Kernel, &channel.receiver);
    let mut given = false;
    let rest = loop {
        let Some((place, from, to)) =
            left.or_else(|| receiver.take().map(|(at, len)| (at, 0, len)))
        else {
            break None;
        };
        let used = with(receiver.filled(place, from..to));
        if from + used < to {
            break Some((place, from + used, to));
        }
        receiver.post(place, PLACE, true);
        (left, given) = (None, true);
    };
    if given {
        channel.device.notify(device::RECEIVE);
    }
    rest
}

/// Bytes that have come and are not used yet: the buffer, and the place in it.
#[cfg(target_arch = "x86_64")]
pub(crate) type Received = (u16, usize, usize);
