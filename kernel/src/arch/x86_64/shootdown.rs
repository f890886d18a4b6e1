//! TLB shootdowns: `machine::CrossCall` with IPIs of the local APIC.

use super::tlb;
use crate::apic;
use crate::cpu::area::{self, bump};
use crate::machine::Kernel;
use crate::trap::vector::FLUSH;
use machine::{CpuSet, Cpus, CrossCall, Flush, Irqs};
use spin::Once;

static CALLS: Once<CrossCall<Flush, Kernel>> = Once::new();

/// Prepares the cross-calls for all CPUs.
pub(crate) fn start() {
    CALLS.call_once(|| CrossCall::try_new(Kernel).expect("the heap has just been made"));
}

/// Executes the flushes requested of this CPU.
#[inline]
pub(crate) fn poll() {
    if let Some(calls) = CALLS.get() {
        calls.poll(tlb::flush_for_another);
    }
}

/// Makes these CPUs flush, and waits until they have. This CPU flushes, if it is one of them, while
/// it waits for the others.
pub(super) fn shoot(cpus: &CpuSet, what: Flush) {
    let _section = Kernel.irqs_off();
    let mut others = cpus.intersection(&area::online());
    others.remove(Kernel.current());
    let here = || {
        if cpus.contains(Kernel.current()) {
            tlb::flush_with_others(what);
        }
    };
    match CALLS.get().filter(|_| !others.is_empty()) {
        None => here(),
        Some(calls) => {
            bump(&area::here().stats.shootdowns, others.len() as u64);
            let interrupt = |targets: &CpuSet| {
                apic::interrupt(targets, FLUSH);
                here();
            };
            calls.call(&others, what, interrupt, tlb::flush_for_another);
        }
    }
}
