//! The threads that are followed and the address spaces they share.
//!
//! An address space has at most one operation in flight: a second thread that wants to begin one
//! stays stopped at its entry and waits in the space's queue. So the order in which operations
//! complete is the order in which they took effect, and a listing read between two of them shows
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
    calls::Kind,
    sys::{self, Tid, ptrace::Status},
    userfault::Watcher,
};
use crate::record::{Doubt, MmId, Op};

/// A followed thread.
pub(super) struct Task {
    /// The address space it runs in; `None` before the first execve, after its end, and for
    /// programs that cannot be followed.
    pub(super) space: Option<MmId>,
    /// What it is doing.
    pub(super) stage: Stage,
    /// How many operations of others in a row it was stopped for.
    pub(super) paused: u32,
    /// For copying its descriptors, once needed.
    pub(super) pidfd: Option<OwnedFd>,
}

/// What a thread is doing, as far as tracing goes.
pub(super) enum Stage {
    /// It was announced by its parent and did not yet report itself.
    Fresh,
    /// It runs, or is stopped for a moment.
    Running,
    /// It stands at the entry of a call and waits for its turn.
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
    /// When the thread was let go.
    pub(super) since: Instant,
    /// What only its entry could tell.
    pub(super) load: Load,
    /// VMAs whose first touch by another thread the call could race with.
    pub(super) exposed: Vec<Range<usize>>,
}

/// What was read at a call's entry for its exit.
pub(super) enum Load {
    /// Nothing.
    None,
    /// mmap: a copy of the descriptor.
    File(OwnedFd),
    /// mbind and the userfaultfd requests: what they read from memory.
    Memory([usize; 3]),
    /// process_madvise: start and length of each range.
    Ranges(Vec<(usize, usize)>),
    /// execve: what it will end.
    Image(Image),
    /// An empty call of the child that measures.
    Calibration,
}

/// What execve is about to end.
pub(super) struct Image {
    /// The other threads of the process.
    pub(super) siblings: BTreeSet<Tid>,
    /// The last listing, if nobody else keeps the address space.
    pub(super) last: Option<Last>,
}

/// The last listing of an address space.
pub(super) struct Last {
    pub(super) text: String,
    pub(super) flags: Vec<(usize, VmFlags)>,
}

/// A followed address space.
pub(super) struct Space {
    /// Threads that run in it and did not yet report their end.
    pub(super) users: BTreeSet<Tid>,
    /// Its listing; the descriptor is bound to the address space, not to a process.
    pub(super) maps: File,
    /// Its page map, once needed; `None` inside if it cannot be opened.
    pub(super) pagemap: Option<Option<File>>,
    /// Threads whose operation is in flight: one, unless it blocked for long.
    pub(super) flying: Vec<Tid>,
    /// Threads that wait for their turn, in the order in which they came.
    pub(super) queue: VecDeque<Tid>,
    /// When the newest operation took off.
    pub(super) since: Instant,
    /// Calls since the beginning, for comparing after every Nth.
    pub(super) calls: u64,
    /// End of the heap.
    pub(super) brk: usize,
    /// Threads that were stopped for the operation in flight, and what they stopped with.
    pub(super) paused: Vec<(Tid, Status)>,
    /// How many times in a row the thread in flight was seen asleep while others waited.
    pub(super) asleep: u32,
    /// Those in flight that were found to wait for another thread: nobody waits for them.
    pub(super) blocked: BTreeSet<Tid>,
    /// What makes its records doubtful, as far as it was told.
    pub(super) doubted: HashSet<Doubt>,
    /// Userfaultfds with registered ranges.
    pub(super) watchers: Vec<Watcher>,
    /// The VMAs that grow, as the observer said; `None` when it must be asked anew.
    pub(super) growing: Option<Vec<Range<usize>>>,
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
            calls: 0,
            brk,
            watchers: Vec::new(),
            growing: None,
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

    /// `tid`'s operation ended, one way or another.
    pub(super) fn landed(&mut self, tid: Tid) {
        self.flying.retain(|&other| other != tid);
        self.blocked.remove(&tid);
        self.queue.retain(|&other| other != tid);
    }
}

/// What tracing adds to the time of a call: the median of calls that do nothing.
pub(super) struct Overhead {
    samples: Vec<Duration>,
    median: Duration,
}

impl Overhead {
    pub(super) fn new() -> Self {
        Overhead { samples: Vec::new(), median: Duration::ZERO }
    }

    /// One more empty call.
    pub(super) fn sample(&mut self, time: Duration) {
        self.samples.push(time);
        self.samples.sort_unstable();
        self.median = self.samples[self.samples.len() / 2];
    }

    /// The kernel's share of a measured time.
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
