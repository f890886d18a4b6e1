//! Binds tracer and child to one processor. They take turns, and waking another processor costs
//! more than the step.

use nix::{
    sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity},
    unistd::Pid,
};

/// The calling thread and the child, bound to one processor. Dropping it unbinds the calling
/// thread. Without it the result is the same but slower, so failures are ignored.
pub(super) struct Bound(Option<CpuSet>);

impl Bound {
    /// Binds both to the calling thread's current processor.
    pub(super) fn to_one_cpu(child: Pid) -> Self {
        let bind = || {
            let before = sched_getaffinity(Pid::from_raw(0))?;
            let mut one = CpuSet::new();
            one.set(sched_getcpu()?)?;
            sched_setaffinity(Pid::from_raw(0), &one)?;
            // If only this fails, dropping still unbinds the calling thread.
            let _ = sched_setaffinity(child, &one);
            nix::Result::Ok(before)
        };
        Self(bind().ok())
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // This was the thread's own set until just now. A failure leaves the thread on one
            // processor.
            let _ = sched_setaffinity(Pid::from_raw(0), before);
        }
    }
}
