//! A thread.
//!
//! # Access
//! [`Own`] belongs to the CPU that runs the thread: no lock, no atomics. It changes hands with the
//! thread's state, which `state.rs` describes. A thread is in one queue at most.

use super::memory::Space;
use super::pid::Exit;
use super::process::Process;
use super::program::{Loaded, Name, Program};
use super::run_queue;
use super::schedule::Schedule;
use super::signal::stack::AltStack;
use super::signal::state::OfThread;
use super::state::State;
use super::timer::{self, Expire, Timer};
use super::usage::{Clock, Usage};
use super::wait::Sleeper;
use crate::call::outcome::Outcome;
use crate::file::Files;
use crate::file::open::Open;
use crate::file::poll::PolledFile;
use crate::file::userfault_events::Events;
use crate::file::userfaultfd::Monitor;
use crate::futex::{self, Waiter, pi};
use crate::lock::lock;
use crate::machine::Kernel;
use crate::text::Text;
use crate::trap::Registers;
use crate::user::xstate::XState;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};
use machine::{CpuSet, Cpus};
use spin::mutex::SpinMutex;

/// A thread of a program.
pub(crate) struct Thread {
    /// Its number. An execve gives the thread the number of its process.
    tid: AtomicU32,
    pub(crate) process: Arc<Process>,
    /// The name of a thread that is not the first of its process.
    name: SpinMutex<Name>,
    /// The thread that waits until this one ends or replaces its program (CLONE_VFORK).
    pub(crate) vfork: SpinMutex<Option<Arc<Thread>>>,
    own: UnsafeCell<Own>,
    state: State,
    /// It never waits again.
    ended: AtomicBool,
    /// CPU time and faults of the thread, up to the last [`Thread::tell`].
    pub(crate) used: Usage,
    /// The CPU that ran it last.
    pub(crate) cpu: AtomicUsize,
    /// The CPUs on which it may run.
    pub(crate) affinity: SpinMutex<CpuSet>,
    pub(crate) signals: SpinMutex<OfThread>,
    pub(crate) schedule: Schedule,
}

// SAFETY: `own` is used by one CPU at a time, as the table of `state.rs` says; all else is shared.
unsafe impl Sync for Thread {}
// SAFETY: as above.
unsafe impl Send for Thread {}

/// The part of a thread that only the CPU uses that runs it.
pub(crate) struct Own {
    pub(crate) registers: Registers,
    pub(crate) xstate: XState,
    pub(crate) fs: u64,
    pub(crate) gs: u64,
    /// None when the thread has ended: others may hold it longer than it lives.
    space: Option<Arc<Space>>,
    /// The word to clear, and the futex to wake, when the thread ends (CLONE_CHILD_CLEARTID).
    pub(crate) clear_tid: u64,
    /// The head of the list of robust futexes.
    pub(crate) robust_list: u64,
    /// The progress of a call that will be made again.
    pub(crate) resume: Touched,
    /// CPU time and faults since the last [`Thread::tell`], and the end of the turn.
    pub(crate) clock: Clock,
    /// The monitor that is to resolve its fault, while it waits for that.
    pub(crate) monitor: Option<Weak<Monitor>>,
    /// The memory that the thread has used as the last one, and empties before all else.
    pub(crate) empties: Option<Arc<Space>>,
    /// The alternate stack of signals.
    pub(crate) stack: AltStack,
}

/// The progress of a call, which it finds when it is made again. Each kind of call uses some
/// fields.
#[derive(Default)]
pub(crate) struct Resume {
    /// It is made again, before the program goes on.
    pub(crate) again: bool,
    /// A signal has interrupted it. It is made again, or a handler ends it.
    pub(crate) interrupted: bool,
    /// The time at which it stops waiting.
    pub(crate) deadline: Option<u64>,
    /// The timer that runs for it.
    pub(crate) timer: Option<Timer>,
    pub(crate) futex: Option<Arc<Waiter>>,
    /// The lock that it waits for.
    pub(crate) lock: Option<Arc<pi::Waiter>>,
    /// It is made anew after any handler.
    pub(crate) restarts: bool,
    /// The new thread that a vfork waits for.
    pub(crate) child: Option<Arc<Thread>>,
    /// The mask to restore after rt_sigsuspend or ppoll.
    pub(crate) mask: Option<u64>,
    /// The program that an execve has loaded, while it waits for the other threads to end.
    pub(crate) program: Option<(Loaded, Program)>,
    /// The events of which monitors of userfaultfd are to read before the call returns.
    pub(crate) events: Option<Events>,
    /// The result of a call that has changed memory: it returns it when they have read the events.
    pub(crate) changed: Option<Outcome>,
    /// The memory and the files for the child of a fork, while they read of the fork.
    pub(crate) forked: Option<Forked>,
    /// The entries of a poll or select, with the files for which it waits.
    pub(crate) polled: Option<Vec<PolledFile>>,
    /// The size of the file when a fallocate began.
    pub(crate) size: Option<u64>,
    /// The end of a pipe that waits for the other.
    pub(crate) opening: Option<Opening>,
    /// The beginning of the call, for its line (`call::strace`).
    pub(crate) begun: Option<Begun>,
    /// The bytes that the call has moved so far.
    pub(crate) done: usize,
    /// Its descriptors, and the files that they named when it began to wait or to move bytes.
    pub(crate) files: [Option<(u64, Arc<Open>)>; 2],
}

