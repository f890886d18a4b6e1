//! Signals, as Linux delivers them on x86-64.
//!
//! | module | contents |
//! |---|---|
//! | `number` | their numbers, and sets of them |
//! | `state` | the signals of a thread, and those of a process |
//! | `info` | the description of a signal for a program |
//! | `pending` | the signals that are pending for a thread or a process |
//! | `action` | the actions of a process at signals |
//! | `deliver` | on the way to the program: the next signal, and its effect |
//! | `frame` | the frame of a handler on the program's stack |
//! | `stack` | the alternate stack |
//! | `fault` | signals for faults and exceptions |
//! | `alarm` | the timer of a process |
//! | `timers` | the timers that a program makes |
//!
//! # Why no signal is lost
//! A sender adds the signal to a pending set, with its lock held, then chooses a thread that does
//! not block it, and calls its attention ([`Thread::call_attention`]). A thread that blocks a
//! signal sets its mask first and looks at the set of its process afterwards: if the signal is
//! there, it passes it on to another thread. So either the sender sees the mask, or the thread the
//! signal. A thread that ends does the same. A thread that waits looks at the sets after it has
//! begun to wait.
//!
//! The lock of a process comes before that of a thread, and both before those of its timers and of
//! its actions.
//!
//! # What is not here
//! Job control. A stop signal may be blocked, caught and waited for, but by default it does
//! nothing, and the kernel says so once. No core is written.
//!
//! # Costs
//! A signal: one allocation for the list of threads, two locks, and an interrupt if the thread runs
//! on another CPU. A handler: the frame is written by two copies, about 3 KiB with AVX-512.

mod action;
mod alarm;
mod deliver;
mod fault;
mod frame;
mod info;
mod number;
mod pending;
pub(crate) mod stack;
pub(crate) mod state;
pub(crate) mod timers;

pub(crate) use action::Action;
pub(crate) use deliver::{attend, interrupted};
pub(crate) use fault::{BUS_ADRERR, SEGV_MAPERR, force, force_for_fault, force_for_vector};
pub(crate) use frame::restore;
pub(crate) use info::{Info, SI_KERNEL, SI_TKILL, SI_USER, WholeInfo};
pub(crate) use number::*;
pub(crate) use stack::AltStack;

use super::pid::Exit;
use super::process::Process;
use super::thread::Thread;
use super::timer::Expire;
use crate::errno::Errno;
use crate::lock::lock;
use action::Actions;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::Ordering;
use spin::mutex::SpinMutex;
use timers::Target;

impl Target for Process {
    fn send(self: Arc<Self>, info: Info) -> Result<bool, Errno> {
        queue(&self, info)
    }
}

impl Target for Thread {
    fn send(self: Arc<Self>, info: Info) -> Result<bool, Errno> {
        queue_to(&self, info)
    }
}

impl Expire for Process {
    fn expire(self: Arc<Self>) {
        let this: Weak<Process> = Arc::downgrade(&self);
        if lock(&self.signals).alarm.expire(this) {
            // A standard signal is never refused.
            let _ = send(&self, Info::kernel(SIGALRM));
        }
    }
}

/// The state of the process's ITIMER_REAL: nanoseconds until it is due, and its interval. With
/// `new`, it is set to such a state; 0 nanoseconds stop it.
pub(crate) fn set_alarm(process: &Arc<Process>, new: Option<(u64, u64)>) -> (u64, u64) {
    let this: Weak<Process> = Arc::downgrade(process);
    lock(&process.signals).alarm.set(new, this)
}

/// Whether the thread is to end, alone or with its process.
pub(crate) fn is_ending(thread: &Thread) -> bool {
    lock(&thread.process.exiting).is_some() || lock(&thread.signals).ends
}

/// Whether a signal is pending that ends waiting, or the thread is to end. Two locks.
pub(crate) fn is_pending(thread: &Thread) -> bool {
    let shared = lock(&thread.process.signals).pending.set();
    let found = {
        let own = lock(&thread.signals);
        own.ends || (own.pending.set() | shared) & !own.mask != 0
    };
    found || lock(&thread.process.exiting).is_some()
}

/// Sends a signal to a process: one thread that does not block it will handle it.
///
/// # Errors
/// EAGAIN: too many real-time signals are pending.
pub(crate) fn send(process: &Process, info: Info) -> Result<(), Errno> {
    queue(process, info).map(drop)
}

