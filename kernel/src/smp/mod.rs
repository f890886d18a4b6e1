//! All CPUs: their start, their jobs, and the idle loop.
//!
//! A CPU runs its job to the end, and sleeps otherwise; timer interrupts come in between. The loop
//! that runs programs (`run::cpu`) is such a job. Before it sleeps, it reports to the grace
//! periods of readers and of TLBs that it is idle, so no grace period waits for it.
//!
//! `start` starts the CPUs, `run` has jobs and the idle loop. `tick` is the timer interrupt, in
//! which CPUs report quiescent states.

mod run;
mod stack;
mod start;
mod tick;

pub(crate) use run::{everywhere, host};
#[cfg(target_arch = "aarch64")]
pub(crate) use stack::STACK;
pub(crate) use stack::{stack_guard_of, stack_of};
pub(crate) use start::{start_others, take_part};
pub(crate) use tick::{is_ticking, set_tick, tick, tlb_grace, tlb_grace_if_any};
