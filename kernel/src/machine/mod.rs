//! The traits of `machine` for this kernel: a second implementation beside the machines in
//! software.
//!
//! | trait | how |
//! |---|---|
//! | `Cpus`, `Irqs` | a word in the CPU's area, `cli` and `sti` (`cpu::area`) |
//! | `Step` | `step` is empty; `relax` pauses and answers cross-calls |
//! | `Tlb` | `tlb`, `shootdown` |
//! | `Memory`, `FrameSource` | the direct map; `machine::Frames` (`memory`) |
//! | `Translated` | accesses that may fault (`translated`) |

mod memory;
pub(crate) mod shootdown;
mod tlb;
mod translated;

use crate::cpu::area;
use crate::trap::entry::WAKE;
use crate::{apic, smp, turns};
use machine::{CpuId, CpuSet, Cpus, Irqs, Step};

pub(crate) use memory::start as start_memory;
pub(crate) use translated::compare_exchange;

/// The machine on which the kernel runs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kernel;

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
        smp::online()
    }

    fn hurry(&self, cpus: &CpuSet) {
        let _section = self.irqs_off();
        let mut others = *cpus;
        others.remove(self.current());
        apic::interrupt(&others, WAKE);
        if cpus.contains(self.current()) {
            apic::interrupt_here(WAKE);
        }
    }
}

// SAFETY: `cpu::area` has the argument.
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

// SAFETY: `step` is empty. `relax` executes requested flushes, and keeps short turns.
unsafe impl Step for Kernel {
    #[inline]
    fn relax(&self) {
        shootdown::poll();
        if !turns::waiting_counts() {
            core::hint::spin_loop();
        }
    }
}
