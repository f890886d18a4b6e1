//! The end with a failure: all CPUs stop, it is said why, and the exit code says so too.

use crate::console::print_in_panic;
use crate::cpu::area;
use crate::exit::{Exit, exit};
use crate::trap::Backtrace;
use core::fmt::Display;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicBool, Ordering};

/// The first CPU to fail tells of it.
static FAILED: AtomicBool = AtomicBool::new(false);

/// A fault that nobody expected.
pub(crate) fn fault(what: &dyn Display, back: Backtrace) -> ! {
    end(format_args!("FAULT on cpu{}: {what}\n{back}", area::index()))
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    end(format_args!("PANIC on cpu{}: {info}\n{}", area::index(), Backtrace::here()))
}

fn end(what: core::fmt::Arguments<'_>) -> ! {
    x86_64::instructions::interrupts::disable();
    // Relaxed: only who was first matters.
    if FAILED.swap(true, Ordering::Relaxed) {
        stopped();
    }
    crate::apic::stop_others();
    print_in_panic(format_args!("{what}\n"));
    exit(Exit::Panic)
}

/// Another CPU has failed, and this one is not to go on.
pub(crate) fn stopped() -> ! {
    loop {
        x86_64::instructions::interrupts::disable();
        x86_64::instructions::hlt();
    }
}
