//! The threads that are followed and the address spaces they share.
//!
//! An address space has at most one operation in flight. A second thread that wants to begin one
//! stays stopped at its entry and waits in the queue of the address space. So operations take
//! effect in the order in which they complete, and a listing that is read between two of them shows
//! exactly the effect of the first.

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    fs::File,
    io,
    ops::Range,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use vma::VmFlags;

use super::{
    around::Changed,
    calls::Kind,
    sys::{self, Tid, ptrace::Status},
    usage::{self, Faults},
    userfault::Watcher,
};
use crate::{
    record::{Doubt, MmId, Op, StackId},
    report::Usage,
};

/// A followed thread.
pub(super) struct Task {
    /// The address space it runs in; `None` before the first execve, after its end, and for
    /// programs that cannot be followed.
    pub(super) space: Option<MmId>,
    /// Its current stage.
    pub(super) stage: Stage,
    /// The number of operations of other threads in a row for which it was stopped.
    pub(super) paused: u32,
    /// Used to copy its descriptors; opened when first needed.
    pub(super) pidfd: Option<OwnedFd>,
}

/// The stage of a thread in tracing.
pub(super) enum Stage {
    /// Its parent's event announced it, and its own first event is still missing.
    Fresh,
    /// It runs, or is stopped for a short time.
    Running,
    /// It is stopped at the entry of a call and waits for its turn.
    Held(Call),
    /// Its call is in flight.
    Flying(Flight),
}

/// A system call about to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) kind: Kind,
    pub(super) args: [usize; 6],
}

impl Call {
    /// Which memory call it is, if it is one.
    pub(super) fn memory(&self) -> Option<Op> {
        match self.kind {
            Kind::Memory(op) => Some(op),
            _ => None,
        }
    }
}

/// A call in flight.
pub(super) struct Flight {
    pub(super) call: Call,
    /// The time at which the thread was resumed.
    pub(super) since: Instant,
    /// The data that was read at its entry.
    pub(super) load: Load,
    /// VMAs with which the call may race: another thread may make their first write.
    pub(super) exposed: Vec<Range<usize>>,
    /// The call stack of the thread; 0 if it is not recorded.
    pub(super) stack: StackId,
}

/// Data that is read at a call's entry and used at its exit.
pub(super) enum Load {
    /// Nothing.
    None,
    /// mmap: a copy of the descriptor.
    File(OwnedFd),
    /// mbind and the userfaultfd requests: the words that they read from memory.
    Memory([usize; 3]),
    /// process_madvise: start and length of each range.
    Ranges(Vec<(usize, usize)>),
    /// execve: the address space that it will end.
    Image(Image),
    /// A calibration call of the child.
    Calibration,
}

/// The address space that execve is about to end.
pub(super) struct Image {
    /// The other threads of the process.
    pub(super) siblings: BTreeSet<Tid>,
    /// The last listing, if no other process uses the address space.
    pub(super) last: Option<Last>,
}

/// The last listing of an address space.
pub(super) struct Last {
    pub(super) text: String,
    pub(super) flags: Vec<(usize, VmFlags)>,
    pub(super) usage: Usage,
}

/// A followed address space.
pub(super) struct Space {
    /// Threads that run in it and whose end was not reported yet.
    pub(super) users: BTreeSet<Tid>,
    /// Its listing. The descriptor is bound to the address space, not to a process.
    pub(super) maps: File,
    /// Its pagemap, opened when first needed. The inner `None`: it cannot be opened.
    pub(super) pagemap: Option<Option<File>>,
    /// Threads with an operation in flight: one, unless it blocked.
    pub(super) flying: Vec<Tid>,
    /// Threads that wait for their turn, in the order in which they came.
    pub(super) queue: VecDeque<Tid>,
    /// The start of the newest operation.
    pub(super) since: Instant,
    /// What the newest call has changed.
    pub(super) changed: Changed,
    /// The number of calls since the beginning, for comparisons after every Nth.
    pub(super) calls: u64,
    /// The end of the heap.
    pub(super) brk: usize,
    /// Threads that were stopped for the operation in flight, with the event of their stop.
    pub(super) paused: Vec<(Tid, Status)>,
    /// The number of times in a row that the thread in flight was asleep while others waited.
    pub(super) asleep: u32,
    /// Threads in flight that wait for another thread. No thread waits for them.
    pub(super) blocked: BTreeSet<Tid>,
    /// The doubts about its records that were reported.
    pub(super) doubted: HashSet<Doubt>,
    /// Userfaultfds with registered ranges.
    pub(super) watchers: Vec<Watcher>,
    /// The growing VMAs, as the observer returned them; `None` when it must be asked again.
    pub(super) growing: Option<Vec<Range<usize>>>,
    /// The page faults that its process had before.
    pub(super) faults: Faults,
    /// When its resident bytes were read last.
    pub(super) looked: Option<Instant>,
    /// The most bytes that calls since then may have made non-resident.
    pub(super) released: usize,
}

impl Space {
    /// The address space of `tid`, which must be stopped.
    pub(super) fn open(tid: Tid, brk: usize) -> io::Result<Self> {
        Ok(Space {
            users: BTreeSet::from([tid]),
            maps: sys::proc_file(tid, "maps")?,
            pagemap: None,
            flying: Vec::new(),
            queue: VecDeque::new(),
            since: Instant::now(),
            paused: Vec::new(),
            asleep: 0,
            blocked: BTreeSet::new(),
            doubted: HashSet::new(),
            changed: Changed::default(),
            calls: 0,
            brk,
            watchers: Vec::new(),
            growing: None,
            faults: usage::faults(tid),
            looked: None,
            released: 0,
        })
    }

    /// Whether an operation is in flight that must end before another begins.
    pub(super) fn is_busy(&self) -> bool {
        self.flying.iter().any(|tid| !self.blocked.contains(tid))
    }

    /// Whether threads wait for the operation in flight to end.
    pub(super) fn is_waited_for(&self) -> bool {
        self.is_busy() && !(self.queue.is_empty() && self.paused.is_empty())
    }

    /// Removes the operation of `tid`, which has ended in any way.
    pub(super) fn landed(&mut self, tid: Tid) {
        self.flying.retain(|&other| other != tid);
        self.blocked.remove(&tid);
        self.queue.retain(|&other| other != tid);
    }
}

/// The time that tracing adds to a call: the median of empty calls.
pub(super) struct Overhead {
    samples: Vec<Duration>,
    median: Duration,
}

impl Overhead {
    pub(super) fn new() -> Self {
        Overhead { samples: Vec::new(), median: Duration::ZERO }
    }

    /// Adds the time of an empty call.
    pub(super) fn sample(&mut self, time: Duration) {
        self.samples.push(time);
        self.samples.sort_unstable();
        self.median = self.samples[self.samples.len() / 2];
    }

    /// The kernel's part of a measured time.
    pub(super) fn kernel_share(&self, time: Duration) -> Duration {
        time.saturating_sub(self.median)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_overhead_is_a_median() {
        let mut overhead = Overhead::new();
        assert_eq!(overhead.kernel_share(Duration::from_micros(5)), Duration::from_micros(5));
        for micros in [9, 1000, 10, 8, 11] {
            overhead.sample(Duration::from_micros(micros));
        }
        assert_eq!(overhead.kernel_share(Duration::from_micros(25)), Duration::from_micros(15));
        assert_eq!(overhead.kernel_share(Duration::from_micros(3)), Duration::ZERO);
    }
}