/// As [`send`]. Returns false if the signal is ignored.
fn queue(process: &Process, info: Info) -> Result<bool, Errno> {
    let number = info.number();
    if number == SIGKILL {
        process.end(Exit::Signal(SIGKILL));
        return Ok(true);
    }
    // The lock of the threads comes before those of signals and queues. A copy of the list would
    // need memory.
    let threads = lock(&process.threads);
    let Some(first) = threads.first() else { return Ok(false) };
    forget_opposites(process, &threads, number);
    {
        let mut signals = lock(&process.signals);
        let blocked = lock(&first.signals).mask & bit(number) != 0;
        if !blocked && lock(&signals.actions).ignore(number) {
            return Ok(false);
        }
        signals.pending.add(info)?;
    }
    notify(&threads, number);
    Ok(true)
}

/// Sends a signal to a thread.
///
/// # Errors
/// As for [`send`].
pub(crate) fn send_to_thread(thread: &Arc<Thread>, info: Info) -> Result<(), Errno> {
    queue_to(thread, info).map(drop)
}

/// As [`send_to_thread`]. Returns false if the signal is ignored.
fn queue_to(thread: &Arc<Thread>, info: Info) -> Result<bool, Errno> {
    let (process, number) = (&thread.process, info.number());
    if number == SIGKILL {
        process.end(Exit::Signal(SIGKILL));
        return Ok(true);
    }
    if STOPS & bit(number) != 0 || number == SIGCONT {
        forget_opposites(process, &lock(&process.threads), number);
    }
    let wanted = {
        let signals = lock(&process.signals);
        let mut own = lock(&thread.signals);
        if own.mask & bit(number) == 0 && lock(&signals.actions).ignore(number) {
            return Ok(false);
        }
        own.pending.add(info)?;
        own.wants(number)
    };
    if wanted {
        thread.call_attention();
    }
    Ok(true)
}

/// Sends a signal of the thread's own doing to it, such as SIGPIPE.
pub(crate) fn raise(thread: &Arc<Thread>, number: u8) {
    // A standard signal is never refused.
    let _ = send_to_thread(thread, Info::sent(number, SI_USER, thread.process.pid));
}

/// SIGCONT ends pending stops, and a stop a pending SIGCONT.
fn forget_opposites(process: &Process, threads: &[Arc<Thread>], number: u8) {
    let opposites = match number {
        SIGCONT => STOPS,
        number if STOPS & bit(number) != 0 => bit(SIGCONT),
        _ => return,
    };
    forget(process, threads, opposites);
}

fn forget(process: &Process, threads: &[Arc<Thread>], set: u64) {
    lock(&process.signals).pending.forget(set);
    threads.iter().for_each(|thread| lock(&thread.signals).pending.forget(set));
}

/// Calls the attention of a thread for a signal that is pending for its process.
fn notify(threads: &[Arc<Thread>], number: u8) {
    if let Some(thread) = threads.iter().find(|thread| lock(&thread.signals).wants(number)) {
        thread.call_attention();
    }
}

/// Passes signals on that are pending for a process, and that a thread will not handle.
fn pass_on(process: &Process, mut set: u64) {
    let threads = lock(&process.threads);
    while set != 0 {
        notify(&threads, set.trailing_zeros() as u8 + 1);
        set &= set - 1;
    }
}

/// The signals that a thread blocks.
pub(crate) fn mask(thread: &Thread) -> u64 {
    lock(&thread.signals).mask
}

/// Sets the signals that a thread blocks: the caller's own. Returns those before.
pub(crate) fn set_mask(thread: &Arc<Thread>, mask: u64) -> u64 {
    let mask = mask & !UNCATCHABLE;
    let before = core::mem::replace(&mut lock(&thread.signals).mask, mask);
    if mask & !before != 0 {
        let lost = lock(&thread.process.signals).pending.set() & mask & !before;
        if lost != 0 {
            pass_on(&thread.process, lost);
        }
    }
    if before & !mask != 0 && is_pending(thread) {
        thread.call_attention();
    }
    before
}

/// The signals that are pending for a thread and that it blocks.
pub(crate) fn blocked(thread: &Thread) -> u64 {
    let shared = lock(&thread.process.signals).pending.set();
    let own = lock(&thread.signals);
    (own.pending.set() | shared) & own.mask
}

