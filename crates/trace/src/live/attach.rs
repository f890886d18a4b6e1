//! Follows a program that runs already, and leaves it unharmed.
//!
//! # How
//!
//! A running program has no filter of ours, so ptrace stops its threads at the entry and the exit
//! of every system call. The filter is run here instead of in the kernel: a call that it would let
//! through goes on at once. From there on everything is as for a program that was started.
//!
//! # The beginning
//!
//! All threads are seized and stopped before the first one goes on. So nothing changes while the
//! address space is read, and a new thread is seized as the child of one that is. A stop that has
//! another cause, such as a signal, is handled when everything is known.
//!
//! A thread in an uninterruptible sleep cannot stop: the parent of a vfork sleeps until its child
//! executes or ends. No other thread waits for it: after [`HOLD`] the tracer goes on without the
//! threads that still run. Each of them stops at the end of its call, and goes on from there.
//!
//! The past of the address space is not known: which VMAs have had a first write, which maps came
//! from one open file. [`Doubt::Attached`] says so, and a difference does not count as a mismatch.
//!
//! # The end
//!
//! No new operation begins, until none is in flight, for at most [`LAST`]. Then all threads are
//! stopped as at the beginning, the last listings are read, and each thread is given back in the
//! state in which it was found: with the signal that it was about to get, or stopped by job
//! control. A thread that did not stop is given back when it does, while the others run. One that
//! sleeps in a vfork is left to the kernel, which gives everything back when the tracer's thread
//! ends. So the tracer has a thread of its own, which ends right then.
//!
//! # Cost
//!
//! Four context switches for each system call of the program, of whichever kind.

use std::{
    collections::{BTreeSet, HashMap},
    fs, io, panic, thread,
    time::{Duration, Instant},
};

use super::{
    Error, Exit, Options, facilities,
    facilities::Facilities,
    filter,
    follower::Follower,
    sys::{
        self, Tid,
        heartbeat::{Forwarding, Heartbeat},
        ptrace::{self, CallStop, Resume, Status},
    },
    tasks::{Task, TaskStage},
};
use crate::{
    observer::Observer,
    record::{Doubt, MmId, Record},
    span::Span,
};

/// The time that threads are held until the others have stopped, too.
const HOLD: Duration = Duration::from_millis(20);
/// The time that operations may take to end before the program is left. New ones wait meanwhile.
const LAST: Duration = Duration::from_millis(10);
/// The time that a thread may take to stop at the end, while no other one is held.
const PATIENCE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_micros(200);

/// The state of a program that ran already, which a new one does not have.
pub(super) struct Attached {
    /// The filter, which is run here.
    filter: Vec<libc::sock_filter>,
    /// When the user asked to leave it.
    leaving: Option<Instant>,
    /// Whether it was left.
    pub(super) left: bool,
}

impl Attached {
    fn new() -> Attached {
        Attached { filter: filter::build(), leaving: None, left: false }
    }

    /// Whether no new operation may begin.
    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }
}

/// Follows the running process `pid` with its threads, until its end, until the observer [has
/// enough](Observer::has_enough), or until the user asks to leave it (SIGINT, SIGTERM, SIGHUP or
/// SIGQUIT, if the options forward signals).
///
/// Returns `None` if it was left and runs on. Blocks the calling thread: the observer is called by
/// another one. No other thread may wait for children meanwhile.
///
/// # Errors
/// [`Error::Seize`]: there is no such process, or it may not be traced. Those of a request that
/// fails during the run. The process runs on in each case.
///
/// # Panics
/// If the observer does.
///
/// ```no_run
/// use trace::{live, session::Session};
/// let mut session = Session::<Vec<u8>>::new(live::profile(), None)?;
/// let exit = live::attach(live::Options::default(), 4711, &mut session)?;
/// assert_eq!(exit, None, "the server runs on");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn attach(
    options: Options,
    pid: u32,
    observer: &mut (dyn Observer + Send),
) -> Result<Option<Exit>, Error> {
    thread::scope(|scope| {
        let tracer = thread::Builder::new().name("tracer".into());
        let tracer = tracer.spawn_scoped(scope, || follow(options, pid, observer));
        let tracer = tracer.map_err(|cause| Error::Follow { doing: "starting a thread", cause })?;
        tracer.join().unwrap_or_else(|payload| panic::resume_unwind(payload))
    })
}

