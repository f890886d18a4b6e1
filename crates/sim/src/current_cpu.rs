//! Which CPU of which machine the host thread is at this moment.

use crate::cpu::Cpu;
use crate::drive::Turn;
use crate::sim::Inner;
use std::cell::Cell;
use std::ptr;

/// The identity of a host thread. The code that sets it keeps all that it points to alive until it
/// sets another.
#[derive(Clone, Copy)]
pub(crate) struct CurrentCpu {
    pub(crate) machine: *const Inner,
    /// One of that machine's.
    pub(crate) cpu: *const Cpu,
    /// The deterministic scheduler that runs the thread, if there is one.
    pub(crate) turn: *const Turn,
    /// Whether a driver takes a report; otherwise a violation is a panic.
    pub(crate) driven: bool,
    /// Whether a step only has to count, and to look for mail and at the timer: no scheduler, no
    /// checks, no events.
    pub(crate) quick: bool,
}

impl CurrentCpu {
    pub(crate) const NOWHERE: CurrentCpu = CurrentCpu {
        machine: ptr::null(),
        cpu: ptr::null(),
        turn: ptr::null(),
        driven: false,
        quick: false,
    };
}

thread_local! {
    static HERE: Cell<CurrentCpu> = const { Cell::new(CurrentCpu::NOWHERE) };
}

#[inline]
pub(crate) fn get() -> CurrentCpu {
    HERE.get()
}

#[inline]
pub(crate) fn set(here: CurrentCpu) -> CurrentCpu {
    HERE.replace(here)
}

/// Panic message: a thread must not become a CPU now.
pub(crate) const BEGINS: &str =
    "a section is open on the CPU that this thread is: end it before the thread becomes another";
/// Panic message: the thread must not cease to be a CPU now.
pub(crate) const ENDS: &str =
    "a section is open at the end of a program: drop its guard on the CPU that took it";

/// Called when a program unwinds with an open section. Its guard may still exist elsewhere, and has
/// no CPU left on which to be dropped.
#[cold]
pub(crate) fn lost_guard() -> ! {
    eprintln!("{ENDS}");
    std::process::abort()
}

/// Restores the previous identity.
pub(crate) struct Restore(pub(crate) CurrentCpu);

impl Drop for Restore {
    fn drop(&mut self) {
        HERE.set(self.0);
    }
}

#[cold]
pub(crate) fn not_a_cpu() -> ! {
    panic!("this thread is not a CPU of this machine: use Sim::on_cpu, sim::threads or sim::seeded")
}
