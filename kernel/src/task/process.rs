//! A process: the state that its threads share. The table of all processes.

use super::credentials::Identity;
use super::memory::{Memory, Space};
use super::pid::{Exit, Pid};
use super::program::{Name, Program, shown};
use super::signal::state::OfProcess;
use super::signal::timers::Timers;
use super::thread::Thread;
use super::usage::Usage;
use super::wait::WaitQueue;
use crate::errno::Errno;
use crate::file::Files;
use crate::lock::lock;
use crate::machine::Kernel;
use crate::path::Place;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};
use linux_raw_sys::errno::ESRCH;
use machine::Step;
use spin::mutex::SpinMutex;

/// The number of the first process.
pub(crate) const FIRST: u32 = 1;
/// Numbers are below this, as in Linux with many CPUs.
const NUMBERS: u32 = 1 << 22;

/// A process.
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// The same number, and the end of the process. Descriptors may keep it for longer.
    pub(crate) handle: Arc<Pid>,
    /// The process group and the session.
    pub(crate) group: AtomicU32,
    pub(crate) session: AtomicU32,
    pub(crate) parent: SpinMutex<Weak<Process>>,
    /// Its children, those included that have ended and for which it has not waited.
    pub(crate) children: SpinMutex<Vec<Arc<Process>>>,
    /// Its threads that have not ended.
    pub(crate) threads: SpinMutex<Vec<Arc<Thread>>>,
    /// None when it has ended.
    pub(crate) memory: SpinMutex<Option<Memory>>,
    /// Higher for a process that is killed earlier when memory runs out: from -1000, never, to
    /// 1000.
    pub(crate) oom_score_adj: AtomicI32,
    /// Memory ran out for it while it was ending.
    pub(super) had_room: AtomicBool,
    pub(crate) files: SpinMutex<Option<Arc<Files>>>,
    pub(crate) place: SpinMutex<Place>,
    pub(crate) signals: SpinMutex<OfProcess>,
    /// The cause of its end; none while it is not ending.
    pub(crate) exiting: SpinMutex<Option<Exit>>,
    /// The signal that its parent gets at its end; 0 for none. A new parent, and the parent of a
    /// new program, get SIGCHLD.
    pub(crate) exit_signal: AtomicU32,
    /// The programs that it has started by execve.
    pub(crate) programs: AtomicU32,
    /// The programs that its parent had started when it made this process.
    pub(crate) programs_of_parent: AtomicU32,
    /// Woken when a child ends.
    pub(crate) events: WaitQueue,
    /// The thread that replaces the program waits here for the others to end.
    pub(crate) alone: WaitQueue,
    /// The thread that replaces the program, while it waits for the others to end.
    pub(crate) replacing: SpinMutex<Option<u32>>,
    /// The name of its first thread.
    pub(crate) name: SpinMutex<Name>,
    /// The program, for /proc.
    pub(crate) program: SpinMutex<Program>,
    /// CPU time and faults of its threads, each up to its last [`Thread::tell`].
    pub(crate) used: Usage,
    pub(crate) identity: SpinMutex<Identity>,
    pub(crate) timers: Timers,
    /// CPU time and faults of the children for which it has waited, and of theirs.
    pub(crate) used_by_children: Usage,
}

static ALL: SpinMutex<BTreeMap<u32, Arc<Process>>> = SpinMutex::new(BTreeMap::new());
static THREADS: SpinMutex<BTreeMap<u32, Weak<Thread>>> = SpinMutex::new(BTreeMap::new());
static NEXT: AtomicU32 = AtomicU32::new(FIRST);

/// A number for a thread or a process, not in use.
pub(crate) fn number() -> u32 {
    loop {
        // Relaxed: only the number.
        let number = NEXT.fetch_add(1, Ordering::Relaxed) % NUMBERS;
        if number >= FIRST && !lock(&ALL).contains_key(&number) && thread(number).is_none() {
            return number;
        }
    }
}

/// The process of this number.
pub(crate) fn process(pid: u32) -> Option<Arc<Process>> {
    lock(&ALL).get(&pid).cloned()
}

/// The process of a descriptor.
///
/// # Errors
/// ESRCH: its parent has waited for its end.
pub(crate) fn of(pid: &Arc<Pid>) -> Result<Arc<Process>, Errno> {
    let found = process(pid.number).filter(|process| Arc::ptr_eq(&process.handle, pid));
    found.ok_or(Errno(ESRCH))
}

/// The thread of this number.
pub(crate) fn thread(tid: u32) -> Option<Arc<Thread>> {
    lock(&THREADS).get(&tid).and_then(Weak::upgrade)
}

/// All processes, those included that have ended and for which no parent has waited.
pub(crate) fn all() -> Vec<Arc<Process>> {
    lock(&ALL).values().cloned().collect()
}

/// Calls `each` with every process, under the lock of the table: meanwhile, no process is made.
pub(crate) fn for_each(each: impl FnMut(&Arc<Process>)) {
    lock(&ALL).values().for_each(each);
}

/// The first process from this number on of which `is` says so. `is` runs under the lock of the
/// table.
pub(crate) fn next(from: u32, is: impl Fn(&Arc<Process>) -> bool) -> Option<Arc<Process>> {
    lock(&ALL).range(from..).map(|(_, process)| process).find(|process| is(process)).cloned()
}

/// Whether there is no process any more.
pub(crate) fn is_over() -> bool {
    lock(&ALL).is_empty()
}

