//! Drivers: they run the programs of a machine's CPUs.
//!
//! [`threads()`] gives each CPU a host thread: fast, and as parallel as the host. [`seeded()`] runs
//! all CPUs on one host thread, and picks the next one from a seed at each step, so a failure can
//! be replayed. [`stopped()`] stops one CPU at a step, and lets the others run whole. [`explore()`]
//! tries many seeds.

mod again;
mod explore;
mod failure;
mod seeded;
mod threads;

pub use explore::{Explored, explore};
pub use failure::{Cause, Failure};
pub use machine::Program;
pub use seeded::{Run, seeded, stopped};
pub use threads::threads;

pub(crate) use failure::Halt;
pub(crate) use seeded::Turn;
