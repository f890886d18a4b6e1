//! The job of a CPU: a program that it runs once.

use core::sync::atomic::AtomicUsize;
use machine::Program;

/// A job, and the number of jobs that have not ended.
pub(crate) struct Job {
    pub(crate) program: Program<'static>,
    pub(crate) left: *const AtomicUsize,
}
