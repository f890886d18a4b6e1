//! The console: a serial port, or the channel once that is open. A line for programs begins with
//! [`RECORD`] and is JSON; every other line is text for people.

use crate::arch::serial::Port;
use crate::channel;
use core::fmt::{self, Write};
use spin::mutex::SpinMutex;

/// The first character of a line of JSON (the record separator of ASCII).
#[cfg(target_arch = "x86_64")]
pub(crate) const RECORD: char = '\x1e';

static CONSOLE: SpinMutex<Option<Port>> = SpinMutex::new(None);

impl Write for Port {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.send(text.as_bytes());
        Ok(())
    }
}

/// Initialises the port. Text printed earlier is lost.
pub(crate) fn start() {
    // SAFETY: no other code uses the port.
    *CONSOLE.lock() = unsafe { Port::start() };
}

/// Prints: while programs run by the channel, so that the host gets it in order with their output,
/// else by the port, with interrupts off. Any context except a panic.
pub(crate) fn print(text: fmt::Arguments<'_>) {
    if channel::is_open() {
        return channel::Lines::send(text);
    }
    let _section = machine::Irqs::irqs_off(&crate::machine::Kernel);
    write(&mut machine::lock(&crate::machine::Kernel, &CONSOLE), text);
}

/// Sends bytes of a program by the port, where there is no channel.
pub(crate) fn print_bytes(bytes: &[u8]) {
    let _section = machine::Irqs::irqs_off(&crate::machine::Kernel);
    if let Some(port) = &mut *machine::lock(&crate::machine::Kernel, &CONSOLE) {
        port.send(bytes);
    }
}

/// Prints without waiting for the console's lock: all other CPUs have been stopped, perhaps in the
/// middle of a line.
pub(crate) fn print_in_panic(text: fmt::Arguments<'_>) {
    let cut = CONSOLE.is_locked();
    if cut {
        // SAFETY: the CPU that holds the lock has been stopped, or is this CPU, which does not
        // continue.
        unsafe { CONSOLE.force_unlock() };
    }
    let begin = if cut { "\n" } else { "" };
    write(&mut CONSOLE.lock(), format_args!("{begin}{text}"));
}

fn write(port: &mut Option<Port>, text: fmt::Arguments<'_>) {
    if let Some(port) = port {
        // A serial port does not fail.
        let _ = port.write_fmt(text);
    }
}

/// Prints a line.
#[macro_export]
macro_rules! println {
    ($($text:tt)*) => {
        $crate::console::print(format_args!("{}\n", format_args!($($text)*)))
    };
}