/// The memory and the files for the child of a fork. A copy of the table of files is made before
/// monitors read of the fork, so the child does not get the descriptors that they get by it.
#[derive(Clone)]
pub(crate) struct Forked {
    pub(crate) space: Arc<Space>,
    pub(crate) files: Arc<Files>,
}

/// An end of a pipe with a name, which is opened, and waits for the other end.
pub(crate) struct Opening {
    pub(crate) open: Arc<Open>,
    /// The flags of open(2).
    pub(crate) flags: u32,
    /// The openings of the other end before.
    pub(crate) before: u64,
}

/// The beginning of a call, for the line about it (`call::strace`).
pub(crate) struct Begun {
    pub(crate) at: u64,
    pub(crate) number: usize,
    pub(crate) arguments: Text,
}

/// A [`Resume`], and whether a call has changed it: most do not, and leave nothing to clear.
#[derive(Default)]
pub(crate) struct Touched {
    resume: Resume,
    is_touched: bool,
}

impl Deref for Touched {
    type Target = Resume;

    fn deref(&self) -> &Resume {
        &self.resume
    }
}

impl DerefMut for Touched {
    fn deref_mut(&mut self) -> &mut Resume {
        self.is_touched = true;
        &mut self.resume
    }
}

impl Touched {
    /// The call is over. A load, if it has changed nothing.
    pub(crate) fn clear(&mut self) {
        if self.is_touched {
            self.is_touched = false;
            self.resume.clear();
        }
    }
}

impl Resume {
    /// Wakes the thread, whose own this is, at this time or later, until its call is over.
    pub(crate) fn wake_at(&mut self, time: u64, thread: &Arc<Thread>) {
        if let Some(before) = self.timer.take() {
            before.cancel();
        }
        let thread = Arc::downgrade(thread);
        self.timer = Some(timer::call_at(time, thread));
    }

    #[cold]
    fn clear(&mut self) {
        if let Some(waiter) = self.futex.take() {
            futex::give_up(&waiter);
        }
        if let Some(waiter) = self.lock.take() {
            pi::give_up(&waiter);
        }
        if let Some(timer) = self.timer.take() {
            timer.cancel();
        }
        *self = Resume::default();
    }
}

impl Own {
    /// The state of the first thread of a program.
    pub(crate) fn try_new(space: Arc<Space>) -> Option<Own> {
        Some(Own {
            registers: Registers::default(),
            xstate: XState::try_new()?,
            fs: 0,
            gs: 0,
            space: Some(space),
            clear_tid: 0,
            robust_list: 0,
            resume: Touched::default(),
            clock: Clock::default(),
            monitor: None,
            empties: None,
            stack: AltStack::default(),
        })
    }
}

impl Own {
    /// The state of a thread of the same process, which begins with the same registers.
    pub(crate) fn try_clone(&self, space: Arc<Space>) -> Option<Own> {
        Some(Own {
            registers: self.registers,
            xstate: self.xstate.try_clone()?,
            fs: self.fs,
            gs: self.gs,
            space: Some(space),
            clear_tid: 0,
            robust_list: 0,
            resume: Touched::default(),
            clock: Clock::default(),
            monitor: None,
            empties: None,
            stack: self.stack,
        })
    }

    /// The memory.
    pub(crate) fn space(&self) -> &Arc<Space> {
        self.space.as_ref().expect("the thread has not ended")
    }

    /// The memory that the CPU has active while it runs the thread: none when it has ended.
    pub(crate) fn active(&self) -> Option<&Arc<Space>> {
        self.space.as_ref()
    }

    /// Replaces the memory.
    pub(crate) fn set_space(&mut self, space: Arc<Space>) {
        self.space = Some(space);
    }

    /// Gives the memory up: the thread has ended.
    pub(super) fn end(&mut self) {
        self.space = None;
    }

    /// Whether the thread has run for its turn, and others wait for this CPU. Wakes those whose
    /// time has come. Two loads and two readings of the clock.
    pub(crate) fn is_turn_over(&self) -> bool {
        timer::expire();
        self.clock.is_turn_over() && run_queue::has_others()
    }
}

