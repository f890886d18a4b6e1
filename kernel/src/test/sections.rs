//! Sections without interrupts, and the timer that they hold off.

use super::everywhere;
use crate::cpu::area;
use crate::machine::Kernel;
use crate::{apic, clock};
use alloc::format;
use alloc::string::String;
use core::sync::atomic::Ordering;
use machine::{CpuSet, Cpus, Irqs, Step};

/// Longer than some ticks, in nanoseconds.
const SOME_TICKS: u64 = 20_000_000;
/// As long as is waited for what ought to come at once: ten seconds, of a host that may have other things to do.
const PATIENCE: u64 = 10_000_000_000;

/// Ticks of this CPU so far.
fn ticks_here() -> u64 {
    // Relaxed: this CPU's own.
    area::here().counts.ticks.load(Ordering::Relaxed)
}

/// Waits until something is true, and says so if it does not come.
pub(super) fn wait_for(what: &str, mut is: impl FnMut() -> bool) -> Result<(), String> {
    let until = clock::now() + PATIENCE;
    while !is() {
        if clock::now() > until {
            return Err(format!("cpu{}: {what}: not within ten seconds", area::index()));
        }
        Kernel.relax();
    }
    Ok(())
}

/// The timer of each CPU ticks, and CPUs can be hurried.
pub(super) fn ticks() -> Result<(), String> {
    everywhere(|_| {
        let before = ticks_here();
        wait_for("three ticks", || ticks_here() >= before + 3)
    })?;
    let before: u64 = area::areas().iter().map(ticks_of).sum();
    for _ in 0..100 {
        Kernel.hurry(&CpuSet::first(Kernel.count()));
    }
    let enough =
        || area::areas().iter().map(ticks_of).sum::<u64>() > before + Kernel.count() as u64;
    wait_for("ticks of CPUs that are hurried", enough)
}

fn ticks_of(area: &area::Area) -> u64 {
    // Relaxed: a look.
    area.counts.ticks.load(Ordering::Relaxed)
}

/// Within a section, which may have others in it that end in any order, no interrupt comes; one that was due comes at its end.
pub(super) fn sections() -> Result<(), String> {
    everywhere(|cpu| {
        if !Kernel.irqs_enabled() {
            return Err(format!("cpu{cpu}: interrupts are off in a program"));
        }
        let outer = Kernel.irqs_off();
        let before = ticks_here();
        let inner = Kernel.irqs_off();
        clock::wait(SOME_TICKS);
        drop(outer);
        clock::wait(SOME_TICKS);
        let (enabled, within) = (Kernel.irqs_enabled(), ticks_here());
        drop(inner);
        if enabled || within != before {
            return Err(format!("cpu{cpu}: {} ticks in a section", within - before));
        }
        wait_for("the tick that was due", || ticks_here() > before)?;
        // Handlers leave it as they find it.
        apic_interrupts_here();
        if Kernel.irqs_enabled() { Ok(()) } else { Err(format!("cpu{cpu}: interrupts stay off")) }
    })
}

/// Interrupts this CPU, within a section and without.
fn apic_interrupts_here() {
    let before = ticks_here();
    {
        let _section = Kernel.irqs_off();
        apic::interrupt_here(crate::trap::entry::WAKE);
    }
    while ticks_here() == before {
        Kernel.relax();
    }
}
