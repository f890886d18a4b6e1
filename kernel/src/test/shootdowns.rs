//! TLB shootdowns in two situations that can deadlock kernels: two CPUs request flushes of each
//! other at once; and a CPU gets a request while it spins, with interrupts off, for a lock that the
//! requester holds.

use super::sections::{PATIENCE, wait_for};
use crate::clock;
use crate::machine::Kernel;
use crate::smp::everywhere;
use alloc::format;
use alloc::string::String;
use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use machine::{CpuId, CpuSet, Cpus, Flush, Irqs, Tlb, lock};
use spin::mutex::SpinMutex;

/// Shootdowns of all CPUs together. With fewer processors than CPUs, each waits for CPUs that are
/// not running.
const TIMES: usize = 200;
/// Up to this many CPUs, all shootdowns are made with the lock held, one after the other. With more
/// CPUs each takes longer, so their number is inversely proportional to the number of CPUs.
const FEW: usize = 4;
/// Nanoseconds of a section that holds a flush back.
const LONG: u64 = 20_000_000;

/// Shootdowns of each CPU.
fn times() -> usize {
    TIMES.div_ceil(Kernel.count())
}

/// All CPUs request flushes of all others, with interrupts on and off.
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

/// The CPU that holds a lock requests flushes of all CPUs, which wait for the lock with interrupts
/// off.
pub(super) fn beside_spinning_cpus() -> Result<(), String> {
    let all = CpuSet::first(Kernel.count());
    let wanted = TIMES * FEW / Kernel.count().max(FEW);
    let turns = SpinMutex::new(0);
    everywhere(|_| {
        loop {
            // Interrupts are on between two turns, so that a tick can print progress.
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

/// A flush by interrupts waits for the end of interrupt-free sections. One that the hardware
/// broadcasts does not: it ends while other CPUs are in theirs.
pub(super) fn held_back() -> Result<(), String> {
    let (walking, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let others = Kernel.count() - 1;
    everywhere(|cpu| {
        if cpu == 0 {
            // Acquire: pairs with the Release below: the other CPUs are in their sections.
            wait_for("walks", || walking.load(Ordering::Acquire) == others)?;
            // With one CPU there is no request, and it returns at once.
            Kernel.flush_on(&CpuSet::first(Kernel.count()), Flush::All);
            // Release: pairs with the Acquire below.
            over.store(true, Ordering::Release);
            return Ok(());
        }
        let early = {
            let _section = Kernel.irqs_off();
            walking.fetch_add(1, Ordering::Release);
            let patience = if Kernel.interrupts() { LONG } else { PATIENCE };
            let until = clock::now() + patience;
            let mut early = false;
            while !early && clock::now() < until {
                early = over.load(Ordering::Acquire);
                // Not `relax`, which would answer requests.
                spin_loop();
            }
            early
        };
        match (Kernel.interrupts(), early) {
            (true, true) => return Err(format!("cpu{cpu}: a flush ended during a walk")),
            (false, false) => return Err(format!("cpu{cpu}: a flush waits for a walk")),
            _ => {}
        }
        wait_for("the flush", || over.load(Ordering::Acquire))
    })?;
    // No CPU requests anything of the only CPU.
    Kernel.flush_on(&CpuSet::only(CpuId::default()), Flush::All);
    Ok(())
}
