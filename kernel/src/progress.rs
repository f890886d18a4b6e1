//! Prints every ten seconds that a trial still runs: with many CPUs on few processors, one takes a
//! minute.

use crate::machine::Kernel;
use crate::{clock, println};
use alloc::string::String;
use core::sync::atomic::{AtomicU64, Ordering};
use machine::Irqs;
use spin::mutex::SpinMutex;

/// Nanoseconds between two lines.
const EVERY: u64 = 10_000_000_000;
/// No trial runs.
const NEVER: u64 = u64::MAX;

/// The time of the next line.
static NEXT: AtomicU64 = AtomicU64::new(NEVER);
static TRIAL: SpinMutex<Option<Trial>> = SpinMutex::new(None);

struct Trial {
    name: String,
    begun: u64,
}

/// Begins a trial.
pub(crate) fn begin(name: &str) {
    let now = clock::now();
    set(Some(Trial { name: name.into(), begun: now }));
    // Release: pairs with the Acquire in `tell`, which then finds the name.
    NEXT.store(now + EVERY, Ordering::Release);
}

/// Ends a trial.
pub(crate) fn end() {
    // Relaxed: a tick that does not see it yet finds no name.
    NEXT.store(NEVER, Ordering::Relaxed);
    set(None);
}

fn set(trial: Option<Trial>) {
    // A tick on this CPU would find the name locked, and print nothing.
    let _section = Kernel.irqs_off();
    let before = core::mem::replace(&mut *machine::lock(&Kernel, &TRIAL), trial);
    drop(before);
}

/// Called in timer interrupts: one CPU prints the line if it is due.
pub(crate) fn tell() {
    // Acquire: pairs with the Release in `begin`.
    let next = NEXT.load(Ordering::Acquire);
    if next == NEVER {
        return;
    }
    let now = clock::now();
    // Relaxed: it only elects the CPU that prints.
    if now < next
        || NEXT.compare_exchange(next, now + EVERY, Ordering::Relaxed, Ordering::Relaxed).is_err()
    {
        return;
    }
    if let Some(trial) = TRIAL.try_lock().as_deref().and_then(Option::as_ref) {
        let seconds = (now - trial.begun) / 1_000_000_000;
        println!("trial {:<12} runs    {seconds:>6} s", trial.name);
    }
}
