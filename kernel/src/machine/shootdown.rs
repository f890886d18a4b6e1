//! Flushes that CPUs ask of each other: `machine::Calls`, with the local APIC's interrupts.

use super::{Kernel, tlb};
use crate::cpu::area::{self, bump};
use crate::trap::entry::FLUSH;
use crate::{apic, smp};
use machine::{Calls, CpuSet, Cpus, Flush};
use spin::Once;

static CALLS: Once<Calls<Flush>> = Once::new();

/// Makes ready for so many CPUs.
pub(crate) fn start(cpus: usize) {
    CALLS.call_once(|| Calls::try_new(cpus).expect("the heap has just been made"));
}

/// Carries out what is asked of this CPU.
#[inline]
pub(crate) fn answer() {
    if let Some(calls) = CALLS.get() {
        calls.answer(area::cpu(), tlb::flush);
    }
}

/// Has these CPUs flush, and waits until they have.
pub(super) fn shoot(cpus: &CpuSet, what: Flush) {
    let Some(calls) = CALLS.get() else { return tlb::flush(what) };
    let running = cpus.intersection(&smp::online());
    let mut others = running;
    others.remove(Kernel.current());
    let interrupt = |whom: &CpuSet| {
        bump(&area::here().counts.shootdowns, others.len() as u64);
        apic::interrupt(whom, FLUSH);
    };
    calls.ask(&Kernel, &running, what, interrupt, tlb::flush);
}
