//! Stops the other threads of an address space while a call is in flight, so that none writes to
//! memory during the call.
//!
//! Whether two VMAs merge depends on first writes, and a first write is no system call. Between the
//! look at a call's entry and the call's effect, another thread may write to a VMA that the call
//! changes or lies next to. If there is such a VMA without a first write, the running threads are
//! interrupted (`PTRACE_INTERRUPT`) before the look, and resumed when the call has been reported.
//! So each first write is seen before the call, or comes after it.
//!
//! Of many threads, only those that ran last are looked at: [`RECENT`](super::tasks::RECENT). Another
//! one that runs counts as a sleeping one.
//!
//! A sleeping thread is not interrupted, because some system calls would return early. It may wake
//! during the call and write. So the VMAs without a first write at the entry are checked again at
//! the exit. A first write that is found there has no known order, and [`Doubt::Touch`] says so.
//!
//! Cost: reading the state of each of these threads, and two context switches for each running one.
//! No cost without a second thread and a VMA to race for.

use std::{
    mem,
    ops::Range,
    thread,
    time::{Duration, Instant},
};

use super::{
    calls,
    follower::Follower,
    sys::{
        self, Tid,
        ptrace::{self, Status},
    },
    tasks::{PendingCall, TaskStage},
};
use crate::{
    observer::Wanted,
    record::{Doubt, MmId, Op, Record},
    span::Span,
};

/// The time that a thread may take to stop. A thread that faults in a page takes longer.
const SOON: Duration = Duration::from_millis(2);
/// The number of operations in a row for which a thread may be stopped. Then it is spared once, so
/// that it always makes progress.
const MOST: u32 = 8;
/// The number of searches for threads that were woken meanwhile.
const ROUNDS: usize = 3;

impl Follower<'_> {
    /// The ranges in which `call` may race with first writes.
    fn scene(&mut self, mm: MmId, call: &PendingCall) -> Vec<Span> {
        // fork copies the whole address space.
        let Some(op) = call.memory() else { return vec![Span::ALL] };
        let brk = self.spaces.get(&mm).map_or(0, |space| space.brk);
        let mut scene: Vec<_> = calls::places(op, &call.args, brk).into_iter().flatten().collect();
        if let Some(length) = calls::length_to_place(op, &call.args) {
            scene.extend(self.observer.likely_place(mm, length).map(Span::from));
        }
        scene
    }

    /// The VMAs in a call's reach that are writable and have had no first write.
    fn touchable(&mut self, mm: MmId, scene: &[Span]) -> Vec<Range<usize>> {
        let reached =
            scene.iter().flat_map(|span| self.observer.ranges(mm, span.range(), Wanted::Touchable));
        reached.collect()
    }

    /// Reports the first writes that must precede `call` of `tid`, and stops threads that could
    /// make more. Returns the VMAs that are still exposed to threads that were not stopped.
    pub(super) fn stand_still(
        &mut self,
        mm: MmId,
        tid: Tid,
        call: &PendingCall,
    ) -> Vec<Range<usize>> {
        if self.spaces.get(&mm).is_none_or(|space| space.users.len() < 2) {
            return Vec::new();
        }
        let scene = self.scene(mm, call);
        if self.touchable(mm, &scene).is_empty() {
            return Vec::new();
        }
        self.pause_others(mm, tid);
        for span in &scene {
            self.tell_touches(mm, tid, span.clone());
        }
        self.touchable(mm, &scene)
    }

    fn pause_others(&mut self, mm: MmId, tid: Tid) {
        for _ in 0..ROUNDS {
            let Some(space) = self.spaces.get(&mm) else { return };
            let stands = |other: &Tid| {
                *other == tid || space.paused.iter().any(|(paused, _)| paused == other)
            };
            let others: Vec<Tid> = space.may_run().into_iter().filter(|o| !stands(o)).collect();
            let mut interrupted = Vec::new();
            for other in others {
                let Some(task) = self.tasks.get_mut(&other) else { continue };
                if !matches!(task.stage, TaskStage::Running) || sys::state(other) != Some(b'R') {
                    continue;
                }
                if task.paused >= MOST {
                    task.paused = 0;
                } else if ptrace::interrupt(other) {
                    interrupted.push(other);
                }
            }
            if interrupted.is_empty() {
                return;
            }
            self.await_stops(mm, interrupted);
        }
    }

    /// Waits until each of them has stopped, for any reason. Its event is kept for later.
    fn await_stops(&mut self, mm: MmId, mut interrupted: Vec<Tid>) {
        let begun = Instant::now();
        while !interrupted.is_empty() && begun.elapsed() < SOON {
            let before = interrupted.len();
            interrupted.retain(|&other| match self.events.poll(other) {
                Ok(Some(status)) => {
                    if let Some(task) = self.tasks.get_mut(&other) {
                        task.paused += 1;
                    }
                    if let Some(space) = self.spaces.get_mut(&mm) {
                        space.paused.push((other, status));
                    }
                    false
                }
                Ok(None) => true,
                // It has ended, or became the first thread by execve.
                Err(_) => false,
            });
            if interrupted.len() == before {
                thread::yield_now();
            }
        }
    }

    /// Resumes the threads that were stopped for an operation.
    pub(super) fn resume_paused(&mut self, mm: MmId) {
        let paused = self.spaces.get_mut(&mm).map(|space| mem::take(&mut space.paused));
        let (calls, others): (Vec<_>, Vec<_>) =
            paused.unwrap_or_default().into_iter().partition(|(_, status)| {
                matches!(status, Status::Event(libc::PTRACE_EVENT_SECCOMP, _))
            });
        // Threads that only continue come first, so a call that begins then finds them running.
        for (tid, status) in others.into_iter().chain(calls) {
            self.event(tid, status);
        }
    }

    /// Checks, after the call has returned, for first writes to the exposed VMAs.
    pub(super) fn check_exposed(&mut self, mm: MmId, tid: Tid, op: Op, exposed: &[Range<usize>]) {
        // These calls write to memory themselves.
        if matches!(op, Op::Mlock | Op::Mlock2 | Op::Mlockall | Op::Madvise | Op::Ioctl) {
            return;
        }
        if exposed.iter().any(|range| self.is_touched(mm, tid, range.clone())) {
            self.doubt(mm, Doubt::Touch);
        }
    }

    /// Records that a difference may from here on come from the record.
    pub(super) fn doubt(&mut self, mm: MmId, cause: Doubt) {
        if let Some(space) = self.spaces.get_mut(&mm)
            && space.doubted.insert(cause)
        {
            self.observer.record(Record::Doubt { mm, cause }, None);
        }
    }
}
