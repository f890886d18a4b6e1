//! Tracer and child on one processor: they take turns, and waking another one costs more than the
//! step.

use nix::{
    sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity},
    unistd::Pid,
};

/// The calling thread and the child bound to one processor; dropping it frees the calling thread.
/// Without it all is the same but slower, so a refusal is not an error.
pub(super) struct Bound(Option<CpuSet>);

impl Bound {
    /// Binds both to where the calling thread is now.
    pub(super) fn to_one_cpu(child: Pid) -> Self {
        let bind = || {
            let before = sched_getaffinity(Pid::from_raw(0))?;
            let mut one = CpuSet::new();
            one.set(sched_getcpu()?)?;
            sched_setaffinity(Pid::from_raw(0), &one)?;
            // If only this one is refused, the binding of ours is still undone.
            let _ = sched_setaffinity(child, &one);
            nix::Result::Ok(before)
        };
        Self(bind().ok())
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            // The set was this thread's own until just now; a refusal would leave it on one
            // processor.
            let _ = sched_setaffinity(Pid::from_raw(0), before);
        }
    }
}
