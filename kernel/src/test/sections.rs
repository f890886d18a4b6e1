//! Interrupt-free sections, and the timer interrupts that they hold off.

use crate::cpu::area;
use crate::machine::Kernel;
use crate::smp::everywhere;
use crate::{clock, irqchip};
use alloc::format;
use alloc::string::String;
use core::sync::atomic::{AtomicUsize, Ordering};
use machine::{CpuSet, Cpus, Irqs, Step};

/// Longer than some ticks, in nanoseconds.
pub(super) const SOME_TICKS: u64 = 20_000_000;
/// Nanoseconds to wait for an event that should come at once: a hundred seconds, because the host
/// may be busy.
pub(super) const PATIENCE: u64 = 100_000_000_000;

/// The ticks of this CPU.
fn ticks_here() -> u64 {
    // Relaxed: only this CPU writes it.
    area::here().stats.ticks.load(Ordering::Relaxed)
}

/// Waits until a condition is true, and returns an error if it never is.
pub(super) fn wait_for(what: &str, mut is: impl FnMut() -> bool) -> Result<(), String> {
    let until = clock::now() + PATIENCE;
    while !is() {
        if clock::now() > until {
            let why = "not within 100 s: it hangs, or the host is very busy";
            return Err(format!("cpu{}: {what}: {why}", area::index()));
        }
        Kernel.relax();
    }
    Ok(())
}

/// The timer of each CPU ticks, and a tick can be brought forward.
pub(super) fn ticks() -> Result<(), String> {
    everywhere(|_| {
        let before = ticks_here();
        wait_for("three ticks", || ticks_here() >= before + 3)
    })?;
    let met = AtomicUsize::new(0);
    everywhere(|cpu| {
        // From here on, every tick is a requested one.
        irqchip::let_timer_interrupt(false);
        // The IPI that woke this CPU may arrive late, once.
        let done = (1..=3).try_for_each(|meeting| {
            let before = ticks_here();
            meet(&met, meeting)?;
            if cpu == 0 {
                Kernel.hurry(&CpuSet::first(Kernel.count()));
            }
            wait_for("the tick of a CPU that is hurried", || ticks_here() > before)
        });
        irqchip::let_timer_interrupt(true);
        done
    })
}

/// Waits until all CPUs have come here `meeting` times.
pub(super) fn meet(met: &AtomicUsize, meeting: usize) -> Result<(), String> {
    // AcqRel, Acquire: everything before the meeting on any CPU happens before everything after it.
    met.fetch_add(1, Ordering::AcqRel);
    wait_for("the others", || met.load(Ordering::Acquire) >= meeting * Kernel.count())
}

/// No interrupt comes within a section, even if sections nest and end in any order. A pending
/// interrupt comes at its end.
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
        // Handlers leave the depth as they find it.
        interrupted()?;
        if Kernel.irqs_enabled() { Ok(()) } else { Err(format!("cpu{cpu}: interrupts stay off")) }
    })
}

/// Interrupts this CPU within a section. The timer is off, because it would make up for a lost
/// interrupt.
fn interrupted() -> Result<(), String> {
    irqchip::let_timer_interrupt(false);
    let before = ticks_here();
    {
        let _section = Kernel.irqs_off();
        irqchip::wake_self();
    }
    let came = wait_for("an interrupt of a section", || ticks_here() > before);
    irqchip::let_timer_interrupt(true);
    came
}
