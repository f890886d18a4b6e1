//! Grace periods of readers on this kernel. CPUs report quiescent states in their timer interrupt
//! and in their idle loop.

use crate::cpu::area;
use crate::machine::Kernel;
use ::grace::quiescent::{CpuSlot, Domain, Periods, Quiescent, Shared};
use machine::{IrqOff, Irqs, MAX_CPUS};

static SHARED: Shared = Shared::new();
static SLOTS: [CpuSlot; MAX_CPUS] = [const { CpuSlot::new() }; MAX_CPUS];

/// The CPUs of this kernel, for the engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelCpus;

/// Reclamation by quiescent states of this kernel's CPUs.
pub(crate) type Grace = Quiescent<KernelCpus>;

// SAFETY: code of the kernel stays on its CPU, also that of a call of a thread (`user`). Only
// interrupts come in between, and `exclusive` keeps them off. There is one state.
unsafe impl Domain for KernelCpus {
    const PREEMPTED: bool = false;
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

/// Reports that this CPU is in no section, and frees the objects that are due.
pub(crate) fn quiet() {
    Grace::quiescent_state();
    Grace::reclaim(usize::MAX);
}
