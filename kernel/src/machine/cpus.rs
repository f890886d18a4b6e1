//! CPUs, interrupt-free sections, and waiting.

use super::kernel::Kernel;
use crate::arch::{self, irqchip};
use crate::cpu::area;
use machine::{CpuId, CpuSet, Cpus, Irqs, Step};

// SAFETY: code of the kernel never moves to another CPU (`user`), and the numbers are those of the
// areas.
unsafe impl Cpus for Kernel {
    #[inline]
    fn count(&self) -> usize {
        area::areas().len()
    }

    #[inline(always)]
    fn current(&self) -> CpuId {
        area::cpu()
    }

    fn online(&self) -> CpuSet {
        area::online()
    }

    fn hurry(&self, cpus: &CpuSet) {
        let _section = self.irqs_off();
        let mut others = *cpus;
        others.remove(self.current());
        irqchip::wake(&others);
        if cpus.contains(self.current()) {
            irqchip::wake_self();
        }
    }
}

// SAFETY: `arch::section` has the argument.
unsafe impl Irqs for Kernel {
    #[inline(always)]
    fn irq_enter(&self) {
        area::irq_enter();
    }

    #[inline(always)]
    unsafe fn irq_leave(&self) {
        // SAFETY: the caller's promise is passed on.
        unsafe { area::irq_leave() }
    }

    fn irqs_enabled(&self) -> bool {
        area::here().depth() == 0
    }
}

// SAFETY: `step` is empty. `relax` executes requested flushes.
unsafe impl Step for Kernel {
    #[inline]
    fn relax(&self) {
        arch::relax();
    }
}