impl Thread {
    /// A thread that is in no queue yet.
    pub(crate) fn new(tid: u32, process: Arc<Process>, own: Own) -> Arc<Thread> {
        Arc::new(Thread {
            tid: AtomicU32::new(tid),
            process,
            name: SpinMutex::default(),
            vfork: SpinMutex::default(),
            own: UnsafeCell::new(own),
            state: State::parked(),
            ended: AtomicBool::new(false),
            used: Usage::default(),
            cpu: AtomicUsize::new(Kernel.current().index()),
            affinity: SpinMutex::new(Kernel.online()),
            signals: SpinMutex::new(OfThread::default()),
            schedule: Schedule::default(),
        })
    }

    /// Its number.
    pub(crate) fn tid(&self) -> u32 {
        // Relaxed: only the number.
        self.tid.load(Ordering::Relaxed)
    }

    /// Sets the number. The table of threads has to follow.
    pub(super) fn set_tid(&self, tid: u32) {
        self.tid.store(tid, Ordering::Relaxed);
    }

    /// Its name. That of the first thread is its process's, and outlives the thread.
    pub(crate) fn name(&self) -> &SpinMutex<Name> {
        if self.tid() == self.process.pid { &self.process.name } else { &self.name }
    }

    /// The part that only this CPU uses.
    ///
    /// # Safety
    /// This CPU runs the thread, and has no other reference to it.
    #[expect(clippy::mut_from_ref, reason = "by the caller's promise there is one")]
    pub(crate) unsafe fn own(&self) -> &mut Own {
        // SAFETY: by the caller's promise.
        unsafe { &mut *self.own.get() }
    }

    /// The thread will wait, unless it is woken from now on. The caller then looks whether the
    /// event has come already.
    pub(crate) fn begin_wait(&self) {
        self.state.begin_wait();
    }

    /// Says that only the end of the thread interrupts the waiting that has begun.
    pub(crate) fn wait_deeply(&self) {
        self.state.set_deep();
    }

    /// Whether it waits, and then whether a signal ends that.
    pub(crate) fn waits(&self) -> Option<bool> {
        self.state.waits()
    }

    /// The thread does not wait.
    pub(crate) fn end_wait(&self) {
        self.state.end_wait();
    }

    /// The thread has made its last call.
    pub(super) fn set_ended(&self) {
        // Relaxed: only the mark. A CPU that sees it late keeps the thread for longer.
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Gives the thread up, if it still has to wait. Its registers are saved. Returns false if it
    /// has been woken; then this CPU still has it.
    pub(crate) fn park(&self) -> bool {
        self.state.park()
    }

    /// The thread is going into a queue.
    pub(super) fn set_ready(&self) {
        self.state.set_ready();
    }

    /// This CPU has taken the thread from a queue.
    pub(super) fn set_running(&self) {
        self.state.set_running();
        // Relaxed: the fence orders it before the look for attention. It pairs with that of
        // `State::wake`: either this CPU sees the attention, or `run_queue::poke` sees this CPU.
        self.cpu.store(Kernel.current().index(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Makes the thread look for signals, and for its end, before it goes on.
    pub(crate) fn call_attention(self: &Arc<Self>) {
        if self.state.call_attention() {
            run_queue::add(Arc::clone(self));
        }
        run_queue::poke(self);
    }

    /// Whether it has to look for signals and for its end: asked on the way to the program.
    pub(crate) fn has_attention(&self) -> bool {
        self.state.has_attention()
    }

    /// Clears the mark, before it looks.
    pub(crate) fn take_attention(&self) {
        self.state.take_attention();
    }

    /// Ends its process.
    pub(crate) fn end_process(self: &Arc<Self>, how: Exit) {
        self.process.end(how);
        // For a thread that is not in the list any more.
        let _ = lock(&self.process.exiting).get_or_insert(how);
        self.call_attention();
    }

    /// Adds the time and the faults since the last call to those of the thread and its process: as
    /// time in the program, or `in_kernel`. Four atomic additions, or six with `in_kernel`.
    pub(crate) fn tell(&self, own: &mut Own, in_kernel: bool) {
        let more = own.clock.take(in_kernel);
        self.used.add(more);
        self.process.used.add(more);
    }
}

impl Sleeper for Thread {
    fn wake(self: Arc<Self>) {
        if self.state.wake() {
            run_queue::add(self);
        }
    }

    fn has_ended(&self) -> bool {
        // Relaxed: as in `set_ended`.
        self.ended.load(Ordering::Relaxed)
    }
}

impl Expire for Thread {
    fn expire(self: Arc<Self>) {
        self.wake();
    }
}