/// Takes a pending signal of a set, for a thread that waits for it; else says that it waits.
pub(crate) fn take_awaited(thread: &Thread, set: u64) -> Option<Info> {
    let mut shared = lock(&thread.process.signals);
    let mut own = lock(&thread.signals);
    loop {
        let found = own.pending.take(set).or_else(|| shared.pending.take(set));
        own.awaited = if found.is_some() { 0 } else { set };
        let mut info = found?;
        if thread.process.timers.deliver(&mut info) {
            return Some(info);
        }
    }
}

/// The thread does not wait for signals any more. Passes on those that came meanwhile.
pub(crate) fn end_awaiting(thread: &Thread) {
    let awaited = core::mem::take(&mut lock(&thread.signals).awaited);
    let left = lock(&thread.process.signals).pending.set() & awaited;
    if left != 0 {
        pass_on(&thread.process, left);
    }
}

/// Sets or reads the action of a process at a signal.
pub(crate) fn change_action(process: &Process, number: u8, new: Option<Action>) -> Action {
    let (before, ignored) = lock(&actions(process)).change(number, new);
    if ignored {
        forget(process, &lock(&process.threads), bit(number));
        process.timers.lost(number);
    }
    before
}

/// Tells a parent that a child has ended. Returns whether the parent does not want to wait for it.
pub(crate) fn child_ended(parent: &Arc<Process>, child: &Process, how: Exit) -> bool {
    // Relaxed: only the numbers. A program that replaced the one that made the child gets SIGCHLD.
    let same =
        parent.programs.load(Ordering::Relaxed) == child.programs_of_parent.load(Ordering::Relaxed);
    let signal = if same { child.exit_signal.load(Ordering::Relaxed) } else { SIGCHLD.into() };
    let Some(number @ 1..=MOST) = u8::try_from(signal).ok() else { return false };
    let (reap, silent) = match number {
        SIGCHLD => lock(&actions(parent)).child_rules(),
        _ => (false, false),
    };
    if !silent {
        let (killed, status) = match how {
            Exit::Code(code) => (false, code),
            Exit::Signal(number) => (true, number),
        };
        // Relaxed: a statistic.
        let ticks = crate::time::ticks(child.used.get().nanos);
        // A queue that is full: the parent finds the child when it waits.
        let _ = send(parent, Info::child(number, child.pid, killed, status, ticks));
    }
    reap
}

/// A new thread inherits the mask of the one that made it.
pub(crate) fn inherit(from: &Thread, to: &Thread) {
    let mask = lock(&from.signals).mask;
    lock(&to.signals).mask = mask;
}

/// The actions of a process, also of those that share them.
fn actions(process: &Process) -> Arc<SpinMutex<Actions>> {
    Arc::clone(&lock(&process.signals).actions)
}

/// A new process has the actions of its parent; with `clear`, the default ones instead of handlers.
pub(crate) fn copy(from: &Process, to: &Process, clear: bool) {
    let mut copy = lock(&actions(from)).clone();
    if clear {
        copy.clear();
    }
    lock(&to.signals).actions = Arc::new(SpinMutex::new(copy));
}

/// A new process shares the actions of its parent.
pub(crate) fn share(from: &Process, to: &Process) {
    lock(&to.signals).actions = actions(from);
}

/// A new program has default actions where the old one had handlers, shares them with no other
/// process, and tells its parent of its end by SIGCHLD.
pub(crate) fn exec(thread: &Thread) {
    let process = &thread.process;
    copy(process, process, true);
    process.timers.clear();
    // Relaxed: only the numbers.
    process.exit_signal.store(SIGCHLD.into(), Ordering::Relaxed);
    process.programs.fetch_add(1, Ordering::Relaxed);
}

/// Ends one thread of a process.
pub(crate) fn end_thread(thread: &Arc<Thread>) {
    lock(&thread.signals).ends = true;
    thread.call_attention();
}

/// A thread has ended, and others of its process go on: one of them handles its signals.
pub(crate) fn leave(thread: &Thread) {
    let set = lock(&thread.process.signals).pending.set();
    if set != 0 {
        pass_on(&thread.process, set);
    }
}

/// A process has ended: it keeps no signals, and no timer.
pub(crate) fn end(process: &Process) {
    let left = {
        let mut signals = lock(&process.signals);
        signals.alarm.stop();
        core::mem::take(&mut signals.pending)
    };
    drop(left);
    process.timers.clear();
}
