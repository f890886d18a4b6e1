//! Jobs, one for each CPU, and the idle loop.

use super::tlb_grace;
use crate::arch::irqchip;
use crate::cpu::area;
use crate::cpu::job::Job;
use crate::grace::{Grace, quiet};
use crate::machine::Kernel;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::mem;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};
use machine::{CpuId, CpuSet, Cpus, Host, Irqs, Program, Step};

/// This machine, for trials and experiments.
pub(crate) fn host() -> Host<'static, Kernel> {
    Host { machine: &Kernel, run: &run, quiet }
}

/// Runs a program on each CPU at once, with the CPU's number. Returns the first error.
pub(crate) fn everywhere(
    program: impl Fn(usize) -> Result<(), String> + Sync,
) -> Result<(), String> {
    host().on_each(Kernel.count(), program).into_iter().flatten().collect()
}

/// Runs programs at once and waits for all: the first on this CPU, which is the boot CPU, the
/// others on the CPUs that follow.
///
/// # Panics
/// There are more programs than CPUs, or one of the other CPUs already has a job.
fn run(programs: Vec<Program<'_>>) {
    assert!(
        programs.len() <= Kernel.count(),
        "{} programs on {} CPUs",
        programs.len(),
        Kernel.count()
    );
    let mut programs = programs.into_iter();
    let Some(own) = programs.next() else { return };
    let left = AtomicUsize::new(programs.len());
    let mut others = CpuSet::EMPTY;
    for (at, program) in programs.enumerate() {
        let cpu = at + 1;
        // SAFETY: this function waits for the end of the program, so no borrow outlives it.
        let program = unsafe { mem::transmute::<Program<'_>, Program<'static>>(program) };
        let job = Box::into_raw(Box::new(Job { program, left: &raw const left }));
        // Release: publishes the job; pairs with the Acquire of `take`.
        let before = area::areas()[cpu].job.swap(job, Ordering::Release);
        assert!(before.is_null(), "cpu{cpu} has something to run already");
        if let Some(cpu) = CpuId::new(cpu) {
            others.insert(cpu);
        }
    }
    {
        let _section = Kernel.irqs_off();
        irqchip::wake(&others);
    }
    own();
    // Acquire: sees the effects of the jobs; pairs with the Release of `idle`.
    while left.load(Ordering::Acquire) != 0 {
        Kernel.relax();
    }
}

/// Takes the job of this CPU, if it has one.
fn take() -> Option<Box<Job>> {
    // Acquire: pairs with the Release of `run`.
    let job = area::here().job.swap(ptr::null_mut(), Ordering::Acquire);
    // SAFETY: `run` made the pointer from a box, and the swap gives it to one CPU.
    (!job.is_null()).then(|| unsafe { Box::from_raw(job) })
}

/// Runs jobs, and sleeps when there is none; it never returns.
pub(super) fn idle() -> ! {
    loop {
        while let Some(job) = take() {
            tlb_grace().idle_exit();
            let Job { program, left } = *job;
            program();
            quiet();
            // SAFETY: `run` waits for this count. Release: publishes the effects of the job; pairs
            // with the Acquire of `run`.
            unsafe { &*left }.fetch_sub(1, Ordering::Release);
        }
        Grace::idle_enter();
        // SAFETY: this loop and the interrupt handlers use no area except the APIC's, which is
        // never unmapped. A job begins with `idle_exit`.
        unsafe { tlb_grace().idle_enter() };
        area::irq_enter();
        // Relaxed: only a look; the CPU that writes a job sends an IPI afterwards.
        if area::here().job.load(Ordering::Relaxed).is_null() {
            // SAFETY: this is the only section.
            unsafe { area::sleep() };
        } else {
            // SAFETY: matches `irq_enter`.
            unsafe { area::irq_leave() };
        }
    }
}
