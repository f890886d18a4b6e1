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
    calls::{CallKind, Changed},
    sys::{self, Tid, ptrace::Status},
    usage::{self, Faults},
    watchers::Watchers,
};
use crate::{
    record::{Doubt, MmId, Op, StackId},
    report::Usage,
};

/// The number of threads of an address space that are remembered because they ran last. To read the
/// state of thousands of threads at each call takes seconds.
pub(super) const RECENT: usize = 64;

/// The lines of a listing that may be read after each call in any case: some tens of microseconds.
const SHORT: usize = 256;

/// A followed thread.
pub(super) struct Task {
    /// The address space it runs in; `None` before the first execve, after its end, and for
    /// programs that cannot be followed.
    pub(super) space: Option<MmId>,
    /// Its current stage.
    pub(super) stage: TaskStage,
    /// The number of operations of other threads in a row for which it was stopped.
    pub(super) paused: u32,
    /// Used to copy its descriptors; opened when first needed.
    pub(super) pidfd: Option<OwnedFd>,
}

impl Task {
    /// A thread that runs in this address space, if it is followed.
    pub(super) fn new(space: Option<MmId>) -> Task {
        Task { space, stage: TaskStage::Running, paused: 0, pidfd: None }
    }
}

/// The stage of a thread in tracing.
pub(super) enum TaskStage {
    /// Its parent's event announced it, and its own first event is still missing.
    Fresh,
    /// It runs, or is stopped for a short time.
    Running,
    /// It is stopped at the entry of a call and waits for its turn.
    Held(PendingCall),
    /// Its call is in flight.
    Flying(CallInFlight),
}

/// A system call about to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct PendingCall {
    pub(super) kind: CallKind,
    pub(super) args: [usize; 6],
}

impl PendingCall {
    /// Which memory call it is, if it is one.
    pub(super) fn memory(&self) -> Option<Op> {
        match self.kind {
            CallKind::Memory(op) => Some(op),
            _ => None,
        }
    }
}

/// A call in flight.
pub(super) struct CallInFlight {
    pub(super) call: PendingCall,
    /// The time at which the thread was resumed.
    pub(super) since: Instant,
    /// The data that was read at its entry.
    pub(super) load: EntryData,
    /// VMAs with which the call may race: another thread may make their first write.
    pub(super) exposed: Vec<Range<usize>>,
    /// The call stack of the thread; 0 if it is not recorded.
    pub(super) stack: StackId,
}

/// Data that is read at a call's entry and used at its exit.
pub(super) enum EntryData {
    /// Nothing.
    None,
    /// mmap: a copy of the descriptor.
    File(OwnedFd),
    /// mbind and the userfaultfd requests: the words that they read from memory.
    Memory([usize; 3]),
    /// process_madvise: start and length of each range.
    Ranges(Vec<(usize, usize)>),
    /// execve and exit_group: the address space that it will end.
    EndingSpace(EndingSpace),
    /// A calibration call of the child.
    Calibration,
}

/// The address space that execve or exit_group is about to end.
pub(super) struct EndingSpace {
    /// The other threads of the process.
    pub(super) siblings: BTreeSet<Tid>,
    /// The last listing, if no other process uses the address space.
    pub(super) last: Option<LastListing>,
}

/// The last listing of an address space.
pub(super) struct LastListing {
    pub(super) text: String,
    pub(super) flags: Vec<(usize, VmFlags)>,
    pub(super) usage: Usage,
}

/// A followed address space.
pub(super) struct Space {
    /// Threads that run in it and whose end was not reported yet.
    pub(super) users: BTreeSet<Tid>,
    /// The threads that were resumed last, the newest at the end, some of them several times.
    recent: VecDeque<Tid>,
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
    /// Its last listing, read at exit_group, until its last thread has ended.
    pub(super) last: Option<LastListing>,
    /// The ranges that the newest call has changed.
    pub(super) changed: Changed,
    /// The number of calls since the beginning, for comparisons after every Nth.
    pub(super) calls: u64,
    /// That number at the last comparison of a whole listing, and the lines of that listing.
    pub(super) compared: (u64, usize),
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
    pub(super) watchers: Watchers,
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
            recent: VecDeque::new(),
            maps: sys::proc_file(tid, "maps")?,
            pagemap: None,
            flying: Vec::new(),
            queue: VecDeque::new(),
            since: Instant::now(),
            paused: Vec::new(),
            asleep: 0,
            blocked: BTreeSet::new(),
            doubted: HashSet::new(),
            last: None,
            changed: Changed::default(),
            calls: 0,
            compared: (0, 0),
            brk,
            watchers: Watchers::default(),
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

    /// Whether the last listing was [`SHORT`], or enough calls have passed since, so that on
    /// average a call costs at most so many lines. 0: always.
    pub(super) fn affords_listing(&self, lines_per_call: usize) -> bool {
        let (calls, lines) = self.compared;
        let since = usize::try_from(self.calls - calls).unwrap_or(usize::MAX);
        let affords = lines_per_call == 0 || since.saturating_mul(lines_per_call) >= lines;
        affords || lines <= SHORT
    }

    /// Removes the operation of `tid`, which has ended in any way.
    pub(super) fn landed(&mut self, tid: Tid) {
        self.flying.retain(|&other| other != tid);
        self.blocked.remove(&tid);
    }

    /// Removes a thread, which has ended or runs another program.
    pub(super) fn left(&mut self, tid: Tid) {
        self.users.remove(&tid);
        self.landed(tid);
        self.queue.retain(|&other| other != tid);
        // It has left the stop for which it was kept.
        self.paused.retain(|&(paused, _)| paused != tid);
    }

    /// Notes that a thread was resumed.
    pub(super) fn resumed(&mut self, tid: Tid) {
        if self.recent.back() != Some(&tid) {
            if self.recent.len() == RECENT {
                self.recent.pop_front();
            }
            self.recent.push_back(tid);
        }
    }

    /// The threads that are worth a look at whether they run.
    pub(super) fn may_run(&self) -> BTreeSet<Tid> {
        match self.users.len() <= RECENT {
            true => self.users.clone(),
            false => self.recent.iter().copied().filter(|tid| self.users.contains(tid)).collect(),
        }
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
    fn a_long_listing_is_read_seldom() {
        let mut space = Space::open(std::process::id() as Tid, 0).unwrap();
        space.compared = (10, 1000);
        let mut affords = |calls, lines_per_call| {
            space.calls = calls;
            space.affords_listing(lines_per_call)
        };
        assert!(affords(11, 0) && affords(11, 1000) && affords(20, 100));
        assert!(!affords(11, 999) && !affords(19, 100));
        space.compared = (10, SHORT);
        space.calls = 11;
        assert!(space.affords_listing(1));
    }

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
