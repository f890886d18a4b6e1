//! The console: a serial port. A line for programs begins with [`RECORD`] and is JSON; every other
//! line is text for people.

use core::fmt::{self, Write};
use spin::mutex::SpinMutex;
use uart_16550::{Config, Uart16550, backend::PioBackend};

/// The first character of a line of JSON (the record separator of ASCII).
pub(crate) const RECORD: char = '\x1e';

const PORT: u16 = 0x3f8;

static CONSOLE: SpinMutex<Option<Uart16550<PioBackend>>> = SpinMutex::new(None);

struct Serial<'a>(&'a mut Uart16550<PioBackend>);

impl Write for Serial<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.send_bytes_exact(text.as_bytes());
        Ok(())
    }
}

/// Initialises the port. Text printed earlier is lost.
pub(crate) fn start() {
    // SAFETY: the PC's first serial port; no other code uses it.
    if let Ok(mut port) = unsafe { Uart16550::new_port(PORT) }
        && port.init(Config::default()).is_ok()
    {
        *CONSOLE.lock() = Some(port);
    }
}

/// Prints, with interrupts off. Any context except a panic.
pub(crate) fn print(text: fmt::Arguments<'_>) {
    let _section = machine::Irqs::irqs_off(&crate::machine::Kernel);
    write(&mut machine::lock(&crate::machine::Kernel, &CONSOLE), text);
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

fn write(port: &mut Option<Uart16550<PioBackend>>, text: fmt::Arguments<'_>) {
    if let Some(port) = port {
        // A serial port does not fail.
        let _ = Serial(port).write_fmt(text);
    }
}

/// Prints a line.
#[macro_export]
macro_rules! println {
    ($($text:tt)*) => {
        $crate::console::print(format_args!("{}\n", format_args!($($text)*)))
    };
}
