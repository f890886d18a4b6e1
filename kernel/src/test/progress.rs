//! Says every ten seconds that a trial still runs: where CPUs are many and processors few, one
//! takes a minute.

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

/// When the next line is due.
static NEXT: AtomicU64 = AtomicU64::new(NEVER);
static TRIAL: SpinMutex<Option<Trial>> = SpinMutex::new(None);

struct Trial {
    name: String,
    begun: u64,
}

/// A trial begins.
pub(super) fn begin(name: &str) {
    let now = clock::now();
    set(Some(Trial { name: name.into(), begun: now }));
    // Release: pairs with the Acquire in `tell`, which then finds the name.
    NEXT.store(now + EVERY, Ordering::Release);
}

/// It has ended.
pub(super) fn end() {
    // Relaxed: a tick that does not see it yet finds no name.
    NEXT.store(NEVER, Ordering::Relaxed);
    set(None);
}

fn set(trial: Option<Trial>) {
    // A tick on this CPU would find it locked, and say nothing.
    let _section = Kernel.irqs_off();
    let before = core::mem::replace(&mut *machine::lock(&Kernel, &TRIAL), trial);
    drop(before);
}

/// In a timer interrupt: one CPU says it, if it is time.
pub(crate) fn tell() {
    // Acquire: pairs with the Release in `begin`.
    let next = NEXT.load(Ordering::Acquire);
    if next == NEVER {
        return;
    }
    let now = clock::now();
    // Relaxed: it only says which CPU tells.
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
