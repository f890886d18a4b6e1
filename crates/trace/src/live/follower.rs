//! The main loop: waits for the next event of any thread and calls its handler.

use std::{
    collections::{BTreeSet, HashMap},
    io, mem,
    time::{Duration, Instant},
};

use super::{
    Error, Exit, Options,
    attach::Attached,
    events::Events,
    facilities::{self, Facilities},
    files::Files,
    peak::Peak,
    stacks::Stacks,
    sys::{
        self, Tid,
        heartbeat::{self, Forwarding, Heartbeat},
        ptrace::{self, Resume, Status},
    },
    tasks::{Overhead, Space, Task, TaskStage},
    watchers::Userfault,
};
use crate::{
    observer::Observer,
    record::{MmId, StackId},
};

/// The time that an operation may sleep while other threads wait for it. After that it counts as
/// waiting for one of them itself (a file system in user space). It may also wait for a disk.
const PATIENCE: Duration = Duration::from_millis(20);
/// The number of beats in a row at which a call must be asleep. A lock that is held for a moment
/// must not count.
const TWICE: u32 = 2;
/// The time that a new thread may wait for the event of its parent.
const ADOPTION: Duration = Duration::from_millis(500);

/// The tracer's state of the program.
pub(super) struct Follower<'a> {
    pub(super) options: Options,
    pub(super) observer: &'a mut dyn Observer,
    pub(super) facilities: Facilities,
    pub(super) tasks: HashMap<Tid, Task>,
    pub(super) spaces: HashMap<MmId, Space>,
    pub(super) files: Files,
    /// The call stacks, if they are recorded.
    pub(super) stacks: Option<Stacks>,
    /// By inode.
    pub(super) userfaults: HashMap<u64, Userfault>,
    pub(super) overhead: Overhead,
    /// The number of the newest address space.
    pub(super) last_mm: MmId,
    /// The thread that was resumed into its call last, if no other event came since.
    pub(super) timed: Option<(Tid, Instant)>,
    pub(super) events: Events,
    /// The last beat.
    beaten: Instant,
    /// New threads whose parent's event is still missing, with the time and the signal of their
    /// stop.
    pub(super) early: HashMap<Tid, (Instant, i32)>,
    /// The program's first process.
    pub(super) root: Tid,
    /// Whether it has become the program.
    pub(super) started: bool,
    pub(super) exit: Option<Exit>,
    /// Whether this thread has children that it does not follow. It must not wait for them.
    pub(super) has_others: bool,
    /// Whether a thread waits for another one's call. Then beats come faster.
    pub(super) hurry: bool,
    /// The descriptor limit of this process.
    pub(super) descriptors: u64,
    /// Set if the program ran before.
    pub(super) attached: Option<Attached>,
    /// The number of forwarded signals seen so far.
    wishes: u32,
    /// Whether a signal was passed on to the children that the program has left.
    told_children: bool,
    ending: bool,
    pub(super) peak: Peak,
}

impl<'a> Follower<'a> {
    /// Follows the process `root`, which is seized and about to become the program. Raises the
    /// limit of descriptors, which the program must not inherit, and says which facilities are
    /// missing.
    pub(super) fn new(
        options: Options,
        facilities: Facilities,
        observer: &'a mut dyn Observer,
        root: Tid,
    ) -> Self {
        let mut follower = Follower {
            options,
            observer,
            facilities,
            tasks: HashMap::from([(root, Task::new(None))]),
            spaces: HashMap::new(),
            files: Files::new(),
            stacks: Stacks::new(options.stack_depth),
            userfaults: HashMap::new(),
            overhead: Overhead::new(),
            last_mm: 0,
            timed: None,
            events: Events::default(),
            beaten: Instant::now(),
            early: HashMap::new(),
            root,
            started: false,
            exit: None,
            has_others: false,
            descriptors: sys::raise_descriptor_limit(),
            hurry: false,
            attached: None,
            wishes: 0,
            told_children: false,
            ending: false,
            peak: Peak::new(),
        };
        facilities.notices().into_iter().for_each(|text| follower.notice(text));
        facilities::unchecked().iter().for_each(|text| follower.notice(text));
        follower
    }

