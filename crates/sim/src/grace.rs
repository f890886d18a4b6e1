//! Grace periods of readers on this machine: [`Grace`], the engine that kernels use, on the
//! machine's CPUs.
//!
//! A CPU passes a quiescent state at its timer interrupt, and is idle when no program runs there.
//! Programs may also pass quiescent states and reclaim between operations, as a kernel would. Each
//! machine has its own state, found through the host thread. So the engine works only on a thread
//! that is a CPU.

use crate::cpu::Cpu;
use crate::current_cpu;
use crate::current_cpu::not_a_cpu;
use crate::lock::locked;
use crate::sim::{Inner, Sim};
use ::grace::quiescent::{Domain, Periods, Quiescent};
use std::sync::Arc;

/// The CPUs of the host thread's machine, for the engine.
#[derive(Clone, Copy, Debug)]
pub struct SimCpus(());

/// Reclamation by quiescent states of the machine's CPUs.
///
/// Each machine has its own state. Guards of one machine do not protect objects that are retired on
/// another. So a structure that retires objects through this engine must be used on the CPUs of one
/// machine only. Nothing checks that.
///
/// ```
/// use grace::Reclaim;
/// use sim::{Config, Grace, Sim};
/// use std::ptr::NonNull;
///
/// unsafe fn free(ptr: NonNull<()>) {
///     // SAFETY: retired once, below, and made by `Box::into_raw`.
///     drop(unsafe { Box::from_raw(ptr.cast::<u64>().as_ptr()) });
/// }
/// let sim = Sim::new(Config::default())?;
/// sim.on_cpu(0, || {
///     let ptr = NonNull::from(Box::leak(Box::new(7u64)));
///     // SAFETY: no other code knows the box.
///     unsafe { Grace::retire(&Grace::pin(), ptr.cast(), free) };
///     assert!(Grace::is_pending());
///     assert!(sim.settle());
/// });
/// # Ok::<(), sim::ConfigError>(())
/// ```
pub type Grace = Quiescent<SimCpus>;

fn inner<T>(f: impl FnOnce(&Inner, &Cpu) -> T) -> T {
    let here = current_cpu::get();
    if here.machine.is_null() {
        not_a_cpu();
    }
    // SAFETY: the code that made this thread a CPU keeps the machine alive until the thread is
    // none.
    f(unsafe { &*here.machine }, unsafe { &*here.cpu })
}

// SAFETY: a host thread, or a coroutine, stays the CPU that it is while a program runs there. Its
// state is its machine's. Interrupt handlers do not run while the depth is not 0.
unsafe impl Domain for SimCpus {
    const PREEMPTED: bool = false;
    type Exclusive = Exclusive;

    #[inline]
    fn cpu() -> usize {
        inner(|_, cpu| cpu.id.index())
    }

    fn exclusive() -> Exclusive {
        inner(|_, cpu| cpu.set_depth(cpu.depth() + 1));
        Exclusive(())
    }

    #[inline]
    fn with<T>(f: impl FnOnce(Periods<'_>) -> T) -> T {
        inner(|machine, _| f(Periods::new(&machine.grace, &machine.graces)))
    }

    #[inline]
    fn left() {
        inner(|machine, cpu| {
            if machine.config.checks.walked {
                locked(&cpu.state).walked.clear();
            }
        });
    }
}

/// Disables interrupts until it is dropped. Pending ones are taken at the next step.
#[derive(Debug)]
pub struct Exclusive(());

impl Drop for Exclusive {
    fn drop(&mut self) {
        inner(|_, cpu| cpu.set_depth(cpu.depth().saturating_sub(1)));
    }
}

impl Sim {
    /// The machine of which the host thread is a CPU. For a deferred free, which gets a pointer and
    /// nothing else.
    pub fn here() -> Option<Sim> {
        let machine = current_cpu::get().machine;
        if machine.is_null() {
            return None;
        }
        // SAFETY: it is the inside of the `Arc` of a `Sim` that lives while the thread is a CPU.
        unsafe {
            Arc::increment_strong_count(machine);
            Some(Sim(Arc::from_raw(machine)))
        }
    }

    /// Completes all grace periods of [`Grace`], and frees all that was retired, if no other CPU
    /// runs. Returns whether nothing is left.
    ///
    /// For the end of a test, on any CPU, outside of any section.
    pub fn settle(&self) -> bool {
        for _ in 0..64 {
            if !Grace::quiescent_state() {
                return false;
            }
            Grace::reclaim(usize::MAX);
            if !Grace::is_pending() {
                return true;
            }
        }
        false
    }
}
