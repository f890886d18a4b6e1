//! Flushes that CPUs ask of each other. These hung kernels: two CPUs that ask each other at once,
//! and a CPU that is asked while it spins, interrupts off, for a lock that the one who asks holds.

use super::everywhere;
use super::sections::wait_for;
use crate::clock;
use crate::machine::Kernel;
use alloc::format;
use alloc::string::String;
use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use machine::{CpuId, CpuSet, Cpus, Flush, Irqs, Tlb, lock};
use spin::mutex::SpinMutex;

/// Flushes of all CPUs together. Where there are fewer processors than CPUs, each waits for CPUs
/// that are not running.
const TIMES: usize = 200;
/// Up to so many CPUs all of these are made with the lock held, one after the other. Beyond, each
/// takes so much longer that their number is in inverse proportion to that of the CPUs.
const FEW: usize = 4;
/// How long a section lasts that holds a flush back, in nanoseconds.
const LONG: u64 = 20_000_000;

/// Flushes of each CPU.
fn times() -> usize {
    TIMES.div_ceil(Kernel.count())
}

/// All CPUs ask all others, with interrupts on and off.
pub(super) fn all_at_once() -> Result<(), String> {
    let all = CpuSet::first(Kernel.count());
    everywhere(|cpu| {
        for time in 0..times() {
            let _section = (time % 2 == cpu % 2).then(|| Kernel.irqs_off());
            Kernel.flush_on(&all, Flush::All);
        }
        Ok(())
    })
}

/// Whoever has the lock asks all CPUs, which wait for the lock with interrupts off.
pub(super) fn beside_who_spins() -> Result<(), String> {
    let all = CpuSet::first(Kernel.count());
    let wanted = TIMES * FEW / Kernel.count().max(FEW);
    let turns = SpinMutex::new(0);
    everywhere(|_| {
        loop {
            // Between two turns interrupts are on: a tick may tell that the trial still runs.
            let _section = Kernel.irqs_off();
            let mut turn = lock(&Kernel, &turns);
            if *turn == wanted {
                return Ok(());
            }
            Kernel.flush_on(&all, Flush::All);
            *turn += 1;
        }
    })?;
    let turns = turns.into_inner();
    if turns == wanted { Ok(()) } else { Err(format!("{turns} turns, not {wanted}")) }
}

/// A flush waits for a section without interrupts to end: what a walk without a lock relies on
/// (I3).
pub(super) fn held_back() -> Result<(), String> {
    let (walking, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let others = Kernel.count() - 1;
    everywhere(|cpu| {
        if cpu == 0 {
            // Acquire: pairs with the Release below: they are in their sections.
            wait_for("walks", || walking.load(Ordering::Acquire) == others)?;
            // On one CPU nobody is asked, and it is over at once.
            Kernel.flush_on(&CpuSet::first(Kernel.count()), Flush::All);
            // Release: pairs with the Acquire below.
            over.store(true, Ordering::Release);
            return Ok(());
        }
        let early = {
            let _section = Kernel.irqs_off();
            walking.fetch_add(1, Ordering::Release);
            let until = clock::now() + LONG;
            let mut early = false;
            while clock::now() < until {
                early |= over.load(Ordering::Acquire);
                // Not `relax`, which would answer.
                spin_loop();
            }
            early
        };
        if early {
            return Err(format!("cpu{cpu}: a flush ended during a walk"));
        }
        wait_for("the flush", || over.load(Ordering::Acquire))
    })?;
    // A CPU alone is asked by nobody.
    Kernel.flush_on(&CpuSet::only(CpuId::default()), Flush::All);
    Ok(())
}