/// [`attach`] by the calling thread.
fn follow(options: Options, pid: u32, observer: &mut dyn Observer) -> Result<Option<Exit>, Error> {
    let facilities = Facilities::probe();
    options.check()?;
    if !facilities::proc_is_ours() {
        return Err(Error::Proc);
    }
    let seize = |cause| Error::Seize { pid, cause };
    let root = Tid::try_from(pid).ok().filter(|root| *root > 0);
    let root = root.ok_or_else(|| seize(io::Error::from_raw_os_error(libc::ESRCH)))?;
    let has_others = ptrace::has_children();
    let mut follower = Follower::new(options, facilities, observer, root);
    follower.tasks.clear();
    follower.attached = Some(Attached::new());
    follower.started = true;
    follower.has_others = has_others;
    let start = |cause| Error::Follow { doing: "starting to follow it", cause };
    let beat = Heartbeat::start().map_err(start)?;
    // No process gets these signals: they ask the tracer to leave.
    let wishes = if options.forward_signals { Forwarding::start(0).map_err(start)? } else { None };
    follower.take_over(root).map_err(seize)?;
    let exit = follower.run_all(&beat, wishes.as_ref())?;
    follower.tell_symbols();
    Ok(exit)
}

/// The threads of a process.
fn threads(pid: Tid) -> io::Result<BTreeSet<Tid>> {
    let entries = fs::read_dir(format!("/proc/{pid}/task"))?;
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<Tid>().ok();
    Ok(entries.flatten().filter_map(number).collect())
}

impl Follower<'_> {
    /// Seizes all threads of a process, reads its address space, and lets them go on.
    fn take_over(&mut self, root: Tid) -> io::Result<()> {
        let Seized { stops, late } = self.seize_all(root)?;
        if let Err(error) = self.register(root, &stops, &late) {
            give_back(stops);
            // They are given back at the end of the follower.
            self.tasks = late.into_iter().map(|tid| (tid, Task::new(None))).collect();
            return Err(error);
        }
        for (tid, status) in stops {
            self.event(tid, status);
        }
        Ok(())
    }

    /// Reads the address space of these threads.
    fn register(
        &mut self,
        root: Tid,
        stops: &HashMap<Tid, Status>,
        late: &BTreeSet<Tid>,
    ) -> io::Result<()> {
        let ended = |status: &Status| matches!(status, Status::Exited(_) | Status::Signaled(_));
        let stopped = stops.iter().filter(|(_, status)| !ended(status)).map(|(tid, _)| tid);
        let alive: BTreeSet<Tid> = stopped.chain(late).copied().collect();
        if !alive.contains(&root) {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        let Some(mm) = self.new_image(root)? else {
            return Err(io::Error::other("it is no x86-64 program"));
        };
        self.doubt(mm, Doubt::Attached);
        for tid in alive {
            if tid != root {
                let (first, other) = (root as u32, tid as u32);
                let record = Record::Share { mm, tid: first, child_tid: other, vfork: false };
                self.observer.record(record, None);
            }
            self.tasks.insert(tid, Task::new(Some(mm)));
            if let Some(space) = self.spaces.get_mut(&mm) {
                space.users.insert(tid);
            }
        }
        self.tell_touches(mm, root, Span::ALL);
        self.compare(mm);
        Ok(())
    }

    /// Seizes and stops all threads, as far as they stop soon.
    fn seize_all(&mut self, root: Tid) -> io::Result<Seized> {
        let (mut seen, mut waiting) = (BTreeSet::new(), BTreeSet::new());
        let mut stops = HashMap::new();
        ptrace::seize_running(root)?;
        let begun = Instant::now();
        loop {
            // Threads may start others until they are stopped. So look until there is no new one.
            let found = threads(root).unwrap_or_default();
            for &tid in found.iter().filter(|&&tid| seen.insert(tid)) {
                waiting.insert(tid);
                // One that is seized already was started by another one of these, and stops by
                // itself. Or it has ended.
                if tid == root || ptrace::seize_running(tid).is_ok() {
                    ptrace::interrupt(tid);
                }
            }
            waiting.retain(|&tid| match ptrace::poll(tid) {
                Ok(Some(status)) => {
                    stops.insert(tid, status);
                    false
                }
                Ok(None) => true,
                Err(_) => false,
            });
            // The last look found no new one. If a thread is late, each one that it makes is seized
            // as its child.
            let all = waiting.is_empty() && threads(root).unwrap_or_default().is_subset(&seen);
            if all || begun.elapsed() > HOLD {
                return Ok(Seized { stops, late: waiting });
            }
            thread::sleep(POLL);
        }
    }

    /// A thread of an attached program stopped at the entry or the exit of any call.
    pub(super) fn on_call_stop(&mut self, tid: Tid) {
        let Some(attached) = &self.attached else { return };
        match ptrace::call_stop(tid) {
            Ok(CallStop::Entry { arch, mut entry }) => {
                let args = entry.args.map(|arg| arg as u64);
                let answer = filter::answer_of(&attached.filter, arch, entry.number as u32, args);
                if answer == libc::SECCOMP_RET_ALLOW {
                    return self.run(tid);
                }
                entry.rule = answer & libc::SECCOMP_RET_DATA;
                self.entered(tid, entry);
            }
            // The kernel's time is not known: it was not measured without a call.
            Ok(CallStop::Exit) => self.on_exit(tid, None),
            // It was killed. Its end is reported next.
            Err(_) => self.run(tid),
        }
    }

    /// The user asked to leave the program: waits for the operations in flight, and leaves it.
    pub(super) fn leave_when_quiet(&mut self) {
        let Some(attached) = &mut self.attached else { return };
        let since = *attached.leaving.get_or_insert_with(Instant::now);
        // Threads may wait for this.
        self.hurry = true;
        if since.elapsed() > LAST || !self.spaces.values().any(|space| space.is_busy()) {
            self.detach();
        }
    }

    /// Gives all threads back.
    pub(super) fn detach(&mut self) {
        // Those whose stop is known, with the signal that each is to get.
        let mut stopped: HashMap<Tid, i32> = HashMap::new();
        let mut late = BTreeSet::new();
        for space in self.spaces.values_mut() {
            for (tid, status) in std::mem::take(&mut space.paused) {
                late.extend(child_of(tid, status));
                stopped.insert(tid, signal_of(status));
            }
        }
        stopped.extend(self.early.keys().map(|&tid| (tid, 0)));
        let held = self.tasks.iter().filter(|(_, task)| matches!(task.stage, TaskStage::Held(_)));
        stopped.extend(held.map(|(&tid, _)| (tid, 0)));
        late.extend(
            self.tasks
                .keys()
                .copied()
                .filter(|&tid| !stopped.contains_key(&tid) && ptrace::interrupt(tid)),
        );
        late.retain(|tid| !stopped.contains_key(tid));
        let begun = Instant::now();
        while !late.is_empty() && begun.elapsed() < HOLD {
            stopped.extend(self.stopped_of(&mut late));
            thread::sleep(POLL);
        }
        let spaces: Vec<MmId> = self.spaces.keys().copied().collect();
        for mm in spaces {
            let user = self.spaces.get(&mm).and_then(|space| space.users.iter().next().copied());
            let Some(tid) = user else { continue };
            let last = self.last_listing(mm, tid);
            self.end_space(mm, tid, false, last);
        }
        let_go(stopped);
        // A thread in an uninterruptible sleep may stay there for as long as its child likes.
        let asleep = |tid: &Tid| matches!(sys::state(*tid), Some(b'D') | None);
        while !late.iter().all(asleep) && begun.elapsed() < PATIENCE {
            let_go(self.stopped_of(&mut late));
            thread::sleep(POLL);
        }
        self.tasks.clear();
        self.early.clear();
        if let Some(attached) = &mut self.attached {
            attached.left = true;
        }
    }

    /// Takes those of `late` that have stopped, with the signal that each is to get. Those that
    /// have ended are left out. The new threads of a stopped one come to `late`.
    fn stopped_of(&mut self, late: &mut BTreeSet<Tid>) -> HashMap<Tid, i32> {
        let (mut stopped, mut born) = (HashMap::new(), Vec::new());
        late.retain(|&tid| match self.events.poll(tid) {
            Ok(Some(Status::Exited(_) | Status::Signaled(_))) | Err(_) => false,
            Ok(Some(status)) => {
                born.extend(child_of(tid, status));
                stopped.insert(tid, signal_of(status));
                false
            }
            Ok(None) => true,
        });
        // It is seized, and stops by itself.
        late.extend(born.into_iter().filter(|tid| !self.early.contains_key(tid)));
        stopped
    }
}

