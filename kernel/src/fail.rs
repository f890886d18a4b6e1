//! The end with a failure: all CPUs stop, it is said why, and the exit code says so too.

use crate::console::print_in_panic;
use crate::cpu::area;
use crate::exit::{Exit, exit};
use crate::trap::Backtrace;
use crate::{apic, clock, smp};
use core::fmt::Display;
use core::panic::PanicInfo;
use core::sync::atomic::{AtomicUsize, Ordering};
use machine::{AtomicCpuSet, CpuSet};

/// How long others may take to stop, in nanoseconds. A second, of a host that may have other things
/// to do.
const PATIENCE: u64 = 1_000_000_000;
const NOBODY: usize = usize::MAX;

/// The first CPU to fail: it tells of it.
static FAILED: AtomicUsize = AtomicUsize::new(NOBODY);
/// How often it has failed while it told of that.
static AGAIN: AtomicUsize = AtomicUsize::new(0);
/// CPUs that have stopped.
static STOPPED: AtomicCpuSet = AtomicCpuSet::new();

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
    // Relaxed, both: only who was first matters.
    match FAILED.compare_exchange(NOBODY, area::index(), Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => {
            stop_others();
            print_in_panic(format_args!("{what}\n"));
        }
        // Whoever tries to tell of that, too, may never end.
        Err(first) if first == area::index() => {
            // Relaxed: this CPU's own.
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

/// Stops all others that have started, whatever they do, and waits until they have: they may be
/// printing.
fn stop_others() {
    let mut others = smp::online();
    others.remove(area::cpu());
    if !apic::stop(&others) {
        return;
    }
    let until = clock::now().saturating_add(PATIENCE);
    let have_stopped = |stopped: CpuSet| others.iter().all(|cpu| stopped.contains(cpu));
    while !have_stopped(STOPPED.load()) && clock::now() < until {
        core::hint::spin_loop();
    }
}

/// Another CPU has failed, and this one is not to go on.
pub(crate) fn stopped() -> ! {
    STOPPED.insert(area::cpu());
    loop {
        x86_64::instructions::interrupts::disable();
        x86_64::instructions::hlt();
    }
}
