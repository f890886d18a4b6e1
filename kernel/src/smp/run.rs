//! Programs, one for each CPU, and what a CPU does that has none.

use super::flushes;
use crate::apic;
use crate::cpu::area;
use crate::grace::{Grace, quiet};
use crate::machine::Kernel;
use crate::trap::entry::WAKE;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::mem;
use core::ptr;
use core::sync::atomic::{AtomicUsize, Ordering};
use machine::{CpuId, CpuSet, Cpus, Host, Irqs, Program, Step};

/// A program, and the count of those that have not ended.
pub(crate) struct Job {
    program: Program<'static>,
    left: *const AtomicUsize,
}

/// This machine, for trials and experiments.
pub(crate) fn host() -> Host<'static, Kernel> {
    Host { machine: &Kernel, run: &run, quiet }
}

/// Runs programs at once, the first on this CPU, which is the first, the others on those that
/// follow, and waits for all.
///
/// # Panics
/// There are more programs than CPUs, or one of the others runs something already.
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
        // SAFETY: it is gone when this returns: we wait for its end.
        let program = unsafe { mem::transmute::<Program<'_>, Program<'static>>(program) };
        let job = Box::into_raw(Box::new(Job { program, left: &raw const left }));
        // Release: the job is written; pairs with the Acquire of `take`.
        let before = area::areas()[cpu].job.swap(job, Ordering::Release);
        assert!(before.is_null(), "cpu{cpu} has something to run already");
        if let Some(cpu) = CpuId::new(cpu) {
            others.insert(cpu);
        }
    }
    {
        let _section = Kernel.irqs_off();
        apic::interrupt(&others, WAKE);
    }
    own();
    // Acquire: what they did; pairs with the Release of `idle`.
    while left.load(Ordering::Acquire) != 0 {
        Kernel.relax();
    }
}

/// What this CPU is to run, if anything.
fn take() -> Option<Box<Job>> {
    // Acquire: pairs with the Release of `run`.
    let job = area::here().job.swap(ptr::null_mut(), Ordering::Acquire);
    // SAFETY: `run` has made it of a box, and whoever takes it owns it.
    (!job.is_null()).then(|| unsafe { Box::from_raw(job) })
}

/// Runs what there is to run, and sleeps; for good.
pub(super) fn idle() -> ! {
    loop {
        while let Some(job) = take() {
            flushes().idle_exit();
            let Job { program, left } = *job;
            program();
            quiet();
            // SAFETY: `run` waits for it.
            // Release: what the program did; pairs with the Acquire of `run`.
            unsafe { &*left }.fetch_sub(1, Ordering::Release);
        }
        Grace::idle_enter();
        // SAFETY: this loop and the interrupt handlers use no area but the APIC's, which stays; a
        // job begins with `back`.
        unsafe { flushes().idle_enter() };
        area::irq_enter();
        // Relaxed: a look; whoever writes it interrupts this CPU afterwards.
        if area::here().job.load(Ordering::Relaxed).is_null() {
            // SAFETY: this is the only section.
            unsafe { area::sleep() };
        } else {
            // SAFETY: matches `irq_enter`.
            unsafe { area::irq_leave() };
        }
    }
}