impl Process {
    /// A process without threads, in the table. `maker` makes it. With `as_sibling`, it is the
    /// child of the maker's parent; else the maker's. `None`: the maker is ending.
    ///
    /// The maker's end is looked at under the lock of the table, under which [`for_each`] visits
    /// all processes. So a call that ends several of them misses none: it ends the new process, or
    /// it has ended the maker before.
    pub(crate) fn new(
        maker: Option<&Arc<Process>>,
        as_sibling: bool,
        exit_signal: u32,
        memory: Memory,
        files: Arc<Files>,
    ) -> Option<Arc<Process>> {
        let pid = number();
        // Relaxed: only the numbers.
        let of = |number: fn(&Process) -> &AtomicU32| {
            AtomicU32::new(maker.map_or(pid, |maker| number(maker).load(Ordering::Relaxed)))
        };
        let process = Arc::new(Process {
            pid,
            handle: Arc::new(Pid::new(pid)),
            group: of(|parent| &parent.group),
            session: of(|parent| &parent.session),
            parent: SpinMutex::default(),
            children: SpinMutex::default(),
            threads: SpinMutex::default(),
            memory: SpinMutex::new(Some(memory)),
            oom_score_adj: AtomicI32::new(
                maker.map_or(0, |maker| maker.oom_score_adj.load(Ordering::Relaxed)),
            ),
            had_room: AtomicBool::new(false),
            files: SpinMutex::new(Some(files)),
            place: SpinMutex::default(),
            signals: SpinMutex::default(),
            exiting: SpinMutex::default(),
            exit_signal: exit_signal.into(),
            programs: AtomicU32::new(0),
            programs_of_parent: AtomicU32::new(0),
            events: WaitQueue::new(),
            alone: WaitQueue::new(),
            replacing: SpinMutex::default(),
            name: SpinMutex::default(),
            program: SpinMutex::default(),
            used: Usage::default(),
            timers: Timers::default(),
            identity: SpinMutex::new(
                maker.map(|maker| lock(&maker.identity).clone()).unwrap_or_default(),
            ),
            used_by_children: Usage::default(),
        });
        {
            let mut all = lock(&ALL);
            if maker.is_some_and(|maker| lock(&maker.exiting).is_some()) {
                return None;
            }
            all.insert(pid, Arc::clone(&process));
        }
        if let Some(maker) = maker {
            process.join_parent(maker, as_sibling);
        }
        Some(process)
    }

    /// Makes a new process a child of its maker, or with `as_sibling`, of the maker's parent.
    fn join_parent(self: &Arc<Self>, maker: &Arc<Process>, as_sibling: bool) {
        loop {
            let above = if as_sibling { lock(&maker.parent).upgrade() } else { None };
            let parent = above.as_ref().unwrap_or(maker);
            let mut children = lock(&parent.children);
            // A parent that has ended has given up its children, the maker among them. The maker
            // goes to another parent.
            if above.is_some() && !children.iter().any(|child| Arc::ptr_eq(child, maker)) {
                drop(children);
                Kernel.relax();
                continue;
            }
            *lock(&self.parent) = Arc::downgrade(parent);
            let programs =
                if above.is_some() { &maker.programs_of_parent } else { &maker.programs };
            // Relaxed: read with the lock of the children, too, or later by this process.
            self.programs_of_parent.store(programs.load(Ordering::Relaxed), Ordering::Relaxed);
            return children.push(Arc::clone(self));
        }
    }

    /// Adds a thread, which can be found from now on. Returns false if the process is ending.
    pub(crate) fn add(&self, thread: &Arc<Thread>) -> bool {
        let mut threads = lock(&self.threads);
        if lock(&self.exiting).is_some() {
            return false;
        }
        threads.push(Arc::clone(thread));
        lock(&THREADS).insert(thread.tid(), Arc::downgrade(thread));
        true
    }

    /// Removes a thread that ends, and returns whether it was the last.
    pub(super) fn remove(&self, thread: &Arc<Thread>) -> bool {
        let mut threads = lock(&self.threads);
        threads.retain(|other| !Arc::ptr_eq(other, thread));
        lock(&THREADS).remove(&thread.tid());
        threads.is_empty()
    }

    /// Gives the number of the process to its only thread, which replaces the program.
    pub(crate) fn make_first(&self, thread: &Arc<Thread>) {
        let mut threads = lock(&THREADS);
        if thread.tid() != self.pid {
            threads.remove(&thread.tid());
            thread.set_tid(self.pid);
            threads.insert(self.pid, Arc::downgrade(thread));
        }
    }

    /// Takes a process that has ended out of the table.
    pub(crate) fn reap(self: &Arc<Self>) {
        if let Some(parent) = lock(&self.parent).upgrade() {
            lock(&parent.children).retain(|child| !Arc::ptr_eq(child, self));
        }
        lock(&ALL).remove(&self.pid);
        self.handle.set_reaped();
    }

    /// Makes all threads end. The first cause counts.
    pub(crate) fn end(&self, how: Exit) {
        // With the lock of the threads, so that none is added meanwhile.
        let threads = lock(&self.threads);
        lock(&self.exiting).get_or_insert(how);
        threads.iter().for_each(|thread| thread.call_attention());
    }

    /// The memory. None when the process has ended.
    pub(crate) fn space(&self) -> Option<Arc<Space>> {
        lock(&self.memory).as_ref().map(|memory| Arc::clone(&memory.space))
    }

    /// Its number and name, for people.
    pub(crate) fn shown(&self) -> String {
        let name = *lock(&self.name);
        format!("{} ({})", self.pid, shown(&name))
    }

    /// The files. None when the process has ended.
    pub(crate) fn files(&self) -> Option<Arc<Files>> {
        lock(&self.files).clone()
    }
}
