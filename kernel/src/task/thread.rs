//! A thread.
//!
//! # Who may touch what
//! [`Own`] belongs to the CPU that runs the thread: no lock, no atomics. It changes hands with the
//! thread's state:
//!
//! | state | the thread | `Own` belongs to |
//! |---|---|---|
//! | `Running` | a CPU runs it, or works for it | that CPU |
//! | `Waiting` | as `Running`; its call has found that it must wait | that CPU |
//! | `Parked` | it waits, and no CPU has it | no CPU, until it is woken |
//! | `Ready` | it is in a queue | the queue |
//!
//! A wake-up turns `Waiting` into `Running`: the CPU finds that it must not park the thread, and
//! goes on. It turns `Parked` into `Ready`, and puts the thread into a queue. In all other states
//! it does nothing. So no wake-up is lost that comes after [`Thread::begin_wait`], and a thread is
//! in one queue at most.

use super::timer::Timer;
use super::{Process, Space, queue, signal};
use crate::futex::Waiter;
use crate::machine::Kernel;
use crate::trap::Registers;
use crate::user::xstate::XState;
use alloc::sync::Arc;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use machine::{CpuSet, Cpus};
use spin::mutex::SpinMutex;

const RUNNING: u8 = 0;
const WAITING: u8 = 1;
const PARKED: u8 = 2;
const READY: u8 = 3;

/// A thread of a program.
pub(crate) struct Thread {
    pub(crate) tid: u32,
    pub(crate) process: Arc<Process>,
    own: UnsafeCell<Own>,
    state: AtomicU8,
    /// The CPU that ran it last.
    pub(crate) cpu: AtomicUsize,
    /// The CPUs on which it may run.
    pub(crate) affinity: SpinMutex<CpuSet>,
    pub(crate) signals: SpinMutex<signal::OfThread>,
    /// A signal may be pending, or the thread is to end: looked at on the way to the program.
    attention: AtomicBool,
}

// SAFETY: `own` is used by one CPU at a time, as the table above says; all else is shared.
unsafe impl Sync for Thread {}
// SAFETY: as above.
unsafe impl Send for Thread {}

/// What only the CPU uses that runs the thread.
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
    /// What a call has recorded that waits.
    pub(crate) resume: Resume,
    /// The alternate stack of signals.
    pub(crate) stack: signal::AltStack,
}

/// What a call finds when it is made again after waiting. Each kind of call uses some.
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
    /// The child that a vfork waits for.
    pub(crate) child: Option<Arc<Process>>,
    /// The mask to restore after rt_sigsuspend or ppoll.
    pub(crate) mask: Option<u64>,
    /// The bytes that a read or write has copied so far.
    pub(crate) done: usize,
}

impl Resume {
    /// The call is over.
    pub(crate) fn clear(&mut self) {
        if let Some(waiter) = self.futex.take() {
            waiter.give_up();
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
            resume: Resume::default(),
            stack: signal::AltStack::default(),
        })
    }
}

impl Own {
    /// The state of a thread beside this one, which begins with the same registers.
    pub(crate) fn try_clone(&self, space: Arc<Space>) -> Option<Own> {
        Some(Own {
            registers: self.registers,
            xstate: self.xstate.try_clone()?,
            fs: self.fs,
            gs: self.gs,
            space: Some(space),
            clear_tid: 0,
            robust_list: 0,
            resume: Resume::default(),
            stack: self.stack,
        })
    }

    /// The memory.
    pub(crate) fn space(&self) -> &Arc<Space> {
        self.space.as_ref().expect("the thread has not ended")
    }

    /// Replaces the memory.
    pub(crate) fn set_space(&mut self, space: Arc<Space>) {
        self.space = Some(space);
    }

    /// Gives the memory up: the thread has ended.
    pub(super) fn end(&mut self) {
        self.space = None;
    }
}

impl Thread {
    /// A thread that is in no queue yet.
    pub(crate) fn new(tid: u32, process: Arc<Process>, own: Own) -> Arc<Thread> {
        Arc::new(Thread {
            tid,
            process,
            own: UnsafeCell::new(own),
            state: AtomicU8::new(PARKED),
            cpu: AtomicUsize::new(Kernel.current().index()),
            affinity: SpinMutex::new(Kernel.online()),
            signals: SpinMutex::new(signal::OfThread::default()),
            attention: AtomicBool::new(false),
        })
    }

    /// What only this CPU uses.
    ///
    /// # Safety
    /// This CPU runs the thread, and has no other reference to it.
    #[expect(clippy::mut_from_ref, reason = "by the caller's promise there is one")]
    pub(crate) unsafe fn own(&self) -> &mut Own {
        // SAFETY: by the caller's promise.
        unsafe { &mut *self.own.get() }
    }

    /// The thread will wait, unless it is woken from now on. The caller then looks whether what it
    /// waits for has happened: SeqCst, so either it sees the event, or the one that brings the
    /// event about sees this state in [`wake`](Self::wake).
    pub(crate) fn begin_wait(&self) {
        self.state.swap(WAITING, Ordering::SeqCst);
    }

    /// The thread does not wait.
    pub(crate) fn end_wait(&self) {
        // Relaxed: only this CPU uses the state now, but for wake-ups, which change nothing.
        self.state.store(RUNNING, Ordering::Relaxed);
    }

    /// Gives the thread up, if it still has to wait. Its registers are saved. Returns false if it
    /// has been woken; then this CPU still has it.
    pub(super) fn park(&self) -> bool {
        // Release: what this CPU did to `Own` comes before; pairs with the Acquire of `wake`, from
        // which the queue's lock passes it on.
        self.state.compare_exchange(WAITING, PARKED, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// The thread is going into a queue.
    pub(super) fn set_ready(&self) {
        // Relaxed: the queue's lock orders it.
        self.state.store(READY, Ordering::Relaxed);
    }

    /// The thread was taken from a queue.
    pub(super) fn set_running(&self) {
        // Relaxed: as above.
        self.state.store(RUNNING, Ordering::Relaxed);
    }

    /// Ends its waiting, if it waits.
    pub(crate) fn wake(self: &Arc<Self>) {
        loop {
            // SeqCst: pairs with `begin_wait`.
            match self.state.load(Ordering::SeqCst) {
                WAITING => {
                    let woken = self.state.compare_exchange(
                        WAITING,
                        RUNNING,
                        Ordering::SeqCst,
                        Ordering::Relaxed,
                    );
                    if woken.is_ok() {
                        return;
                    }
                }
                PARKED => {
                    // Acquire: pairs with the Release of `park`.
                    let woken = self.state.compare_exchange(
                        PARKED,
                        READY,
                        Ordering::Acquire,
                        Ordering::Relaxed,
                    );
                    if woken.is_ok() {
                        return queue::add(self);
                    }
                }
                _ => return,
            }
        }
    }

    /// Makes the thread look for signals, and for its end, before it goes on.
    pub(crate) fn call_attention(self: &Arc<Self>) {
        // SeqCst: either a thread that is about to wait sees it after `begin_wait`, or `wake` sees
        // that it waits.
        self.attention.store(true, Ordering::SeqCst);
        self.wake();
        queue::poke(self);
    }

    /// Whether it has to look.
    pub(crate) fn has_attention(&self) -> bool {
        // SeqCst: as above.
        self.attention.load(Ordering::SeqCst)
    }

    /// Clears the mark, before it looks.
    pub(crate) fn take_attention(&self) {
        // SeqCst: what comes after the look sets it again.
        self.attention.store(false, Ordering::SeqCst);
    }
}
