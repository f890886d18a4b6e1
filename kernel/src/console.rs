//! The console: a serial port. What programs are to read begins with [`RECORD`] and is one line of
//! JSON; all else is text for people.

use core::fmt::{self, Write};
use spin::mutex::SpinMutex;
use uart_16550::{Config, Uart16550, backend::PioBackend};

/// What a line of JSON begins with (ASCII's record separator).
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

/// Makes the port ready. What is printed before is lost.
pub(crate) fn start() {
    // SAFETY: the PC's first serial port; nobody else uses it.
    if let Ok(mut port) = unsafe { Uart16550::new_port(PORT) }
        && port.init(Config::default()).is_ok()
    {
        *CONSOLE.lock() = Some(port);
    }
}

/// Prints. Any context but a panic's; interrupts are off meanwhile.
pub(crate) fn print(text: fmt::Arguments<'_>) {
    let _section = machine::Irqs::irqs_off(&crate::machine::Kernel);
    write(&mut machine::lock(&crate::machine::Kernel, &CONSOLE), text);
}

/// Prints, whoever has the console: all others have been stopped, perhaps in the middle of a line.
pub(crate) fn print_in_panic(text: fmt::Arguments<'_>) {
    let cut = CONSOLE.is_locked();
    if cut {
        // SAFETY: he who has locked it has been stopped, or is this CPU, which will not go on.
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
