//! Which CPU of which machine the host thread is at this moment.

use crate::cpu::Cpu;
use crate::drive::Turn;
use crate::sim::Inner;
use std::cell::Cell;
use std::ptr;

/// What a host thread is. Whoever sets it keeps all that it points to alive until it is set to
/// something else.
#[derive(Clone, Copy)]
pub(crate) struct Here {
    pub(crate) machine: *const Inner,
    /// One of that machine's.
    pub(crate) cpu: *const Cpu,
    /// The deterministic scheduler that runs this, if one does.
    pub(crate) turn: *const Turn,
    /// Whether a driver is there to take a report; otherwise a violation is a panic.
    pub(crate) driven: bool,
    /// Whether a step has nothing to do but to count, and to look for mail and at the timer: no
    /// scheduler, no checks, no events.
    pub(crate) quick: bool,
}

impl Here {
    pub(crate) const NOWHERE: Here = Here {
        machine: ptr::null(),
        cpu: ptr::null(),
        turn: ptr::null(),
        driven: false,
        quick: false,
    };
}

thread_local! {
    static HERE: Cell<Here> = const { Cell::new(Here::NOWHERE) };
}

#[inline]
pub(crate) fn get() -> Here {
    HERE.get()
}

#[inline]
pub(crate) fn set(here: Here) -> Here {
    HERE.replace(here)
}

/// Why a thread may not become a CPU now.
pub(crate) const BEGINS: &str =
    "a section is open on the CPU that this thread is: its guard could end on another";
/// Why it may not cease to be one.
pub(crate) const ENDS: &str =
    "a section is open at the end of what ran as a CPU: its guard could end on another";

/// A thread unwinds from what ran as a CPU, and somebody else may have a guard of that CPU: there
/// is nowhere that it could end rightly.
#[cold]
pub(crate) fn lost_guard() -> ! {
    eprintln!("{ENDS}");
    std::process::abort()
}

/// Puts back what the thread was before.
pub(crate) struct Restore(pub(crate) Here);

impl Drop for Restore {
    fn drop(&mut self) {
        HERE.set(self.0);
    }
}
