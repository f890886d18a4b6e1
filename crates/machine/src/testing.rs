//! The machine of this crate's own tests: host threads that set their CPU number, and nothing else.

use crate::{CpuId, CpuSet, Cpus, Irqs, Step};
use core::cell::Cell;
use std::sync::Arc;

std::thread_local! {
    static CPU: Cell<usize> = const { Cell::new(0) };
    static DEPTH: Cell<usize> = const { Cell::new(0) };
}

#[derive(Clone, Debug)]
pub(crate) struct Host(Arc<usize>);

impl Host {
    pub(crate) fn new(cpus: usize) -> Host {
        Host(Arc::new(cpus))
    }

    /// Makes this thread that CPU.
    pub(crate) fn be(&self, cpu: usize) {
        assert!(cpu < *self.0);
        CPU.set(cpu);
    }
}

// SAFETY: each test gives every CPU to one thread.
unsafe impl Cpus for Host {
    fn count(&self) -> usize {
        *self.0
    }
    fn current(&self) -> CpuId {
        CpuId::new(CPU.get()).unwrap()
    }
    fn online(&self) -> CpuSet {
        CpuSet::first(*self.0)
    }
}

// SAFETY: it yields to other threads, and does nothing else.
unsafe impl Step for Host {
    fn relax(&self) {
        std::thread::yield_now();
    }
}

// SAFETY: there are no interrupts, and a thread does not change its CPU.
unsafe impl Irqs for Host {
    fn irq_enter(&self) {
        DEPTH.set(DEPTH.get() + 1);
    }
    unsafe fn irq_leave(&self) {
        DEPTH.set(DEPTH.get().checked_sub(1).unwrap());
    }
    fn irqs_enabled(&self) -> bool {
        DEPTH.get() == 0
    }
}