/// The threads of a process that are traced now.
struct Seized {
    /// The first stop of each.
    stops: HashMap<Tid, Status>,
    /// Those that have not stopped yet.
    late: BTreeSet<Tid>,
}

/// Ends the tracing of threads at their first stop.
fn give_back(stops: HashMap<Tid, Status>) {
    let_go(stops.into_iter().map(|(tid, status)| (tid, signal_of(status))).collect());
}

/// Ends the tracing of stopped threads, each with the signal that it is to get.
fn let_go(stopped: HashMap<Tid, i32>) {
    for (tid, signal) in stopped {
        // It fails only if the thread was killed.
        let _gone = ptrace::detach(tid, signal);
    }
}

/// The signal that a thread gets when it goes on after this stop.
fn signal_of(status: Status) -> i32 {
    if let Status::Signal(signal) = status { signal } else { 0 }
}

/// The new thread that this stop of `tid` tells of.
fn child_of(tid: Tid, status: Status) -> Option<Tid> {
    const BIRTHS: [i32; 3] =
        [libc::PTRACE_EVENT_FORK, libc::PTRACE_EVENT_VFORK, libc::PTRACE_EVENT_CLONE];
    let Status::Event(event, _) = status else { return None };
    if BIRTHS.contains(&event) { ptrace::message(tid).ok().map(|child| child as Tid) } else { None }
}

impl Follower<'_> {
    /// Resumes a thread of an attached program: it stops again at its next call.
    pub(super) fn how(&self, how: Resume) -> Resume {
        match how {
            Resume::Freely(signal) if self.attached.is_some() => Resume::ToCall(signal),
            how => how,
        }
    }
}
