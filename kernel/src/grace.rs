//! Grace periods of readers on this kernel: CPUs announce from their timer and their idle loop.

use crate::cpu::area;
use crate::machine::Kernel;
use ::grace::quiescent::{Domain, Periods, Quiescent, Shared, Slot};
use machine::{IrqOff, Irqs, MAX_CPUS};

static SHARED: Shared = Shared::new();
static SLOTS: [Slot; MAX_CPUS] = [const { Slot::new() }; MAX_CPUS];

/// The kernel's CPUs, for the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelCpus;

/// Reclamation by quiescent states of the kernel's CPUs.
pub(crate) type Grace = Quiescent<KernelCpus>;

// SAFETY: there are no threads: what runs on a CPU stays there, and only interrupts come in
// between, which `exclusive` keeps off. There is one state.
unsafe impl Domain for KernelCpus {
    type Exclusive = IrqOff<'static, Kernel>;

    #[inline(always)]
    fn cpu() -> usize {
        area::index()
    }

    #[inline(always)]
    fn exclusive() -> Self::Exclusive {
        Kernel.irqs_off()
    }

    #[inline(always)]
    fn with<T>(f: impl FnOnce(Periods<'_>) -> T) -> T {
        f(Periods::new(&SHARED, &SLOTS))
    }
}

/// This CPU is in no section, and what has come due may be freed.
pub(crate) fn quiet() {
    Grace::quiescent_state();
    Grace::reclaim(usize::MAX);
}
