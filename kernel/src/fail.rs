//! The failure path: all CPUs stop, the cause is printed, and the exit code says that it failed.

use crate::backtrace::Backtrace;
use crate::channel;
use crate::console::print_in_panic;
use crate::cpu::area;
use crate::exit::{Exit, exit};
use crate::{clock, irqchip, section};
use core::fmt::Display;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicUsize, Ordering};
use machine::{AtomicCpuSet, CpuSet};

/// Nanoseconds that other CPUs may take to stop: a second, because the host may be busy.
const PATIENCE: u64 = 1_000_000_000;
const NO_CPU: usize = usize::MAX;

/// The first CPU that failed. It reports.
static FAILED: AtomicUsize = AtomicUsize::new(NO_CPU);
/// The number of failures of that CPU while it reported.
static AGAIN: AtomicUsize = AtomicUsize::new(0);
/// CPUs that have stopped.
static STOPPED: AtomicCpuSet = AtomicCpuSet::new();

/// Reports an unexpected fault, and ends the machine.
pub(crate) fn fault(what: &dyn Display, back: Backtrace) -> ! {
    end(format_args!("FAULT on cpu{}: {what}\n{back}", area::index()))
}

#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    end(format_args!("PANIC on cpu{}: {info}\n{}", area::index(), Backtrace::here()))
}

fn end(what: core::fmt::Arguments<'_>) -> ! {
    section::disable_interrupts();
    // Relaxed, both: the exchange only elects the first CPU.
    match FAILED.compare_exchange(NO_CPU, area::index(), Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => {
            stop_others();
            channel::drain_in_panic();
            print_in_panic(format_args!("{what}\n"));
        }
        // A report of this second failure might fail again, without end.
        Err(first) if first == area::index() => {
            // Relaxed: only this CPU uses it.
            if AGAIN.fetch_add(1, Ordering::Relaxed) == 0 {
                print_in_panic(format_args!(
                    "... and another failure while this one was told of\n"
                ));
            }
        }
        Err(_) => stopped(),
    }
    exit(Exit::Panic)
}

/// Stops all other CPUs that have started, and waits until they have stopped: one may be printing.
fn stop_others() {
    let mut others = area::online();
    others.remove(area::cpu());
    if !irqchip::stop(&others) {
        return;
    }
    let until = clock::now().saturating_add(PATIENCE);
    let have_stopped = |stopped: CpuSet| others.iter().all(|cpu| stopped.contains(cpu));
    while !have_stopped(STOPPED.load()) && clock::now() < until {
        core::hint::spin_loop();
    }
}

/// Another CPU has failed. This CPU stops.
pub(crate) fn stopped() -> ! {
    STOPPED.insert(area::cpu());
    loop {
        section::disable_interrupts();
        section::halt();
    }
}