    /// Handles events until no thread is left. `None`: the program's end was never reported.
    pub(super) fn run_all(
        &mut self,
        beat: &Heartbeat,
        forwarding: Option<&Forwarding>,
    ) -> Result<Option<Exit>, Error> {
        let mut fast = false;
        loop {
            if fast != self.hurry {
                fast = self.hurry;
                let period = if fast { heartbeat::SOON } else { heartbeat::PERIOD };
                beat.every(period).map_err(|cause| Error::Follow { doing: "timing", cause })?;
            }
            if self.attached.as_ref().is_some_and(|attached| attached.left) {
                return Ok(self.exit);
            }
            let followed = self.tasks.len() + self.early.len();
            if self.has_others && followed == 0 && self.events.is_empty() {
                return Ok(self.exit);
            }
            match self.events.next(followed < 2) {
                Ok(Some((tid, status))) => {
                    // A time counts only if this is the first event since the thread was resumed.
                    self.timed.take_if(|(other, _)| *other != tid);
                    self.event(tid, status);
                    // A beat that comes between two waits is lost.
                    if self.beaten.elapsed() > 2 * heartbeat::PERIOD {
                        self.beat(forwarding);
                    }
                }
                Ok(None) => return Ok(self.exit),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    self.beat(forwarding);
                }
                Err(cause) => {
                    return Err(Error::Follow { doing: "waiting for its next event", cause });
                }
            }
        }
    }

    pub(super) fn event(&mut self, tid: Tid, status: Status) {
        let timed = self.timed.take_if(|(other, _)| *other == tid).map(|(_, at)| at.elapsed());
        match status {
            Status::Syscall if self.attached.is_some() => self.on_call_stop(tid),
            Status::Syscall => self.on_exit(tid, timed),
            Status::Signal(signal) => self.resume(tid, Resume::Freely(signal)),
            Status::Exited(code) => self.on_gone(tid, Exit::Code(code)),
            Status::Signaled(signal) => self.on_gone(tid, Exit::Signal(signal)),
            Status::Event(libc::PTRACE_EVENT_SECCOMP, _) => self.on_entry(tid),
            Status::Event(
                libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE,
                _,
            ) => {
                self.on_child(tid, status == Status::Event(libc::PTRACE_EVENT_VFORK, libc::SIGTRAP))
            }
            Status::Event(libc::PTRACE_EVENT_EXEC, _) => self.on_exec(tid),
            Status::Event(libc::PTRACE_EVENT_EXIT, _) => self.on_dying(tid),
            Status::Event(libc::PTRACE_EVENT_STOP, signal) => self.on_stop(tid, signal),
            Status::Event(..) => self.run(tid),
        }
        // If the run must end, no thread may stay stopped or continue.
        if self.ending {
            sys::kill(tid, libc::SIGKILL);
        }
    }

    /// Handles a new thread's first stop, or a stop of job control.
    fn on_stop(&mut self, tid: Tid, signal: i32) {
        match self.tasks.get_mut(&tid) {
            None => {
                self.early.insert(tid, (Instant::now(), signal));
            }
            Some(task) => {
                if matches!(task.stage, TaskStage::Fresh) {
                    task.stage = TaskStage::Running;
                }
                self.go_on(tid, signal);
            }
        }
    }

    /// Continues from a stop of job control. A stopping signal keeps the thread stopped; any other
    /// lets it run.
    pub(super) fn go_on(&mut self, tid: Tid, signal: i32) {
        let stops = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
        let how = if stops.contains(&signal) { Resume::Listen } else { Resume::Freely(0) };
        self.resume(tid, how);
    }

    /// The call stack of a thread that is stopped at the entry of a call; 0 if stacks are not
    /// recorded, or the thread was killed.
    pub(super) fn capture_stack(&mut self, mm: MmId, tid: Tid) -> StackId {
        match &mut self.stacks {
            Some(stacks) => stacks.capture(mm, tid, self.observer),
            None => 0,
        }
    }

    /// Reports the names of all functions in stacks, after the last call.
    pub(super) fn tell_symbols(&mut self) {
        if let Some(stacks) = &mut self.stacks {
            stacks.tell_symbols(self.observer);
        }
    }

    pub(super) fn run(&mut self, tid: Tid) {
        self.resume(tid, Resume::Freely(0));
    }

    /// Resumes a thread, unless it was killed in the known stop and is now stopped at its end. That
    /// stop is still to be reported, and resuming would hide it. (A kill right after the check
    /// still can; then only the last listing is lost.)
    pub(super) fn resume(&mut self, tid: Tid, how: Resume) {
        if !ptrace::is_dying(tid) {
            self.resume_anyway(tid, how);
        }
    }

    pub(super) fn resume_anyway(&mut self, tid: Tid, how: Resume) {
        let mm = self.tasks.get(&tid).and_then(|task| task.space);
        if let Some(space) = mm.and_then(|mm| self.spaces.get_mut(&mm)) {
            space.resumed(tid);
        }
        // A thread that cannot be resumed will report its end, or has never run.
        if let Err(error) = ptrace::resume(tid, self.how(how)) {
            self.notice(&format!("a thread could not be resumed ({error})"));
        }
    }

    fn on_gone(&mut self, tid: Tid, exit: Exit) {
        if tid == self.root {
            heartbeat::program_ended(tid);
            self.exit = Some(exit);
        }
        self.early.remove(&tid);
        self.leave(tid);
        self.tasks.remove(&tid);
    }

    /// The periodic checks.
    fn beat(&mut self, forwarding: Option<&Forwarding>) {
        self.beaten = Instant::now();
        let wishes = forwarding.map_or(0, Forwarding::wishes);
        let fresh = wishes > mem::replace(&mut self.wishes, wishes);
        if self.attached.is_some() && (wishes > 0 || self.observer.has_enough()) {
            return self.leave_when_quiet();
        }
        if self.observer.wants_names()
            && let Some(stacks) = &mut self.stacks
        {
            stacks.tell_names(self.observer);
        }
        if fresh && self.exit.is_some() {
            self.end_children(forwarding);
        }
        let waited_for: Vec<MmId> =
            self.spaces.iter().filter(|(_, s)| s.is_waited_for()).map(|(&mm, _)| mm).collect();
        self.hurry = !waited_for.is_empty();
        for mm in waited_for {
            if !self.is_blocked(mm) {
                continue;
            }
            self.resume_paused(mm);
            if self.spaces.get(&mm).is_none_or(|space| space.queue.is_empty()) {
                continue;
            }
            self.notice(
                "a memory call blocked while other threads of its process waited to make theirs; \
                 they were resumed, and these calls are recorded in the order in which they ended",
            );
            self.next_in_queue(mm);
        }
        let orphans: Vec<(Tid, i32)> = self
            .early
            .iter()
            .filter(|(_, (since, _))| since.elapsed() > ADOPTION)
            .map(|(&tid, &(_, signal))| (tid, signal))
            .collect();
        for (tid, signal) in orphans {
            self.early.remove(&tid);
            self.unfollowed(
                tid,
                "a process was killed while it forked; its child is not followed until its next \
                 execve",
            );
            self.tasks.insert(tid, Task::new(None));
            self.go_on(tid, signal);
        }
    }

    /// Whether the operation in flight seems to wait for a waiting thread. A call that runs, or is
    /// runnable, does not.
    fn is_blocked(&mut self, mm: MmId) -> bool {
        let Some(space) = self.spaces.get_mut(&mm) else { return false };
        let asleep = |tid: &Tid| matches!(sys::state(*tid), Some(b'S' | b'D'));
        space.asleep = if space.flying.iter().all(asleep) { space.asleep + 1 } else { 0 };
        // With a userfaultfd, the call most likely waits for a fault to be served, and hardly ever
        // for a disk.
        let blocked = space.asleep >= TWICE
            && (!space.watchers.is_empty() || space.since.elapsed() > PATIENCE);
        if blocked {
            space.blocked.extend(&space.flying);
        }
        blocked
    }

    /// Passes a signal on to the children that the program has left. A second one kills them: they
    /// cannot run without the tracer, which ends with them.
    fn end_children(&mut self, forwarding: Option<&Forwarding>) {
        if mem::replace(&mut self.told_children, true) {
            return self.end();
        }
        let processes: BTreeSet<Tid> =
            self.tasks.keys().filter_map(|&tid| sys::process_of(tid)).collect();
        if let Some(forwarding) = forwarding {
            processes.into_iter().for_each(|process| forwarding.pass_on(process));
        }
    }

    /// Kills everything that is followed.
    fn end(&mut self) {
        self.ending = true;
        for &tid in self.tasks.keys().chain(self.early.keys()) {
            sys::kill(tid, libc::SIGKILL);
        }
    }
}

/// Leaves no thread stopped, in whatever way following ends.
impl Drop for Follower<'_> {
    fn drop(&mut self) {
        if self.tasks.is_empty() && self.early.is_empty() {
            return;
        }
        if self.attached.is_some() {
            return self.detach();
        }
        self.end();
        // Handle each event until none is left: kill the thread, and let it end.
        loop {
            match ptrace::wait() {
                Ok(Some((tid, Status::Exited(_) | Status::Signaled(_)))) => {
                    self.tasks.remove(&tid);
                }
                Ok(Some((tid, _))) => {
                    sys::kill(tid, libc::SIGKILL);
                    let _gone = ptrace::resume(tid, Resume::Freely(0));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(None) | Err(_) => return,
            }
        }
    }
}
